"""torch.compile as a baseline without a GPU."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from evo_kernel.deadline import Deadline
from evo_kernel.errors import CutShort, LoweringError
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.runners.executor import Executor
from evo_kernel.fitness.timing import baseline_times
from evo_kernel.fitness.timing.baselines import COMPILED
from evo_kernel.tasks.compiled import child
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from evo_kernel.types import Purpose

TASK = '''"""Twice a tensor, or a product."""
CASES = {"check": [{"n": 7}], "search": [{"n": 64}]}


def inputs(case, generator, device):
    import torch

    return (torch.randn(case["n"], case["n"], generator=generator, device=device),)


def reference(x):
    return RESULT
'''


def verdict(folder, result, text, monkeypatch, remeasure=False, deadline=None):
    """The first kernel's, beside a baseline of this text; a Future: still being written. And what was told of it."""
    path = folder / "op.py"
    path.write_text(TASK.replace("RESULT", result))
    task, told = load(path), {}
    answer = text if isinstance(text, Future) else Future()
    if not isinstance(text, Future):
        answer.set_result(text(task)) if text(task) else answer.set_exception(LoweringError("no kernels"))
    monkeypatch.setattr(child, "baseline_ahead", lambda task: answer)
    with open_judge(task, device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        judge.baselines.on_baselines = lambda case, times, faults: told.update(faults)
        seed = first_kernel(task)
        found = judge.evaluate(seed, Purpose.SCORE, remeasure=remeasure, deadline=deadline)
        again = None
        if isinstance(text, Future):
            text.set_result(seed.text)
            again = judge.evaluate(seed, Purpose.SCORE)
        return found, told, again


def test_libraries_are_priced_where_the_task_allows_kernels_only(tmp_path, monkeypatch):
    def library(task):
        return (
            "import torch\n\n\ndef run(x):\n    y = torch.empty_like(x)\n    torch.ops.aten.mm.out(x, x, out=y)\n"
            "    return y\n"
        )

    at_real_size = []
    for name in ("count", "execute_large"):
        real = getattr(Executor, name)

        def noted(self, plan, *rest, real=real, **named):
            at_real_size.append(plan)
            return real(self, plan, *rest, **named)

        monkeypatch.setattr(Executor, name, noted)
    found, told, _ = verdict(tmp_path, "x @ x", library, monkeypatch)
    (measured,) = found.measurements
    assert at_real_size and all(plan.plan.launches for plan in at_real_size), "a library call is priced, not executed"
    assert not told and set(measured.baselines_us) == {COMPILED}
    assert found.score == pytest.approx(measured.baselines_us[COMPILED] / measured.median_us)
    assert measured.light_share is not None and 0 < measured.floor_us < measured.median_us


def test_a_wrong_cleaning_and_none_at_all_leave_the_first_kernel_and_say_why(tmp_path, monkeypatch):
    found, told, _ = verdict(tmp_path, "x * 2", lambda task: first_kernel(task).text.replace("* 2", "* 3"), monkeypatch)
    assert found.score == 1.0 and set(found.measurements[0].baselines_us) == {"first kernel"}
    assert "wrong on n7" in told[COMPILED]
    found, told, _ = verdict(tmp_path, "x * 4", lambda task: "", monkeypatch)
    assert found.score == 1.0 and told == {COMPILED: "no kernels"}
    found, told, _ = verdict(tmp_path, "x * 5\n\n\nreference.compiled_baseline = False", lambda task: "", monkeypatch)
    assert found.score == 1.0 and "compiled_baseline = False" in told[COMPILED]


def test_a_kernel_passes_where_nothing_can_be_timed_beside_it(tmp_path, monkeypatch):
    def no_first_kernel(task):
        raise LoweringError("none is written")

    monkeypatch.setattr(baseline_times, "first_kernel", no_first_kernel)
    answer, told = Future(), {}
    answer.set_exception(LoweringError("no kernels"))
    monkeypatch.setattr(child, "baseline_ahead", lambda task: answer)
    (tmp_path / "op.py").write_text(
        TASK.replace("RESULT", "torch.square(x) + x").replace("CASES", "import torch\nCASES")
    )
    task = load(tmp_path / "op.py")
    with open_judge(task, device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        judge.baselines.on_baselines = lambda case, times, faults: told.update(faults)
        eager = judge.evaluate(first_kernel(task), Purpose.SCORE)
        judge.baselines._baselines.clear()
        monkeypatch.setattr(baseline_times, "unpriced", lambda node: True)
        alone = judge.evaluate(first_kernel(task), Purpose.SCORE, remeasure=True)
    assert eager.passed and set(eager.measurements[0].baselines_us) == {"eager"} and eager.score is not None
    assert alone.passed and not alone.measurements[0].baselines_us and alone.score is None
    assert told["first kernel"] == "none is written" and "aten.pow" in told["eager"] and told[COMPILED] == "no kernels"


def test_a_first_verdict_does_not_wait_and_has_its_score_later(tmp_path, monkeypatch):
    found, _, again = verdict(tmp_path, "x * 2", Future(), monkeypatch, remeasure=True)
    assert found.passed and found.score is None and not found.measurements[0].baselines_us
    assert again.score == 1.0 and not again.charged  # nothing was done twice


def test_whoever_waits_for_it_ends_with_the_time(tmp_path, monkeypatch):
    late = Deadline()
    late.bring_forward(30.0)
    with pytest.raises(CutShort):
        verdict(tmp_path, "x * 2", Future(), monkeypatch, deadline=late)


def test_its_time_is_kept_for_the_next_command(tmp_path, monkeypatch):
    def slower(task):
        return first_kernel(task).text.replace("* 2", "* 2 * 1")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, _, _ = verdict(tmp_path, "x * 2", slower, monkeypatch)
    (kept,) = (tmp_path / "cache" / "evo-kernel").glob("*.json")
    us = first.measurements[0].baselines_us[COMPILED]
    kept.write_text(kept.read_text().replace(repr(us), repr(2 * us)))
    again, _, _ = verdict(tmp_path, "x * 2", slower, monkeypatch)
    assert again.measurements[0].baselines_us[COMPILED] == 2 * us
