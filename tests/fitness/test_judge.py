"""The no-GPU judge from end to end, with its real children: recorded, compiled, interpreted, modeled."""

from __future__ import annotations

import math
from dataclasses import replace

import psutil
import pytest
import torch

from evo_kernel.deadline import Deadline
from evo_kernel.errors import CutShort, InfraError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge, with_names
from evo_kernel.fitness.runners.choose import MODELED_ARCH
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.types import CaseKind, Evaluation, Measurement, Purpose, Source, Status
from tests.support.small_tasks import small_softmax


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return small_softmax(tmp_path_factory.mktemp("task"))


class Stumbling(CpuRunner):
    """Raises what it is told to."""

    error: Exception | None = None

    def answer(self, request):
        if self.error is not None:
            raise self.error
        return super().answer(request)


@pytest.fixture(scope="module")
def judge(task):
    settings = JudgeSettings(tune_plans=1, deadline_s=30.0)
    with PlanJudge(task, Stumbling(task, MODELED_ARCH, settings.deadline_s), settings) as made:
        made.start()
        yield made


def test_a_seed_passes_and_is_modeled(task, judge):
    evaluation = judge.evaluate(task.seed, Purpose.SCORE)
    assert evaluation.status is Status.PASSED, evaluation.reason
    assert judge.environment.label == "modeled for an H200 (sm_90)"
    assert [m.case for m in evaluation.measurements] == ["m64-n128", "m256-n1000"]
    assert evaluation.score is not None and evaluation.score >= 1.0  # held against itself, tuned or not
    assert evaluation.charged["score"] == 1
    assert all(m.n == 0 and m.light_share is not None and m.light_share < 1.25 for m in evaluation.measurements)


def test_a_fault_names_the_input_and_quotes_the_line(task, judge):
    text = task.seed.text.replace("x_ptr + ", "x_ptr + 100000 + ", 1)
    assert text != task.seed.text
    reason = judge.evaluate(Source(text), Purpose.PROBE).reason
    line = next(line.strip() for line in text.splitlines() if "100000" in line)
    assert "of input 0 (x), which has" in reason and f": `{line}`" in reason, reason


def test_names_in_reasons() -> None:
    text = "first\n  second line\n" + "x" * 200
    assert with_names("it changes its input 1", ["x", "bias"], text) == "it changes its input 1 (bias)"
    assert with_names("input 2 (line 2: tt.load)", ["x"], text) == "input 2 (line 2: `second line`: tt.load)"
    assert with_names("(line 3) (line 9) inputs 1", ["x"], text) == "(line 3) (line 9) inputs 1"


def test_known_plans_cost_nothing(task, judge):
    first = judge.evaluate(task.seed, Purpose.PROBE)
    again = judge.evaluate(Source(task.seed.text + "\n# the same plans\n"), Purpose.PROBE)
    assert again.status is Status.PASSED and not again.charged and not again.verdicts
    assert {plan for _, _, plan in again.plans} == {plan for _, _, plan in first.plans}


def test_a_draw_that_the_reference_refuses_ends_no_run(task, judge, monkeypatch):
    failures = iter([True])  # an unlucky draw, then none

    def reference(x):
        if not x.any() or next(failures, False):  # zeros: as of a matrix that is to be inverted
            raise RuntimeError("the matrix is singular")
        return torch.softmax(x, -1)

    monkeypatch.setattr(judge._runner._references, "_task", replace(task, reference_function=reference))
    judge._grader.draw_anew()  # the references of other seeds are known
    text = task.seed.text.replace("+ start", "+ 0 + start")
    lucky = judge.evaluate(Source(text.replace("/ row_sum", "/ (row_sum * 2.0 * 0.5)")), Purpose.PROBE)
    assert lucky.passed and len(lucky.checks) == 2, lucky.reason
    case = task.cases_of(CaseKind.CHECK)[0]
    plan = judge.plans(task.seed, (), [CaseKind.CHECK])[case.name]
    assert judge._runner.check(plan, case, [(1, "nominal"), (2, "zeros")]).passed
    failures = iter([True] * 1000)
    judge._grader.draw_anew()
    never = judge.evaluate(Source(text.replace("/ row_sum", "/ (row_sum * 4.0 * 0.25)")), Purpose.PROBE)
    assert never.status is Status.REJECTED and "3 times in a row" in never.reason and "singular" in never.reason


def test_every_configuration_is_checked(task, judge, monkeypatch):
    monkeypatch.setattr(judge, "_settings", replace(judge._settings, every_configuration=True, tune_plans=0))
    configs = "@triton.autotune([triton.Config({'BY': 1.0}, num_warps=w) for w in (4, 8)], key=[])\n@triton.jit\n"
    text = task.seed.text.replace("@triton.jit\n", configs, 1).replace(
        "BLOCK: tl.constexpr", "BLOCK: tl.constexpr, BY: tl.constexpr"
    )
    text = text.replace("/ row_sum", "* BY / row_sum").replace(", num_warps=NUM_WARPS", "")
    right = judge.evaluate(Source(text), Purpose.SCORE)
    assert right.passed and right.reason.startswith("2 of 2 autotune configurations of "), right.reason
    wrong = judge.evaluate(Source(text.replace("1.0}, num_warps=w", "w / 4}, num_warps=w")), Purpose.SCORE)
    assert wrong.status is Status.WRONG and "with autotune configuration 1 of " in wrong.reason, wrong.reason
    assert "(BY: 2.0, num_warps: 8" in wrong.reason
    never = "key=[], prune_configs_by={'early_config_prune': lambda configs, args, **_: configs[:1]})"
    unused = text.replace("1.0}, num_warps=w", "w / 4}, num_warps=w").replace("key=[])", never)
    assert judge.evaluate(Source(unused), Purpose.SCORE).passed
    timed = judge.evaluate(Source(unused.replace("[:1]", "[: 1 + (args['x_ptr'].numel() > 8000)]")), Purpose.SCORE)
    assert timed.status is Status.WRONG and "wrong on m64-n128" in timed.reason, timed.reason
    bad = text.replace("1.0}, num_warps=w", "w / 4}, num_warps=w")
    at_size = judge.evaluate(Source(bad.replace("* BY", "* tl.where(tl.num_programs(0) > 60, BY, 1.0)")), Purpose.SCORE)
    assert at_size.status is Status.WRONG and "wrong on m64-n128" in at_size.reason, at_size.reason
    small = Source(
        bad.replace("* BY", "* tl.where(row_sum == n_cols, BY, 1.0)")
    )  # of zeros, which a search does not draw
    small = judge.evaluate(small, Purpose.CONFIRM)
    assert small.status is Status.WRONG and "with autotune configuration 1 of " in small.reason, small.reason


@pytest.mark.parametrize(
    ("old", "new", "status", "reason"),
    [
        ("/ row_sum", "/ (row_sum + 1.0)", Status.WRONG, "the output"),
        ("mask=mask)\n\n\ndef run", "mask=mask & (cols > 0))\n\n\ndef run", Status.WRONG, "written"),
        ("+ start + cols, y", "+ start + cols + 1000000, y", Status.RUNTIME_ERROR, "softmax_kernel"),
        ("return y", "return x.softmax(-1)", Status.REJECTED, "kernels only"),
        ("return y", "return y[:, :1]", Status.WRONG, "shape"),
        ("y = torch.empty_like(x)", "y = x", Status.REJECTED, "view of an input"),
    ],
)
def test_broken_kernels_get_their_status_and_a_sentence(task, judge, old, new, status, reason):
    assert old in task.seed.text
    evaluation = judge.evaluate(Source(task.seed.text.replace(old, new)), Purpose.PROBE)
    assert evaluation.status is status, (evaluation.status, evaluation.reason)
    assert reason in evaluation.reason
    assert evaluation.score is None


def test_a_case_without_rows_needs_no_launch(tmp_path):
    small = small_softmax(tmp_path, {"check": [{"m": 0, "n": 33}, {"m": 3, "n": 33}], "search": [{"m": 64, "n": 128}]})
    settings = JudgeSettings(tune_plans=0, deadline_s=30.0)
    with PlanJudge(small, CpuRunner(small, MODELED_ARCH, settings.deadline_s), settings) as judge:
        judge.start()
        right = judge.evaluate(small.seed, Purpose.PROBE)
        none = judge.evaluate(Source(small.seed.text.replace("return y", "return y[:0]")), Purpose.PROBE)
    assert right.status is Status.PASSED, right.reason
    assert none.status is Status.WRONG and "shape (0, 33)" in none.reason, none.reason


@pytest.mark.parametrize(
    "raised", [ValueError("bad"), RecursionError(), OverflowError("large"), UnicodeDecodeError("utf-8", b"x", 0, 1, "")]
)
def test_what_a_candidate_brings_about_is_its_own_verdict(task, judge, monkeypatch, raised):
    monkeypatch.setattr(Stumbling, "error", raised)
    evaluation = judge.evaluate(other_than(task.seed), Purpose.SCORE)
    assert evaluation.status is Status.RUNTIME_ERROR and evaluation.score is None
    assert type(raised).__name__ in evaluation.reason and "test_judge.py, line" in evaluation.reason


def test_what_the_machine_brings_about_is_not(task, judge, monkeypatch):
    monkeypatch.setattr(Stumbling, "error", OSError(28, "No space left on device"))
    with pytest.raises(InfraError, match="No space left"):
        judge.evaluate(other_than(task.seed), Purpose.SCORE)


def other_than(seed):
    """With plans that nobody has judged."""
    assert "BLOCK = 256" in seed.text
    return Source(seed.text.replace("BLOCK = 256", "BLOCK = 512"))


@pytest.mark.parametrize("name", ["median_us", "low_us", "iqr_us", "drift"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_time_is_finite(name, value):
    with pytest.raises(ValueError, match=name):
        Measurement(
            **{"case": "c", "plan": "p", "iqr_us": 0.0, "n": 1, "high_us": 1.0, "median_us": 1.0}
            | {"low_us": 1.0, name: value}
        )


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_score_and_a_time_are_positive(judge, value):
    with pytest.raises(ValueError, match="finite and positive"):
        Measurement("c", "p", value, 0.0, 1, 1.0, 1.0)
    with pytest.raises(ValueError, match="finite and positive"):
        Measurement("c", "p", 1.0, 0.0, 1, 1.0, 1.0, {"eager": value})
    with pytest.raises(ValueError, match="finite and positive"):
        Evaluation("", "", Purpose.SCORE, judge.environment, Status.PASSED, score=value)


def test_tuning_is_cut_and_the_verdict_kept(task, judge):
    """What a kernel is without tuning is known by then: one that was known is tuned no more either."""
    source = Source(task.seed.text + "\n# another text\n")
    with pytest.raises(CutShort):
        judge.evaluate(source, Purpose.SCORE, deadline=Deadline(at=0.0))
    cut = judge.evaluate(source, Purpose.SCORE, deadline=Deadline(at=0.0, grace_s=math.inf))
    assert cut.passed and cut.score is not None and cut.knobs == () and Purpose.TUNE not in cut.charged
    with pytest.raises(CutShort):
        judge.evaluate(source, Purpose.CONFIRM, deadline=Deadline(at=0.0))


def test_a_closed_judge_leaves_no_process(task):
    open_judge(task, device="cpu").close()  # its preloader stays, for the next judge of this process
    before = set(psutil.Process().children(recursive=True))
    judge = open_judge(task, device="cpu")
    started = set(psutil.Process().children(recursive=True)) - before
    judge.close()
    _, alive = psutil.wait_procs(started, timeout=5)
    assert len(started) >= 3 and not alive
