"""Profiles on a real GPU: the table."""

from __future__ import annotations

import time

import pytest

from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind

SETTINGS = JudgeSettings(tune_plans=0, deadline_s=20.0)


@pytest.mark.parametrize("name", ["softmax", "matmul"])
def test_a_seed_is_profiled(name, capsys):
    began = time.monotonic()
    task = load(name)
    case = task.cases_of(CaseKind.SEARCH)[0]
    assert task.seed is not None
    with open_judge(task, device="cuda", settings=SETTINGS) as judge:
        found = judge.profile(task.seed, (), [CaseKind.SEARCH], case.name)[case.name]
        text = found.as_text(judge.environment.label)
        with capsys.disabled():
            print(f"\n--- {name}, {case.name}: {time.monotonic() - began:.1f} s\n{text}")
    one = max(found.kernels, key=lambda kernel: kernel.share)
    assert text.startswith("times are measured (") and one.us > 0
    assert one.gb_per_s and one.light_share and 0 < one.light_share < 1.05, text
    assert one.bound_by in ("memory", "tensor", "issue", "latency") and one.evidence
    assert (one.tflop_per_s is not None) == (name == "matmul")
