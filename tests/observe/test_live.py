"""Progress of a run, as lines in a log and as a live view."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from evo_kernel.errors import OperatorFailed
from evo_kernel.observe.live import Progress
from evo_kernel.types import Brief, Evaluation, Proposal, Purpose, Recorded, Relative, Source, Status
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, STRATEGY, TASK, scored

PARENT = Relative(1, FIRST, 0, 0, None)


def follow(progress: Progress) -> None:
    for attempt, source in enumerate((Source("time_us = 50.0\n"), Source("time_us = 60.0\n")), start=2):
        brief = Brief(attempt, CARD, PARENT, (), (), 0, (0,), ENVIRONMENT)
        proposal = Proposal(source, "scripted", STRATEGY)
        progress.attempt_started(brief)
        progress.proposed(brief, proposal)
        progress.judged(Recorded(attempt, brief, proposal), scored(source, Purpose.SCORE), attempt == 2)
    brief = Brief(4, CARD, PARENT, (), (), 0, (0,), ENVIRONMENT)
    progress.attempt_started(brief)
    progress.operator_failed(brief, OperatorFailed("nothing applies"))
    broken = Evaluation(
        FIRST.sha256, TASK, Purpose.SCORE, ENVIRONMENT, Status.WRONG, "row 3 [differs] from the reference"
    )
    progress.judged(Recorded(5, brief, Proposal(FIRST, "scripted")), broken, False)
    progress.trouble("the machine failed, 2 more tries: lost child")


def test_a_log_gets_one_calm_line_an_event() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100)
    with Progress(console, ENVIRONMENT, lambda: {"evaluations": 7.0}) as progress:
        follow(progress)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3  # the slower one and the failed proposal are counted, not told
    assert "candidate 2: shave → 2.000x, the best so far" in lines[0]
    assert "row 3 [differs] from the reference" in lines[1]  # brackets are not markup
    assert "lost child" in lines[2]
    assert "\x1b" not in out.getvalue()


def judged(progress: Progress, attempt: int, time_us: float) -> None:
    brief = Brief(attempt, CARD, PARENT, (), (), 0, (0,), ENVIRONMENT)
    source = Source(f"time_us = {time_us!r}\n")
    progress.attempt_started(brief)
    proposal = Proposal(source, "scripted", STRATEGY)
    progress.judged(Recorded(attempt, brief, proposal), scored(source, Purpose.SCORE), True)


def test_a_resumed_search_starts_from_what_it_holds() -> None:
    best = replace(PARENT, candidate=9, evaluation=scored(Source("time_us = 50.0\n"), Purpose.SCORE))
    progress = Progress(Console(file=io.StringIO()), ENVIRONMENT, dict, best)
    assert progress._state().startswith("best 2.000x")


def test_only_a_clearly_better_best_is_news() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=100), ENVIRONMENT, dict) as progress:
        for attempt, time_us in enumerate((50.0, 49.9, 49.8, 49.7, 40.0), start=2):
            judged(progress, attempt, time_us)
    told = [line.split("candidate ")[1].split(":")[0] for line in out.getvalue().splitlines()]
    assert told == ["2", "5", "6"]  # 0.2 and 0.4 % are not told, the third of them passes 0.5 %
    assert progress._state().startswith("best 2.500x")


def test_what_was_cut_off_is_counted() -> None:
    progress = Progress(Console(file=io.StringIO()), ENVIRONMENT, dict)
    progress.attempt_started(Brief(2, CARD, PARENT, (), (), 0, (0,), ENVIRONMENT))
    judged(progress, 3, 50.0)
    assert progress.in_flight == 1


def test_a_terminal_shows_the_state() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with Progress(console, ENVIRONMENT, lambda: {"evaluations": 7.0}) as progress:
        follow(progress)
        console.print(progress._view())
    shown = out.getvalue()
    assert "2.000x by candidate 2 (shave)   modeled (sm_90)" in shown
    assert "2 passed" in shown and "1 wrong" in shown and "1 no proposal" in shown
    assert "7 evaluations" in shown
