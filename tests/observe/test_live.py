"""Progress of a run, as lines in a log and as a live view."""

from __future__ import annotations

import io

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
