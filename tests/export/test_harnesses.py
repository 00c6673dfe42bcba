"""What KernelBench's own harness says of exported files; skipped where EVO_KERNEL_KERNELBENCH names no checkout.

Its code runs here, on a problem of our own that is small enough for a CPU: its loaders, its comparison and its static
checker. What needs a GPU (its timings) is left out.
"""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import pytest

from evo_kernel.app.suite.lanes import Lane, OrderEnd
from evo_kernel.app.suite.search import ask_harness
from evo_kernel.observe.suites import CORRECT, Stock, stock_of
from evo_kernel.observe.suites import WRONG as WRONG_OUTPUT
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from tests.support.benchmark import LINEAR, checkout
from tests.support.commands import evo_main


def named(variable: str) -> Path:
    """The checkout that the environment names; the test is skipped where it names none."""
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no checkout")
    return Path(os.environ[variable])


@pytest.fixture
def export(monkeypatch, capsys):
    """`tasks export`, in this process: where it wrote to."""

    def called(spec: str, kernel: str, folder: Path, *more: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mine.py").write_text(kernel)
        arguments = ("tasks", "export", spec, str(folder / "mine.py"), "--to", str(folder / "out"), *more)
        ended = evo_main(capsys, monkeypatch, *arguments)
        assert ended.returncode == 0, ended.stderr
        (written,) = [line for line in ended.stdout.splitlines() if line.startswith("wrote ")]
        return Path(written.removeprefix("wrote "))

    return called


def test_kernelbench_loads_compares_and_lets_pass_a_first_kernel(export, tmp_path):
    harness = named("EVO_KERNEL_KERNELBENCH")
    root = checkout(tmp_path / "checkout")
    small = LINEAR.replace("features, out = 4096, 2048", "features, out = 96, 128").replace("= 512", "= 16")
    problem = root / "KernelBench/level2/1_Linear_GroupNorm.py"
    problem.write_text(small)
    spec = f"kernelbench:{root}/level2/1"
    (root / "src").symlink_to(harness / "src")
    kernel = first_kernel(load(spec)).text
    written = export(spec, kernel, tmp_path / "runs")
    assert re.fullmatch(r"level_\d+_problem_\d+_sample_\d+_kernel\.py", written.name)
    right = asked(spec, kernel, tmp_path / "runs")
    if "Install" in right.reason:
        pytest.skip(right.reason)
    assert (right.verdict, right.notes, set(right.scaled.values())) == (CORRECT, (), {True}), right
    assert asked(spec, WRONG.format(kernel=kernel), tmp_path / "wrong").verdict == WRONG_OUTPUT


def asked(spec: str, kernel: str, folder: Path) -> Stock:
    """What the benchmark's own harness says, as `suite` asks it."""
    return stock_of(json.loads(harness(spec, kernel, folder, "cpu").out.splitlines()[-1]))


def harness(spec: str, kernel: str, folder: Path, device: str) -> OrderEnd:
    order = {"spec": spec, "kernel": kernel, "folder": str(folder), "device": device, "ask": True}
    return ask_harness(order, Lane(), folder / "log", threading.Event(), 200.0)


WRONG = """{kernel}

@triton.jit
def _spoil(y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(y + at, at < n) * 1.01, at < n)

_run = run

def run(*inputs):
    made = _run(*inputs)
    _spoil[(triton.cdiv(made.numel(), 1024),)](made, made.numel(), SIZE=1024)
    return made
"""
