"""What the benchmarks' own harnesses say of exported files, where a checkout of them is named; skipped where none is.

EVO_KERNEL_KERNELBENCH and EVO_KERNEL_TRITONBENCH name checkouts. Their code runs here, on problems of our own that are
small enough for a CPU: KernelBench's loaders, its comparison and its static checker; TritonBench's two steps. What
needs a GPU (their timings) is left out.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from evo_kernel.app.suite.lanes import Lane, OrderEnd
from evo_kernel.app.suite.search import ask_harness
from evo_kernel.observe.suites import CORRECT, Stock, stock_of
from evo_kernel.observe.suites import WRONG as WRONG_OUTPUT
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from tests.support.benchmark import LINEAR, checkout
from tests.support.commands import evo_main
from tests.support.tritonbench import CUT, SCALED, tritonbench

ADDING = """
import torch, triton, triton.language as tl

@triton.jit
def add(x_ptr, y_ptr, z_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x, y = tl.load(x_ptr + at, at < n), tl.load(y_ptr + at, at < n)
    tl.store(z_ptr + at, x + y, at < n)

def run(x, y):
    z = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 128),)](x, y, z, x.numel(), SIZE=128)
    return z
"""
EXECUTING = "import evo_kernel.fitness.ir.programs"
"""What a process without a GPU loads to execute launches."""


def named(variable: str) -> Path:
    """The checkout that the environment names; the test is skipped where it names none."""
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no checkout")
    return Path(os.environ[variable])


@pytest.fixture
def export():
    """`tasks export`, in this process: where it wrote to."""

    def called(spec: str, kernel: str, folder: Path, *more: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mine.py").write_text(kernel)
        arguments = ("tasks", "export", spec, str(folder / "mine.py"), "--to", str(folder / "out"), *more)
        ended = evo_main(*arguments)
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
    tl.store(y + at, tl.load(y + at, at < n) * 1.1, at < n)

_run = run

def run(*inputs):
    made = _run(*inputs)
    _spoil[(triton.cdiv(made.numel(), 1024),)](made, made.numel(), SIZE=1024)
    return made
"""


@pytest.fixture
def steps(tmp_path) -> tuple[Any, Any]:
    """TritonBench's two steps for channel T, reading a checkout of ours whose scripts need no GPU."""
    folder = named("EVO_KERNEL_TRITONBENCH") / "EVAL" / "eval_T"
    found = []
    for name in ("0_call_acc.py", "1_exe_acc.py"):
        text = (folder / name).read_text()
        text = text.replace('path.split("/")[-1].replace(".jsonl", "")', "path")  # Python 3.12 alone reads that
        module = types.ModuleType(name)
        exec(compile(text, name, "exec"), module.__dict__)
        module.__dict__["py_interpreter"] = sys.executable
        found.append(module)
    return found[0], found[1]


def test_tritonbench_runs_what_is_predicted_and_compares_what_it_prints(export, steps, tmp_path):
    called, executed = steps
    root = tritonbench(tmp_path / "checkout")
    problem = root / "data/TritonBench_T_v1/scaled_add.py"
    here = SCALED.replace('"cuda"', '"cpu"').replace(".cuda()", "").replace('print("noise"', 'print("results"')
    assert CUT in here
    problem.write_text(here)
    listed = json.loads((root / "data/TritonBench_T_v1.jsonl").read_text())
    (tmp_path / "listed.json").write_text(json.dumps([item | {"file": "scaled_add.py"} for item in listed]))
    called.statis_path, called.py_folder = str(tmp_path / "listed.json"), str(problem.parent)
    answers = []
    for number, kernel in enumerate((ADDING, ADDING.replace("x + y", "x - y"))):
        written = export(f"tritonbench:{root}/T/scaled_add", kernel, tmp_path / str(number))
        codes, tests, files = called.get_codes_for_test(str(written.parent / "predictions.jsonl"))
        target = tmp_path / f"{number}/target"
        runs, name = called.run_script_on_gpu(f"{EXECUTING}\n{codes[0]}", tests[0], files[0], str(target), 0)
        answers.append((runs, executed.compare_python_files(str(target / name), str(problem))))
    assert answers == [(True, (True, "scaled_add.py")), (True, (False, "scaled_add.py"))]


def test_tritonbench_keeps_what_it_needs_of_a_prediction_for_channel_g(export, tmp_path):
    step = named("EVO_KERNEL_TRITONBENCH") / "EVAL" / "eval_G" / "0_call_acc.py"
    names: dict[str, Any] = {"__name__": "step"}
    exec(step.read_text().replace('path.split("/")[-1].replace(".jsonl", "")', "path"), names)
    root = tritonbench(tmp_path / "checkout")
    written = export(f"tritonbench:{root}/T/scaled_add", ADDING, tmp_path)
    line = json.loads((written.parent / "predictions.jsonl").read_text())
    left: dict[str, Any] = {}
    exec(EXECUTING, left)
    exec(names["process_code"](line["predict"]), left)
    import torch

    assert left["scaled_add"](torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]
