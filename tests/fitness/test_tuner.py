"""The tuner's proposals, and the race in which the judge tries them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import pytest

from evo_kernel.fitness.evaluation_context import EvaluationContext, PartialEvaluation
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.record.recorder import Configurations
from evo_kernel.fitness.runners.base import Checked, PlanSetAnswer
from evo_kernel.fitness.stages import Stages
from evo_kernel.fitness.tuning.proposals import BATCH, Knob, Search, Space, find_knobs, knob_groups, too_large
from evo_kernel.fitness.tuning.tuning import Tuning
from evo_kernel.tasks.loading import load
from evo_kernel.types import Environment, Measurement, Purpose, Source, Status
from tests.support.small_tasks import small_softmax

SOURCE = Source("# any\n")
KNOBS = (Knob("BLOCK", 64, (16, 32, 64, 128, 256, 512)), Knob("NUM_WARPS", 4, (1, 2, 4, 8, 16)))


def cost(setting):
    """Log time with its optimum at BLOCK 256, 2 warps."""
    chosen = {"BLOCK": 64, "NUM_WARPS": 4} | dict(setting)
    return abs(math.log2(chosen["BLOCK"] / 256)) + abs(math.log2(chosen["NUM_WARPS"] / 2))


def tuned(seed, count=16):
    search, tried = Search(seed, SOURCE, [Space(KNOBS)], count, cost(())), []
    for batch in search.batches():
        assert 1 <= len(batch) <= BATCH
        tried += batch
        for setting in batch:
            search.tell(setting, cost(setting))
    return tried


def test_settings_are_distinct_other_than_the_own_and_deterministic():
    tried = tuned(1)
    assert len(tried) == len(set(tried)) == 16
    assert () not in tried  # only what differs from the source's own is named
    assert all(dict(setting).get("BLOCK") != 64 for setting in tried)
    assert tried == tuned(1) != tuned(2)


def test_what_was_told_steers_what_is_tried():
    """The best lies three steps away; twelve draws from all thirty settings find it in 8 of 20 searches."""
    assert sum(min(map(cost, tuned(seed, 12))) == 0.0 for seed in range(20)) >= 12


def test_a_suggested_setting_is_tried_first_and_what_follows_starts_from_it():
    search, tried = Search(1, SOURCE, [Space(KNOBS)], 8, cost(())), []
    best = (("BLOCK", 256), ("NUM_WARPS", 2))
    search.suggest(best)
    for batch in search.batches():
        tried += batch
        for setting in batch:
            search.tell(setting, cost(setting))
        search.suggest(best)
    assert tried[0] == best and tried.count(best) == 1 and len(tried) == 8
    assert tried[1:BATCH] == tuned(1, 8)[: BATCH - 1]  # it is not known yet whether it is good
    assert min(map(cost, tuned(1, 8)[:BATCH])) > cost(best) == 0


def test_a_suggestion_that_is_slower_or_unknown_changes_nothing_further():
    worst, other = (("BLOCK", 16), ("NUM_WARPS", 16)), (("BLOCK", 48), ("STAGES", 3))
    for suggested, more in ((worst, [worst]), (other, [])):
        search, tried = Search(1, SOURCE, [Space(KNOBS)], 8 + len(more), cost(())), []
        search.suggest(suggested)
        for batch in search.batches():
            tried += batch
            for setting in batch:
                search.tell(setting, cost(setting))
            search.suggest(suggested)
        assert tried[: len(more)] == more and len(tried) == 8 + len(more)
        assert tried[len(more) : BATCH] == tuned(1)[: BATCH - len(more)]


def test_failures_do_not_stop_it_and_a_small_space_ends():
    search = Search(0, SOURCE, [Space(KNOBS[1:])], 100)
    tried = []
    for batch in search.batches():
        tried += batch
        for setting in batch:
            search.tell(setting, None)
    assert sorted(tried) == [(("NUM_WARPS", n),) for n in (1, 2, 8, 16)]
    assert list(Search(0, SOURCE, [], 8).batches()) == [] == list(Search(0, SOURCE, [Space(KNOBS)], 0).batches())


SPACES = [
    Space(tuple(Knob(f"{name}_{knob.name}", knob.value, knob.choices) for knob in KNOBS), weight)
    for name, weight in (("MATMUL", 8.0), ("ADD_ROWS", 2.0), ("RELU", 1.0))
]


def cost_of_three(setting):
    """Log time of three kernels one after the other, the first of which takes most of it."""
    us = 0.0
    for name, share in (("MATMUL", 80.0), ("ADD_ROWS", 18.0), ("RELU", 2.0)):
        own = tuple((key.removeprefix(f"{name}_"), value) for key, value in setting if key.startswith(f"{name}_"))
        us += share * (1 + cost(own))
    return math.log(us)


def test_kernels_are_tuned_one_by_one_and_their_best_together():
    best = []
    for seed in range(10):
        search, told = Search(seed, SOURCE, SPACES, 12, cost_of_three(())), {}
        for batch in search.batches():
            for setting in batch:
                told[setting] = cost_of_three(setting)
                search.tell(setting, told[setting])
        assert 12 <= len(told) <= 13
        matmuls = {tuple(part for part in setting if part[0].startswith("MATMUL")) for setting in told}
        assert len(matmuls - {()}) >= 5  # most settings are for what takes most of the time
        best.append(min(told.values()))
    gained = cost_of_three(()) - sum(best) / len(best)
    optimum = cost_of_three(()) - math.log(100.0)
    assert gained > 0.5 * optimum


def test_gains_that_do_not_add_up_are_forgotten():
    """Two kernels that are each better with a change, and worse with both."""

    def both(setting):
        changed = {name.split("_")[0] for name, _ in setting}
        return {0: 0.0, 1: -0.3}.get(len(changed), 0.5)

    search = Search(3, SOURCE, [replace(space, weight=1.0) for space in SPACES[:2]], 40)
    told = {}
    for batch in search.batches():
        for setting in batch:
            told[setting] = both(setting)
            search.tell(setting, told[setting])
    assert min(told.values()) == -0.3
    assert sum(cost < 0 for cost in told.values()) >= 12  # it does not stay with what is worse together


@pytest.mark.parametrize(
    ("setting", "large"),
    [
        ((("BLOCK", 65536),), False),  # one row block: a loop's tile, not an accumulator
        ((("BLOCK_M", 128), ("BLOCK_N", 256), ("NUM_WARPS", 8)), False),
        ((("BLOCK_M", 256), ("BLOCK_N", 256), ("NUM_WARPS", 16)), True),
        ((("BLOCK_M", 256), ("BLOCK_N", 64), ("NUM_WARPS", 1)), True),  # 512 elements a thread
        ((("BLOCK_M", 256), ("BLOCK_N", 64)), False),  # at Triton's own 4 warps
        ((("BLOCK_M", 256), ("BLOCK_N", 128)), True),
        ((("BLOCK_K", 256), ("BLOCK_M", 128), ("BLOCK_N", 256), ("NUM_WARPS", 8)), True),
    ],
)
def test_what_is_too_large(setting, large):
    assert too_large(setting) is large


def test_what_a_knob_is_follows_from_the_end_of_its_name():
    text = "".join(f"{name} = {value}\n" for name, value in {
        "ADD_ROWS_BLOCK": 1024, "GROUP_NORM_BLOCK": 64, "ROWS": 4, "ROWS_2": 1, "GROUP_M": 8, "SPLIT_K": 1, "NUM_WARPS_2": 4,
    }.items())  # fmt: skip
    names = "ADD_ROWS_BLOCK, GROUP_NORM_BLOCK, ROWS, ROWS_2, GROUP_M, SPLIT_K, NUM_WARPS_2"
    choices = {
        knob.name: knob.choices for knob in find_knobs(Source(f"{text}\ndef run(x):\n    k[(1,)](x, {names})\n"))
    }
    assert choices["ADD_ROWS_BLOCK"] == (256, 512, 1024, 2048, 4096, 8192) and max(choices["GROUP_NORM_BLOCK"]) == 512
    powers = (1, 2, 4, 8, 16)
    assert {choices[n] for n in ("ROWS", "ROWS_2", "GROUP_M", "SPLIT_K", "NUM_WARPS_2")} == {powers}
    assert too_large((("SPLIT_NORM_BLOCK_M", 512), ("SPLIT_NORM_BLOCK_N", 512)))


def test_knobs_of_methods_are_found():
    text = "BLOCK = 64\n\n\nclass Twice:\n    def forward(self, x):\n        k[(1,)](x, BLOCK)\n"
    assert [knob.name for knob in find_knobs(Source(text))] == ["BLOCK"]
    twice = find_knobs(Source(text.replace("BLOCK = 64", "BLOCK = 32\nBLOCK = 64")))
    assert [(knob.name, knob.value) for knob in twice] == [("BLOCK", 64)]  # the last one counts


def test_knobs_are_grouped_by_the_launches_that_take_them():
    source = Source("""
A, B, C, D, E = 1, 2, 3, 4, 5
BLOCK = 64
WARPS = 4
FREE = 8
SHARED = 16
OTHER = 32


def run(x):
    blocks = x.numel() // FREE
    first[(x.numel() // BLOCK,)](x, BLOCK=BLOCK, num_warps=WARPS)
    second[(blocks,)](x, BLOCK=SHARED)
    third[lambda meta: (1,)](x, BLOCK=SHARED, MORE=OTHER)
""")
    knobs = find_knobs(source, {"first": Configurations(("a", "b", "c"))})
    grouped = [({knob.name for knob in group.knobs}, set(group.kernels)) for group in knob_groups(source, knobs)]
    assert grouped == [
        ({"BLOCK", "WARPS", "first.config"}, {"first"}),
        ({"FREE"}, set()),
        ({"SHARED", "OTHER"}, {"second", "third"}),
    ]
    alone = Source("BLOCK = 64\nFREE = 8\n\n\ndef run(x):\n    k[(x.numel() // FREE,)](x, BLOCK)\n    return FREE\n")
    (group,) = knob_groups(alone, find_knobs(alone))
    assert len(group.knobs) == 2


def test_a_tile_size_that_no_knob_sets_counts():
    narrow = (("BLOCK_M", 256), ("BLOCK_N", 16), ("NUM_WARPS", 1))
    assert not too_large(narrow) and too_large(narrow, (128,))
    assert not too_large((("BLOCK", 65536),), (128,))


def test_the_longer_a_source_was_tuned_the_nearer_it_must_be_to_the_best():
    tuning = Tuning(None, 0, 1.5)  # nothing is graded here
    tuning.note_best(0.0)
    assert [tuning.is_worth(math.log(1.4), rounds) for rounds in (0, 1, 2)] == [True, False, False]
    assert [tuning.is_worth(math.log(1.2), rounds) for rounds in (0, 1, 2)] == [True, True, False]


def test_tile_sizes_of_products_are_explored_one_by_one_and_then_together():
    text = "BLOCK_M = 64\nBLOCK_N = 32\nBLOCK_K = 32\nNUM_WARPS = 4\n" + (
        "\n\ndef run(x):\n    k[(1,)](x, BLOCK_M, BLOCK_N, BLOCK_K, num_warps=NUM_WARPS)\n"
    )
    source = Source(text)
    search = Search(0, source, [Space(find_knobs(source), multiplies=True)], 8)
    batches = search.batches()
    first = next(batches)
    assert first[:3] == [(("BLOCK_M", 128),), (("BLOCK_N", 64),), (("BLOCK_K", 64),)]
    for setting in first:
        search.tell(setting, 0.1 if setting == (("BLOCK_M", 128),) else -0.1)
    second = next(batches)
    assert second[0] == (("BLOCK_K", 64), ("BLOCK_N", 64))
    assert not {*first} & {*second}


class ScriptedRunner:
    """A plan's time follows from its warps. With 1 or 8 it does less work while nobody looks; with 1 it is wrong then."""

    arch = 90
    busy_s = 0.0
    card = ""
    baseline_faults: ClassVar[dict[str, str]] = {}

    def __init__(self, task):
        self.task, self.timed, self.requests, self.stages = task, [], [], Stages()

    def start(self): ...

    def close(self): ...

    def environment(self, confinement):
        return Environment("modeled", "sm_90", "", "-", "-", True, 1, confinement)

    def check(self, plan, case, rounds):
        return Checked(Status.PASSED, "", plan.plan.kernels[0].num_warps / 16)

    def ceilings(self):
        return {}

    def answer(self, request):
        self.requests.append(request)
        timings = []
        for part in request.timings:
            timings.append(self.measure(part.plan, part.case, part.seed, part.checked, part.against_us))
            if isinstance(timings[-1], Checked):
                break
        return PlanSetAnswer(
            tuple(self.check(part.plan, part.case, part.rounds) for part in request.checks), tuple(timings)
        )

    def measure(self, plan, case, seed, checked=True, against_us=None):
        warps = plan.plan.kernels[0].num_warps
        self.timed.append((case.name, warps))
        if checked and warps == 1:
            return Checked(Status.WRONG, "right when checked, wrong when timed")
        us = {1: 40.0, 2: 50.0, 4: 80.0, 8: 90.0 if checked else 45.0, 16: 300.0}[warps]
        return Measurement(case.name, plan.hash, us, 0.0, 5, us, us, {})

    def baselines(self, case):
        return {"eager": 80.0}


@pytest.fixture(scope="module")
def raced():
    task = load("softmax")
    source = Source(task.seed.text.replace("BLOCK = ", "BLOCK_ = ").replace("BLOCK=BLOCK", "BLOCK=1024"))
    runner = ScriptedRunner(task)
    judge = PlanJudge(task, runner, JudgeSettings(tune_plans=8))
    judge.start()
    with judge:
        evaluation = judge.evaluate(source, Purpose.SCORE)
    return source, runner, evaluation


ONE_KERNEL = {"check": [{"m": 5, "n": 144}], "search": [{"m": 64, "n": 128}]}
"""Sizes that a kernel is compiled once for."""


def test_a_kernel_far_behind_one_that_was_only_measured_is_not_tuned(tmp_path):
    """As the slower one of two roots, which are measured first and tuned then."""
    task = small_softmax(tmp_path, ONE_KERNEL)
    slow, fast = (Source(f"NUM_WARPS = {n}\n" + task.seed.text.replace("NUM_WARPS = 4\n", "")) for n in (4, 2))
    judge = PlanJudge(task, ScriptedRunner(task), JudgeSettings(tune_plans=8))
    judge.start()
    with judge:
        assert judge.evaluate(fast, Purpose.SCORE, remeasure=True).charged == {"score": 1}
        assert judge.evaluate(slow, Purpose.SCORE, remeasure=True).charged == {"score": 1}
        assert judge.evaluate(slow, Purpose.SCORE).charged == {}  # 80 µs beside 50


def test_a_child_of_an_untuned_parent_begins_with_what_its_parent_was_tuned_to(tmp_path):
    """Both are written with 4 warps, and 2 are best; the child may try one setting."""
    task = small_softmax(tmp_path, ONE_KERNEL)
    parent = Source(task.seed.text.replace("BLOCK = ", "BLOCK_ = ").replace("BLOCK=BLOCK", "BLOCK=1024"))
    knobs = []
    for number in range(2):
        child, runner = Source(f"{parent.text}\n# child {number}\n"), ScriptedRunner(task)
        for before in ((), (parent,)):
            judge = PlanJudge(task, runner, JudgeSettings(tune_plans=1, tune_within=4.0))
            judge.start()
            with judge:
                for source in before:
                    assert judge.evaluate(source, Purpose.SCORE, effort=8).knobs == (("NUM_WARPS", 2),)
                knobs.append(judge.evaluate(child, Purpose.SCORE).knobs)
    alone, after = knobs[::2], knobs[1::2]
    assert set(after) == {(("NUM_WARPS", 2),)} != set(alone)


def test_the_best_setting_wins(raced):
    source, _, evaluation = raced
    assert [knob.name for knob in find_knobs(source)] == ["NUM_WARPS"]
    assert evaluation.knobs == (("NUM_WARPS", 2),)
    assert evaluation.score == pytest.approx(80.0 / 50.0)
    assert evaluation.charged == {"score": 1, "tune": 3}


def test_a_setting_is_asked_about_once(raced):
    """The source's own: checks and times. Those that were ahead in the race: checks. All in one request each."""
    _, runner, evaluation = raced
    checks = [case.name for case in runner.task.cases if case.kind == "check"]
    assert [[part.case.name for part in request.checks] for request in runner.requests] == 4 * [checks]
    assert [bool(request.timings) for request in runner.requests] == [True, False, False, False]
    assert [(check.case, check.error) for check in evaluation.checks] == [(case, 2 / 16) for case in checks]  # scored
    assert len(evaluation.verdicts) == 4 * len(checks) + 3 * 2 + 1  # two cases timed, one where the first was wrong


def test_what_failed_has_no_times_and_what_stood_beside_it_costs():
    times = (Measurement("c", "p", 50.0, 0.0, 0, 50.0, 50.0, {"eager": 100.0}),)
    own = PartialEvaluation(measurements=times, plans=(("c", (), "p"),), charged={"score": 1})
    raced = PartialEvaluation(Checked(Status.WRONG, "off"), plans=(("c", (("W", 2),), "q"),), charged={"tune": 1})
    context = EvaluationContext(Source("def run(): ..."), Purpose.SCORE, ScriptedRunner(None))
    environment = context.runner.environment("")
    beside, after = (f.evaluation(context, "task", environment) for f in (own.beside([raced, raced]), own.then(raced)))
    assert beside.passed and beside.score == 2.0 and beside.measurements == times
    assert after.status is Status.WRONG and after.score is None and not after.measurements
    assert beside.charged == {"score": 1, "tune": 2} and after.charged == {"score": 1, "tune": 1}
    assert beside.plans == after.plans == own.plans + raced.plans


def test_what_falls_behind_is_not_timed_on_the_other_cases(raced):
    _, runner, _ = raced
    first, second = (case.name for case in runner.task.cases if case.kind == "search")
    assert (first, 16) in runner.timed and (second, 16) not in runner.timed
    assert (first, 2) in runner.timed and (second, 2) in runner.timed
