"""The last word of a run, as lines."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from evo_kernel.app.summary import _best_data, ended_line, raised, scale_line, standing_lines
from evo_kernel.app.variants import Variant
from evo_kernel.app.verdicts import (
    case_table,
    compared_lines,
    mixed_data,
    mixed_lines,
    show_evaluations,
    unknown_lines,
)
from evo_kernel.budget import Spent
from evo_kernel.config import BudgetConfig, load_config
from evo_kernel.engine import RunSummary
from evo_kernel.types import Compared, Evaluation, Purpose, ScoredCandidate, Source, Status
from tests.support.scripted import ENVIRONMENT, scored

SLOW, FAST = Source("time_us = 50.0\n"), Source("time_us = 40.0\n")


def relative(candidate: int, source: Source) -> ScoredCandidate:
    return ScoredCandidate(candidate, source, 0, 0, scored(source, Purpose.SCORE))


@pytest.mark.parametrize(
    ("best", "champion", "says"),
    [
        (relative(4, FAST), None, ["best: candidate 4, not confirmed, 2.500x first, modeled for an H200 (sm_90)"]),
        (
            relative(4, FAST),
            relative(4, FAST),
            ["champion: candidate 4, confirmed, 2.500x first, modeled for an H200 (sm_90)"],
        ),
        (
            relative(4, FAST),
            relative(3, SLOW),
            [
                "champion: candidate 3, confirmed, 2.000x first, modeled for an H200 (sm_90)",
                "faster, not confirmed: candidate 4, 2.500x first",
            ],
        ),
        (None, None, []),
    ],
)
def test_a_champion_is_told_from_a_best(
    best: ScoredCandidate | None, champion: ScoredCandidate | None, says: list[str]
) -> None:
    assert standing_lines(best, champion, ENVIRONMENT.label) == says


def test_what_a_score_is_relative_to() -> None:
    assert scale_line(ENVIRONMENT).startswith("score: torch.compile's kernels, modeled too, / kernel")
    assert scale_line(replace(ENVIRONMENT, kind="measured")).startswith("score: fastest baseline / kernel")


def test_the_next_command_raises_what_was_reached() -> None:
    config = load_config(None, ["budget.evaluations=60", "budget.hours=0.05"])
    ended = RunSummary("the budget is spent", "budget", 9, {}, {}, 100.0, Spent(evaluations=61, hours=0.03), None)
    assert raised(config, ended) == " --for 2m"
    assert raised(config, replace(ended, wall_s=180.2, spent=Spent(hours=0.0503), out_of_time=True)) == " --for 4m"
    money = config.model_copy(update={"budget": BudgetConfig(dollars=2.5)})
    assert raised(money, replace(ended, spent=Spent(dollars=2.6))) == " --set budget.dollars=+2.5"
    assert raised(config, replace(ended, cause="interrupted")) == ""


def test_the_last_word_says_what_ended_the_run() -> None:
    budget = "the budget of 1m is spent, 16 s of it kept for confirmation"
    ended = RunSummary(budget, "budget", 9, {}, {}, 44.0, Spent(), None, confirming_s=9.4)
    assert ended_line(ended, 55.3) == f"ended after 55s, 11 s of it to start: {budget}; confirmation took 9 s"
    stopped = replace(ended, why="stopped by SIGINT", confirming_s=0.0)
    assert ended_line(stopped, 44.2) == "ended after 44s: stopped by SIGINT"


def test_several_sources_stand_above_baselines_and_floor(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for source in (SLOW, FAST):
        one = scored(source, Purpose.SCORE)
        times = {"eager": 90.0, "torch.compile": 75.0}
        measured = replace(one.measurements[0], baselines_us=times, light_share=20.0 / one.measurements[0].median_us)
        found.append(replace(one, measurements=(measured,)))
    broken = Evaluation(SLOW.sha256, "task", Purpose.SCORE, ENVIRONMENT, Status.WRONG, "row 3 differs\x1b[2J")
    variants = [
        Variant("slow.py", (), SLOW),
        Variant("[/]broken.py", (), SLOW),
        Variant("fast.py", (("BLOCK", 64),), FAST),
    ]
    show_evaluations(variants, [found[0], broken, found[1]])
    shown = capsys.readouterr().out
    assert "score: torch.compile / kernel" in shown and "[/]broken.py: wrong: row 3 differs\\x1b[2J\n" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("│")]
    assert rows[0][3] == "BLOCK=64"
    assert [(row[1], row[-2]) for row in rows] == [
        ("fast.py", "40.0"), ("slow.py", "50.0"), ("[/]broken.py", "-"), ("eager", "90.0"), ("torch.compile", "75.0"),
        ("floor", "20.0"),
    ]  # fmt: skip


def test_a_dash_has_its_reason() -> None:
    evaluation = scored(SLOW, Purpose.SCORE)
    known = replace(evaluation, measurements=(replace(evaluation.measurements[0], light_share=0.5),))
    assert unknown_lines(known) == []
    (reason,) = unknown_lines(evaluation)
    assert reason.startswith("floor not known on large: ") and "bytes(case)" in reason
    alone = replace(known, measurements=(replace(known.measurements[0], baselines_us={}),))
    assert unknown_lines(alone) == ["speed-up not known on large: no baseline was timed"]


def mixed(kind: str, details: dict[str, float]) -> Evaluation:
    evaluation = scored(SLOW, Purpose.SCORE)
    measurements = tuple(replace(m, details=details) for m in evaluation.measurements)
    return replace(evaluation, measurements=measurements, environment=replace(ENVIRONMENT, kind=kind))


def test_torch_operations_are_named_with_what_is_known_of_their_time() -> None:
    assert mixed_lines(scored(SLOW, Purpose.SCORE)) == [] and mixed_data(scored(SLOW, Purpose.SCORE)) == {}
    modeled = mixed_lines(mixed("modeled", {"aten.mm.default": 2.0, "aten.topk.default": 1.0, "own_share": 0.25}))
    assert "mm.default (2 times), topk.default; 25% of the time is in its own kernels, modeled" in modeled[0]
    assert "do not believe a speed-up over them" in modeled[1]
    measured = mixed_lines(mixed("measured", {"aten.mm.default": 1.0, "wall_share": 0.9}))
    assert len(measured) == 1 and "was not measured apart" in measured[0]


def test_names_in_a_table_command_no_terminal() -> None:
    timed = replace(scored(SLOW, Purpose.SCORE).measurements[0], case="a\x1b[2J", baselines_us={"eager\x1b[2J": 90.0})
    evaluation = replace(scored(SLOW, Purpose.SCORE), measurements=(timed,))
    out = io.StringIO()
    Console(file=out, width=200).print(case_table(evaluation, "measured (a GPU)"))
    assert "\x1b[2J" not in out.getvalue() and out.getvalue().count(r"\x1b[2J") == 2


def test_the_denominator_is_marked_and_every_baseline_has_its_time() -> None:
    evaluation = scored(SLOW, Purpose.SCORE)
    first = replace(evaluation.measurements[0], case="a", baselines_us={"eager": 90.0, "torch.compile": 75.0})
    second = replace(first, case="b", baselines_us={"eager": 60.0})
    out = io.StringIO()
    console = Console(file=out, width=120)
    console.print(case_table(replace(evaluation, measurements=(first, second)), "measured (a GPU)"))
    title, shown = out.getvalue().splitlines()[0], {row[2]: row for row in out.getvalue().splitlines() if len(row) > 2}
    assert title.startswith("times in µs, measured (a GPU) (* the denominator)")
    assert "90.0 " in shown["a"] and "75.0*" in shown["a"] and "1.50x" in shown["a"]
    assert "60.0*" in shown["b"] and "1.20x" in shown["b"]
    best = ScoredCandidate(1, SLOW, 0, 0, replace(evaluation, measurements=(first, second)))
    cases = (_best_data(best) or {})["cases"]
    assert [cases[name]["denominator"] for name in "ab"] == ["torch.compile", "eager"]
    out.seek(0), out.truncate()
    console.print(case_table(evaluation, "modeled for an H200 (sm_90)"))
    assert "*" not in out.getvalue()  # one alone needs no mark


@pytest.mark.parametrize(
    ("compared", "says"),
    [
        (None, []),
        (
            Compared(0.0314, 4096, 4096, whole=True),
            ["  ok large, timed: off by 0.0314x what is allowed (all programs, all 4,096 output elements compared)"],
        ),
        (
            Compared(0.5, 1200, 16_777_216, whole=False),
            ["  ok large, timed: off by 0.5x what is allowed (programs that were drawn, 1,200 of 16,777,216 output "
             "elements compared)"],
        ),
    ],
)  # fmt: skip
def test_what_was_compared_at_the_timed_size(compared: Compared | None, says: list[str]) -> None:
    evaluation = scored(SLOW, Purpose.SCORE)
    details = {"dram": 3.0} | (compared.as_details() if compared is not None else {})
    timed = replace(evaluation.measurements[0], details=details)
    assert timed.compared == compared
    assert compared_lines(replace(evaluation, measurements=(timed,))) == says
