"""Tiny checkouts in the formats of TritonBench and FlashInfer-Bench: problems of our own, one for each thing they do."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch

CUT = "\n" + "#" * 146 + "\n"

SCALED = (
    """
import torch


def scaled_add(x, y, alpha=1.0, mode="sum", out=None):
    made = x + alpha * y
    return made.relu() if mode == "relu" else made
"""
    + CUT
    + """
import torch


def test_scaled_add():
    torch.manual_seed(0)
    results = {}
    results["test_case_1"] = scaled_add(torch.tensor([1.0, -2.0], device="cuda"), torch.tensor([3.0, 4.0]).cuda())
    results["test_case_2"] = scaled_add(torch.randn(3, 5, device="cuda"), torch.randn(5, device="cuda"), mode="relu")
    results["test_case_3"] = scaled_add(torch.randn(2, 7, device="cuda"), torch.randn(7, device="cuda"), 1.0)
    print("noise", results)
    return results


test_results = test_scaled_add()
"""
)

TIMINGS = """
import sys
import os

sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..")))

from TorchBench_v1.scaled_add import scaled_add
from performance_utils import Performance_Metrics, do_bench_config

import torch


class performance_metrics(Performance_Metrics):
    def __init__(self, dtype=None, is_backward=False, **kwargs):
        super().__init__("scaled_add", dtype=dtype, is_backward=is_backward, **kwargs)

    def get_input_tensors(self):
        self.input_tensors = []
        for i in range(6, 31, 8):
            n = 2**i
            self.input_tensors.append((torch.rand(n, dtype=self.dtype), torch.rand(n, dtype=self.dtype)))

    def to_cuda(self, inputs):
        return tuple(x.cuda() for x in inputs)

    def call_op(self, inputs):
        x, y = inputs
        return scaled_add(x, y, alpha=1.0, out=torch.empty_like(x))


if __name__ == "__main__":
    performance_metrics().get_input_tensors()
"""

FILLED = (
    """
import torch


def fill_rows(x, rows, drop=0.5):
    x.index_fill_(0, rows, 2.0)
    return torch.nn.functional.dropout(x, drop) * 1
"""
    + CUT
    + """
def test_fill_rows():
    rows = torch.tensor([0, 2], device="cuda")
    fill_rows(torch.randn(4, 3, device="cuda"), rows)
    fill_rows(torch.randn(4, 3, device="cuda"), rows, drop=0.0)


test_fill_rows()
"""
)

DOUBLED = (
    """
import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def doubled_kernel(x_ptr, order_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = tl.load(order_ptr + at, mask=at < n)
    tl.store(out_ptr + to, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, order, out):
        assert x.is_cuda
        with torch.cuda.device(x.device):
            doubled_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, order, out, x.numel())
        ctx.mark_non_differentiable(out)
        return None
"""
    + CUT
    + """
import torch


def test_doubled():
    results = []
    for n in (70, 200):
        x, out = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")
        Doubled.apply(x, torch.arange(n - 1, -1, -1, device="cuda"), out)
        results.append(out)
    return results


result_gold = test_doubled()
"""
)

POWERS = (
    """
import torch
import triton
import triton.language as tl

SMS = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


@triton.jit
def powers_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    before = tl.load(x_ptr + at - 5000)
    x = tl.load(x_ptr + at)
    power = tl.extra.cuda.libdevice.pow(x.to(tl.float32), 2.0)
    tl.store(out_ptr + at, tl.where(at < 0, before, x * x + power.to(tl.bfloat16)))


def powers(x, out):
    assert SMS > 1
    powers_kernel[[1]](x, out, 64)
"""
    + CUT
    + """
def test_powers():
    out = torch.zeros(64, device="cuda", dtype=torch.bfloat16)
    powers(torch.randn(64, device="cuda", dtype=torch.bfloat16), out)
    return out


result_gold = test_powers()
"""
)
"""Reads before its input, as published kernels do; a list for a grid; `out` without a default; CUDA's own library."""

OPTIMIZER = "class Box:\n    size = 3\n\n\ndef of_a_box(box):\n    return box.size\n" + CUT + "of_a_box(Box())\n"


def tritonbench(folder: Path) -> Path:
    """Write the checkout; its root."""
    problems, timings = folder / "data/TritonBench_T_v1", folder / "performance_metrics/perf_T/golden_metrics"
    problems.mkdir(parents=True)
    timings.mkdir(parents=True)
    (problems / "scaled_add.py").write_text(SCALED)
    (timings / "scaled_add_perf.py").write_text(TIMINGS)
    (problems / "fill_rows.py").write_text(FILLED)
    (problems / "of_a_box.py").write_text(OPTIMIZER)
    made_of_triton = folder / "data/TritonBench_G_v1"
    made_of_triton.mkdir()
    (made_of_triton / "doubled.py").write_text(DOUBLED)
    (made_of_triton / "powers.py").write_text(POWERS)
    (problems / "uncut.py").write_text("def f(x):\n    return x\n")
    listed = [{"name": "scaled_add", "description": "Adds.", "func_inputs": "scaled_add(x, y)"}]
    (folder / "data/TritonBench_T_v1.jsonl").write_text(json.dumps(listed))
    return folder


RMS = """import torch


@torch.no_grad()
def run(x, weight, rows, eps):
    batch, width = x.shape
    assert width % 8 == 0
    wide = x.float()[rows.long()]
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return {"y": (wide * scale * weight.float()).to(x.dtype), "scale": scale.squeeze(-1)}
"""

DEFINITION = {
    "name": "rms_h512",
    "op_type": "rmsnorm",
    "description": "Rows by number,\nnormalised.",
    "axes": {"batch": {"type": "var"}, "taken": {"type": "var"}, "width": {"type": "const", "value": 512}},
    "inputs": {
        "x": {"shape": ["batch", "width"], "dtype": "bfloat16"},
        "weight": {"shape": ["width"], "dtype": "bfloat16"},
        "rows": {"shape": ["taken"], "dtype": "int32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "y": {"shape": ["taken", "width"], "dtype": "bfloat16"},
        "scale": {"shape": ["taken"], "dtype": "float32"},
    },
    "reference": RMS,
}

GEMM = {
    "name": "gemm_n256",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 256}},
    "inputs": {name: {"shape": shape, "dtype": "float16"} for name, shape in (("A", ["M", "N"]), ("B", ["N", "N"]))},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
    "reference": "import torch\n\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
}


def flashinfer(folder: Path) -> Path:
    """Write the data set; its root."""
    for definition in (DEFINITION, GEMM):
        path = folder / f"definitions/{definition['op_type']}/{definition['name']}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(definition))
    (folder / "workloads/rmsnorm").mkdir(parents=True)
    (folder / "workloads/gemm").mkdir(parents=True)
    lines = []
    for number, taken in enumerate((2, 6)):
        values = torch.arange(taken, dtype=torch.int32)
        blob = f"blob/rows_{number}.safetensors"
        _store(folder / blob, "rows", values)
        inputs = {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-5}}
        inputs["rows"] = {"type": "safetensors", "path": blob, "tensor_key": "rows"}
        workload = {"uuid": f"0000000{number}-of-rms", "axes": {"batch": 9, "taken": taken}, "inputs": inputs}
        lines.append(json.dumps({"definition": "rms_h512", "solution": None, "workload": workload, "evaluation": None}))
    (folder / "workloads/rmsnorm/rms_h512.jsonl").write_text("\n".join(lines) + "\n")
    random = {"A": {"type": "random"}, "B": {"type": "random"}}
    work = [{"uuid": f"{m}-gemm", "axes": {"M": m}, "inputs": random} for m in (8, 64, 100, 4096)]
    (folder / "workloads/gemm/gemm_n256.jsonl").write_text("\n".join(map(json.dumps, work)))
    return folder


def _store(path: Path, key: str, values: torch.Tensor) -> None:
    path.parent.mkdir(exist_ok=True)
    data = values.numpy().tobytes()
    header = json.dumps({key: {"dtype": "I32", "shape": list(values.shape), "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
