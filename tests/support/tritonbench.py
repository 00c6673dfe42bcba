"""A tiny checkout in the format of TritonBench: problems of our own, one for each thing they do."""

from __future__ import annotations

import json
from pathlib import Path

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
