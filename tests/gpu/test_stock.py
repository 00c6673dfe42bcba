"""KernelBench's own harness on a GPU, as `suite` asks it. EVO_KERNEL_KERNELBENCH names a checkout; skipped without."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from evo_kernel.observe.suites import CORRECT, WRONG, Stock, stock_of
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from tests.export.test_harnesses import WRONG as WRONG_KERNEL
from tests.export.test_harnesses import harness, named
from tests.support.benchmark import checkout


@pytest.mark.parametrize("problem", ["level1/1", "level2/1"])
def test_a_right_kernel_is_timed_by_its_clock_and_a_wrong_one_is_refused(tmp_path: Path, problem: str) -> None:
    root = checkout(tmp_path / "checkout")
    (root / "src").symlink_to(named("EVO_KERNEL_KERNELBENCH").resolve() / "src")
    spec = f"kernelbench:{root}/{problem}"
    kernel = first_kernel(load(spec)).text
    right, seconds = asked(spec, kernel, tmp_path)
    print(f"{problem}: {right}; {seconds:.1f} s")
    assert right.verdict == CORRECT, right
    assert right.us and right.eager_us and right.tf32_us and right.timed >= 10
    assert 0.5 < right.tf32_us / right.eager_us < 1.5 or problem != "level1/1"  # a softmax has no products
    assert right.scaled == {"x3": True, "x0.01": True, "x-1": True}
    wrong, _ = asked(spec, WRONG_KERNEL.format(kernel=kernel), tmp_path)
    assert wrong.verdict == WRONG and wrong.us is None, wrong


def asked(spec: str, kernel: str, folder: Path) -> tuple[Stock, float]:
    began = time.monotonic()
    ended = harness(spec, kernel, folder, "cuda")
    assert ended.out, ended.err[-3000:]
    return stock_of(json.loads(ended.out.splitlines()[-1])), time.monotonic() - began
