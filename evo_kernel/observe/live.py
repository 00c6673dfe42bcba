"""What a run shows on a terminal: a calm live view, or plain lines that are never cropped where it is a log."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evo_kernel.errors import OperatorFailed
from evo_kernel.observe.formatting import busy_text, progress_text, stages_text, state_text
from evo_kernel.types import Brief, Environment, Evaluation, PipelineState, Purpose, Recorded, ScoredCandidate, escaped

PIPED_COLUMNS = 10_000  # rich crops and wraps to a width; text that goes to no terminal has none


def open_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; without one, plain text whose lines are as long as they are. Names of files
    and cases are no markup."""
    console = Console(stderr=stderr, markup=False)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, markup=False, width=PIPED_COLUMNS, color_system=None)


def say(console: Console, *lines: str, style: str = "") -> None:
    """Lines as they are: nothing in them is markup, and none is broken."""
    for line in lines:
        console.print(Text(escaped(line), style=style), soft_wrap=True)


LINES = 8  # last events on screen
QUIET_S, EVERY_S = 10.0, 30.0  # after so long without a line, and at least so often, a log is told where things stand
NEWS = 0.005  # a new best is told when its log time is this much less than that of the last one told


class LiveProgress:
    """An engine's Observer. Use as a context manager around the run. Thread-safe.

    `best`: what the population held when the run began; a resumed one starts from there. `pipeline`: what everything
    in flight is doing, asked for whenever it is shown.
    """

    def __init__(
        self,
        console: Console,
        environment: Environment,
        left: Callable[[], dict[str, float]],
        best: ScoredCandidate | None = None,
        pipeline: Callable[[], PipelineState] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._environment, self._left, self._pipeline = console, environment, left, pipeline
        self._clock, self._lock = clock, threading.Lock()
        self.events: deque[str] = deque(maxlen=LINES)
        self._verdicts: dict[int, str] = {}  # the latest of each candidate, confirmations left out
        self._without_proposal = 0
        self._in_flight: set[int] = set()
        self._best = _standing(best)
        self._told_log_us = best.evaluation.standing if best is not None and best.evaluation is not None else math.inf
        self._began = self._last_line = self._last_state = self._clock()
        self._live: Live | None = None

    def __enter__(self) -> LiveProgress:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.view, console=self._console, refresh_per_second=2, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def attempt_started(self, brief: Brief) -> None:
        with self._lock:
            self._in_flight.add(brief.attempt)
            self._tell_state(self._clock())

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None:
        del failure
        with self._lock:
            self._in_flight.discard(brief.attempt)
            self._without_proposal += 1
            self._tell_state(self._clock())

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        with self._lock:
            self._in_flight.discard(recorded.brief.attempt)
            if evaluation.purpose is not Purpose.CONFIRM:
                self._verdicts[recorded.candidate] = evaluation.status.value
            strategy = recorded.proposal.strategy.name if recorded.proposal.strategy else recorded.proposal.operator
            of_best = self._best is not None and self._best[1] == recorded.candidate  # it has a score by now
            if is_best or (of_best and evaluation.passed and evaluation.purpose is Purpose.SCORE):
                self._best = (progress_text(evaluation), recorded.candidate, strategy)
            if is_best and evaluation.standing <= self._told_log_us - NEWS:
                self._told_log_us = evaluation.standing
                self._note(f"candidate {recorded.candidate}: {strategy} → {progress_text(evaluation)}, the best so far")
            elif not evaluation.passed:
                self._note(
                    f"candidate {recorded.candidate}: {strategy} → {evaluation.status}: {evaluation.reason[:110]}"
                )
            self._tell_state(self._clock())

    def confirming(self, candidate: int, expected_s: float) -> None:
        with self._lock:
            self._note(f"confirming candidate {candidate} on hidden cases, about {expected_s:.0f} s")

    def trouble(self, message: str) -> None:
        """What must stay to be read: on a terminal it goes above the view."""
        with self._lock:
            if self._live is None:
                self._note(message)
                return
        # Not under the lock: printing waits for the view's own, whose holder may wait for this one.
        self._console.print(Text(self._stamp() + _line(message)), soft_wrap=True)

    @property
    def in_flight(self) -> int:
        """Attempts that have started and not ended: after a run, those that were cut off."""
        with self._lock:
            return len(self._in_flight)

    def _tell_state(self, now: float) -> None:
        if self._live is None and (now - self._last_line > QUIET_S or now - self._last_state > EVERY_S):
            self._last_state = now
            self._note(self.state())

    def _note(self, line: str) -> None:
        line = _line(line)
        self.events.append(line)
        self._last_line = self._clock()
        if self._live is None:
            self._console.print(Text(self._stamp() + line), soft_wrap=True)

    def _stamp(self) -> str:
        return f"[{self._clock() - self._began:6.1f} s] "

    def state(self) -> str:
        """Where the search stands, in a line."""
        best = f"best {self._best[0]}" if self._best else "nothing passed yet"
        doing = f" · {state_text(self._pipeline())}" if self._pipeline else ""
        return f"{best} · {self._counts() or 'starting'}{doing}"

    def _counts(self) -> str:
        told = [f"{count} {name}" for name, count in Counter(self._verdicts.values()).most_common()]
        return ", ".join([*told, *([f"{self._without_proposal} no proposal"] if self._without_proposal else [])])

    def view(self) -> Group:
        """What a terminal shows."""
        with self._lock:
            table = Table.grid(padding=(0, 2))
            table.add_column(no_wrap=True)
            for name, value in self.rows():
                table.add_row(name, Text(escaped(value), no_wrap=True, overflow="ellipsis"))
            events = (Text("  " + line, no_wrap=True, overflow="ellipsis") for line in self.events)
            return Group(table, *events)

    def rows(self) -> Iterator[tuple[str, str]]:
        score = f"{self._best[0]} by candidate {self._best[1]} ({self._best[2]})" if self._best else "none yet"
        yield "best", f"{score}   {self._environment.label}"
        yield "judged", self._counts() or "nothing yet"
        if self._pipeline is None:
            yield "in flight", str(len(self._in_flight))
        else:
            state = self._pipeline()
            yield "in flight", stages_text(state)
            if busy := busy_text(state):
                yield "GPU", busy
        yield "left", ", ".join(_left_text(name, value) for name, value in self._left().items()) or "no limit"


def _line(text: str) -> str:
    """Text of others as one line, which commands no terminal."""
    return escaped(" ".join(text.split()))


def _standing(best: ScoredCandidate | None) -> tuple[str, int, str] | None:
    """Score, candidate and last strategy of what a population holds."""
    if best is None or best.evaluation is None:
        return None
    return progress_text(best.evaluation), best.candidate, best.strategies[-1].name if best.strategies else "root"


def _left_text(name: str, value: float) -> str:
    """What is left of a limit; hours in minutes when they are few."""
    if name == "hours" and value < 2:
        return f"{60 * value:.1f} min"
    return f"{value:.3g} {name.replace('_', ' ')}"
