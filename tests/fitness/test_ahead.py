"""The judge asks its runner once a source, and again only for what the first answer left open."""

from __future__ import annotations

import pytest

from benchmarks import variants
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.runners.base import PlanSetAnswer
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.fitness.timing.baselines import COMPILED, baseline_function, baseline_names, deadline_of
from evo_kernel.types import Purpose, Source, Status
from tests.fitness.fake_gpu import task_in, worker_command


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setitem(variants.CASES, "softmax", {"m": 64, "n": 128})
    yield variants.narrowed("softmax", tmp_path_factory.mktemp("task"))
    patch.undo()


class Counted(CudaRunner):
    """A runner around a simulated GPU that keeps what it was asked, and may lose the checks of a first answer."""

    def __init__(self, task):
        super().__init__(task, 0, 20.0, worker_command(task))
        self.asked, self.lose = [], False

    def answer(self, request):
        self.asked.append(request)
        found = super().answer(request)
        if self.lose and len(request.checks) > 1:
            return PlanSetAnswer((None,) * len(request.checks), found.timings)
        return found


@pytest.fixture(scope="module")
def judged(small):
    runner = Counted(small)
    with PlanJudge(small, runner, JudgeSettings(tune_plans=0, deadline_s=30.0)) as judge:
        judge.start()
        yield judge, runner


def test_one_request_a_source(small, judged):
    judge, runner = judged
    runner.asked.clear()
    found = judge.evaluate(small.seed, Purpose.SCORE)
    assert found.status is Status.PASSED, found.reason
    assert len(runner.asked) == 1 and len(runner.asked[0].checks) == 4 and len(runner.asked[0].timings) == 1
    assert len(found.checks) == 4 and found.measurements[0].clock_mhz == 1980.0 and found.score is not None
    again = judge.evaluate(Source(small.seed.text + "\n# the same plans\n"), Purpose.SCORE)
    assert len(runner.asked) == 1 and again.score == found.score
    confirmed = judge.evaluate(small.seed, Purpose.CONFIRM)
    _, request, wide, *others = runner.asked
    assert confirmed.passed and request.precision == "claim"
    assert len({seed for check in request.checks for seed, _ in check.rounds}) == 4 * len(regimes.CONFIRM)
    assert [regime for check in wide.checks for _, regime in check.rounds] == [regimes.WIDE]
    asked = [regime for other in others for check in other.checks for _, regime in check.rounds]
    assert tuple(asked) == regimes.OTHERS


def test_what_was_lost_is_asked_alone(small, judged):
    judge, runner = judged
    runner.asked.clear()
    runner.lose = True
    found = judge.evaluate(Source(small.seed.text.replace("BLOCK = 256", "BLOCK = 512")), Purpose.SCORE)
    runner.lose = False
    assert found.status is Status.PASSED, found.reason
    asked = [request.checks for request in runner.asked]
    wide = [checks for checks in asked if checks[0].rounds[0][1] == regimes.WIDE]  # where it is the fastest so far
    assert [len(checks) for checks in asked] == [4, 1, 1, 1, 1, *map(len, wide)]


def test_baselines_by_name(small, tmp_path):
    from evo_kernel.tasks.loading import load

    softmax = load("softmax")
    assert baseline_names(softmax) == ("eager", COMPILED) and deadline_of(softmax, COMPILED) > 60
    assert baseline_names(task_in(tmp_path)) == ("eager", "broken") and COMPILED not in baseline_names(small)
    assert baseline_function(softmax, "eager") is softmax.baselines["eager"]
    assert callable(baseline_function(softmax, COMPILED))
    with pytest.raises(KeyError):
        baseline_function(softmax, "nothing")
