"""A tiny checkout in the format of TritonBench: problems of our own, one for each thing they do."""

from __future__ import annotations

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
    (problems / "uncut.py").write_text("def f(x):\n    return x\n")
    return folder
