"""The judge on a real GPU: every built-in seed passes and is measured, faults get their status, innocents go on."""

from __future__ import annotations

import pytest

from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.types import Purpose, Source, Status

QUICK = JudgeSettings(tune_plans=0, deadline_s=20.0)


@pytest.mark.parametrize("name", builtin_names())
def test_seeds_are_measured(name):
    task = load(name)
    assert task.seed is not None
    with open_judge(task, device="cuda", settings=JudgeSettings(tune_plans=0)) as judge:
        evaluation = judge.evaluate(task.seed, Purpose.SCORE)
        assert judge.environment.kind == "measured"
        assert evaluation.status is Status.PASSED, evaluation.reason
        assert evaluation.score is not None and evaluation.score > 0
        assert all(m.n >= 5 and m.low_us <= m.median_us <= m.high_us for m in evaluation.measurements)
        again = judge.evaluate(task.seed, Purpose.SCORE)
        assert not again.charged and again.score == evaluation.score


FAULTS = {
    "writes elsewhere": ("tl.store(y_ptr + row * y_stride", "tl.store(y_ptr + 64 + row * y_stride", {Status.WRONG, Status.RUNTIME_ERROR}),
    "illegal address": ("tl.store(y_ptr + row * y_stride", "tl.store(y_ptr + (1 << 42) + row * y_stride", {Status.RUNTIME_ERROR}),
    "wrong value": ("/ row_sum", "/ (row_sum + 1.0)", {Status.WRONG}),
    "writes nothing": ("tl.store(y_ptr + row * y_stride", "tl.load(y_ptr + row * y_stride", {Status.WRONG, Status.BUILD_ERROR}),
}  # fmt: skip


def test_faults_cost_only_the_culprit():
    task = load("softmax")
    assert task.seed is not None
    with open_judge(task, device="cuda", settings=QUICK) as judge:
        for name, (old, new, wanted) in FAULTS.items():
            assert old in task.seed.text, name
            broken = judge.evaluate(Source(task.seed.text.replace(old, new)), Purpose.SCORE)
            assert broken.status in wanted, (name, broken.status, broken.reason)
            assert broken.score is None and broken.reason
        endless = task.seed.text.replace("def run(x):", ENDLESS + "\n\ndef run(x):").replace("    return y", LAUNCH)
        slow = judge.evaluate(Source(endless), Purpose.SCORE)
        assert slow.status is Status.TIMEOUT, (slow.status, slow.reason)
        assert judge.evaluate(task.seed, Purpose.SCORE).status is Status.PASSED


ENDLESS = """
@triton.jit
def endless_kernel(y_ptr):
    while tl.atomic_add(y_ptr, 0.0) != 123.25:
        pass
"""
LAUNCH = "    endless_kernel[(1,)](y)\n    return y"
