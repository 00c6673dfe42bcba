"""Confirmations: by a fresh process, side by side with the first kernel and the champion before; on a simulated GPU."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from evo_kernel.errors import InfraError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.runners.choose import RunnerPool
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.types import SAME, CaseKind, PairedComparison, Purpose, Rival, Source, Status
from evo_kernel.types.promotion import refutation
from tests.fitness.fake_gpu import worker_command
from tests.support.scripted import FIRST, scored
from tests.support.small_tasks import small_softmax

CASES = {"check": [{"m": 3, "n": 7}], "search": [{"m": 64, "n": 128}], "confirm": [{"m": 32, "n": 100}]}
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return small_softmax(tmp_path_factory.mktemp("task"), CASES)


class Runner(CudaRunner):
    """A runner around a simulated GPU that keeps who served what, and may fail to pair."""

    def __init__(self, task, gpu=0):
        command = worker_command(task)
        super().__init__(task, gpu, DEADLINE_S, command)
        self.served, self.unpaired = [], False

    def request(self, fields, plans=()):
        answer = super().request(fields, plans)
        self.served.append((fields["command"], self.info["pid"]))
        return answer

    def pair(self, incumbent, challenger, case, seed, checked=True):
        found = super().pair(incumbent, challenger, case, seed, checked)
        return Checked(Status.RUNTIME_ERROR, "out of GPU memory") if self.unpaired else found


def variant(task, us: int, block: int) -> Source:
    """The simulated GPU takes a kernel's time from its name; another block makes it another plan."""
    text = task.seed.text.replace("softmax_kernel", f"timed_{us}").replace("BLOCK = 256", f"BLOCK = {block}")
    assert text != task.seed.text
    return Source(text)


@pytest.fixture(scope="module")
def judged(task):
    runner = Runner(task)
    with PlanJudge(task, runner, JudgeSettings(tune_plans=0, deadline_s=DEADLINE_S)) as judge:
        judge.start()
        for source in (task.seed, variant(task, 25, 512), variant(task, 40, 128)):
            found = judge.evaluate(source, Purpose.SCORE)
            assert found.passed, found.reason
        yield judge, runner


def by_rival(found):
    return {(one.against, one.kind): one for one in found.comparisons}


def test_a_champion_is_compared_by_a_process_that_served_nobody(task, judged):
    judge, runner = judged
    before, runner.served[:] = runner.info["pid"], []
    found = judge.evaluate(variant(task, 25, 512), Purpose.CONFIRM, against=variant(task, 40, 128))
    assert found.passed, found.reason
    pids = {pid for _, pid in runner.served}
    assert len(pids) == 1 and before not in pids and runner.respawns == 0
    assert [command for command, _ in runner.served].count("pair") == 3
    met = by_rival(found)
    assert set(met) == {
        (Rival.FIRST, CaseKind.SEARCH), (Rival.FIRST, CaseKind.CONFIRM), (Rival.CHAMPION, CaseKind.CONFIRM)
    }  # fmt: skip
    first, older = met[(Rival.FIRST, CaseKind.SEARCH)], met[(Rival.CHAMPION, CaseKind.CONFIRM)]
    assert first.case == "m64-n128" and first.ratio == pytest.approx(2.0, rel=0.03) and first.pairs >= 20
    assert first.low < first.ratio < first.high and first.verdict == "faster"
    assert older.case == "m32-n100" and older.ratio == pytest.approx(1.6, rel=0.03)
    assert found.claimed == pytest.approx(2.0, rel=0.03) and found.survived == pytest.approx(1.0, abs=0.05)
    assert refutation(found) == "" and all(one.claimed is None for one in met.values() if one is not first)
    assert {plan for case, _, plan in found.plans} >= {m.plan for m in found.measurements}


def test_a_new_best_is_checked_with_a_wide_range_of_values(task, judged):
    judge, _ = judged
    unsafe = Source(variant(task, 20, 32).text.replace("timed_20", "unsafe_20"))
    for _ in range(2):  # the second time its plan is known
        found = judge.evaluate(unsafe, Purpose.SCORE)
        assert found.status is Status.WRONG and found.score is None
        assert "is nan at" in found.reason


def test_what_is_slower_than_its_rivals_is_refuted(task, judged):
    judge, _ = judged
    slow = judge.evaluate(variant(task, 60, 64), Purpose.CONFIRM)
    assert slow.passed and "faster than the first kernel" in refutation(slow)
    assert slow.claimed is None and slow.survived is None  # no search has measured it
    second = judge.evaluate(variant(task, 40, 128), Purpose.CONFIRM, against=variant(task, 25, 512))
    assert second.passed and "slower than the champion" in refutation(second)


def test_the_first_kernel_may_be_its_own_champion(task, judged):
    judge, runner = judged
    runner.served.clear()
    found = judge.evaluate(task.seed, Purpose.CONFIRM)
    assert found.passed and refutation(found) == "" and found.survived is None
    assert {one.verdict for one in found.comparisons} == {SAME} and "pair" not in dict(runner.served)


def test_what_cannot_be_paired_is_timed_one_after_the_other(task, judged):
    judge, runner = judged
    runner.unpaired = True
    found = judge.evaluate(variant(task, 25, 512), Purpose.CONFIRM)
    runner.unpaired = False
    assert found.passed and refutation(found) == ""
    assert all(one.pairs == 0 and 1.8 < one.low < one.ratio < one.high < 2.2 for one in found.comparisons)
    assert all(one.verdict == "faster" for one in found.comparisons)


def test_a_rival_that_fails_says_nothing_about_the_candidate(task, judged):
    judge, _ = judged
    broken = variant(task, 30, 1024).text.replace("timed_30", "dies_30")
    found = judge.evaluate(variant(task, 25, 512), Purpose.CONFIRM, against=Source(broken))
    assert found.passed and {one.against for one in found.comparisons} == {Rival.FIRST}


def test_of_two_gpus_one_is_renewed_and_serves_alone(task):
    runners = [Runner(task, gpu) for gpu in (0, 1)]
    pool = RunnerPool(runners)
    try:
        pool.start()
        pool.ceilings()  # the first has served
        pids = [runner.info["pid"] for runner in runners]
        with pool.fresh() as fresh:
            assert fresh is runners[1] and fresh.info["pid"] == pids[1]  # it had served nobody
            assert pool.ceilings() and dict(runners[0].served) == {"ceilings": pids[0]}
        with pool.fresh() as fresh:
            assert fresh is runners[0] and fresh.info["pid"] != pids[0]
        with pytest.raises(InfraError), pool.fresh():
            raise InfraError("the GPU fell off the bus")
        with pool.fresh() as one, pool.fresh() as other:  # neither is left out
            assert {one, other} == set(runners)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("ratio", "claimed", "survived"), [(2.0, 4.0, 0.5), (4.0, 4.0, 1.0), (0.5, 4.0, -0.5), (1.1, 1.005, None)]
)
def test_what_survives_is_a_share_of_the_log_gain(ratio, claimed, survived):
    found = PairedComparison("a", CaseKind.SEARCH, Rival.FIRST, "p", ratio, ratio, ratio, 20, "-", claimed)
    hidden = replace(found, case="h", kind=CaseKind.CONFIRM, ratio=9.0, claimed=None)
    both = (found, replace(found, case="b"), hidden)
    modeled = replace(scored(FIRST, Purpose.CONFIRM), comparisons=both)
    assert modeled.survived is None  # the same model says the same again
    evaluation = replace(modeled, environment=replace(modeled.environment, kind="measured"))
    assert evaluation.survived == (None if survived is None else pytest.approx(survived))
    unknown = replace(evaluation, comparisons=(found, replace(found, case="b", claimed=None)))
    assert unknown.claimed is None and unknown.survived is None  # half a claim is none


def test_an_interval_that_holds_one_is_no_gain():
    low, high = math.exp(-0.01), math.exp(0.03)
    close = PairedComparison("a", CaseKind.SEARCH, Rival.FIRST, "p", 1.01, low, high, 100, "equal", 1.2)
    clear = replace(close, case="b", ratio=1.1, low=1.09, high=1.11)
    evaluation = replace(scored(FIRST, Purpose.CONFIRM), comparisons=(close,))
    assert "1.010x (0.990 to 1.030)" in refutation(evaluation)
    assert refutation(replace(evaluation, comparisons=(close, clear))) == ""
    older = replace(close, kind=CaseKind.CONFIRM, against=Rival.CHAMPION)
    assert refutation(replace(evaluation, comparisons=(clear, older))) == ""  # not shown to be slower


def test_others_go_on_beside_a_confirmation(task):
    """A thread that times baselines waits for the runner; the confirmation that has it waits for nobody."""
    runner = Runner(task)
    settings = JudgeSettings(tune_plans=0, deadline_s=DEADLINE_S)
    with PlanJudge(task, runner, settings) as judge, ThreadPoolExecutor() as pool:
        judge.start()
        sources = [variant(task, us, 512) for us in (25, 30, 35)]
        asked = [(sources[0], Purpose.CONFIRM), *((source, Purpose.SCORE) for source in sources)]
        found = [pool.submit(judge.evaluate, *one) for one in asked]
        assert all(one.result(timeout=60).passed for one in found)
