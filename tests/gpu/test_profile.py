"""Profiles on a real GPU: the table, and counters of Nsight Compute or the sentence that says why there are none.

Prints the tables, and all that ncu was asked and said where something is amiss.
"""

from __future__ import annotations

import shlex
import time

import pytest

from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.runners import ncu
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind

SETTINGS = JudgeSettings(tune_plans=0, deadline_s=20.0)  # ncu has 30 s more
COPIES = {"softmax": (0.5, 1.6)}
"""What a kernel without reuse must read and write of device memory ÷ what is counted: writes may stay in the L2."""


@pytest.fixture
def asked(monkeypatch):
    """Every run of ncu: command, exit status, seconds, output."""
    runs, run = [], ncu.run_bounded

    def watched(command, env, deadline_s):
        began = time.monotonic()
        said, code = run(command, env, deadline_s)
        runs.append(f"$ {shlex.join(command)}\n-> {code} after {time.monotonic() - began:.1f} s\n{shortened(said)}")
        return said, code

    monkeypatch.setattr(ncu, "run_bounded", watched)
    return runs


def shortened(said: str) -> str:
    return said if len(said) < 9000 else said[:4500] + "\n[...]\n" + said[-4500:]


@pytest.mark.parametrize("name", ["softmax", "matmul", "layernorm_backward"])
def test_a_seed_is_profiled(name, asked, capsys):
    began = time.monotonic()
    task = load(name)
    case = task.cases_of(CaseKind.SEARCH)[0]
    assert task.seed is not None
    with open_judge(task, device="cuda", settings=SETTINGS) as judge:
        found = judge.profile(task.seed, (), [CaseKind.SEARCH], None, case.name)[case.name]
        text = found.as_text(judge.environment.label)
        with capsys.disabled():
            print(f"\n--- {name}, {case.name}: {time.monotonic() - began:.1f} s, ncu: {ncu.find_ncu()}\n{text}")
    counters = [one.counters for one in found.kernels if one.counters]
    if not counters or any(len(one) < len(ncu.METRICS) - 6 for one in counters):
        with capsys.disabled():
            print("\n".join(asked) or "ncu was not run")
            print("missing:", [[m for m in ncu.METRICS if m not in one] for one in counters])
    one = max(found.kernels, key=lambda kernel: kernel.share)
    assert text.startswith("times are measured (") and one.us > 0
    assert one.gb_per_s and one.roofline_share and 0 < one.roofline_share < 1.05, text
    assert one.bound_by in ("memory", "tensor", "issue", "latency") and one.evidence
    assert (one.tflop_per_s is not None) == (name == "matmul")
    if not counters:
        assert any(note.startswith("no Nsight Compute counters: ") for note in found.notes), text
        pytest.skip(found.notes[-1])
    assert len(counters) == len(found.kernels) and not found.notes, found.notes
    one_us = one.counters["gpu__time_duration.sum"] * 1e6
    assert 0.4 < one_us / one.us < 2.5, f"ncu's own time is {one_us:.1f} µs"
    if name in COPIES:
        counted = one.gb_per_s * one.us * 1e3
        moved = one.counters["dram__bytes_read.sum"] + one.counters["dram__bytes_write.sum"]
        low, high = COPIES[name]
        assert low < moved / counted < high, (moved, counted)
    shares = [value for key, value in one.counters.items() if ".pct" in key]
    assert shares and all(0 <= value <= 101 for value in shares), one.counters
