"""Progress of a run for people: a calm live view on a terminal, plain lines in a log."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Environment, Evaluation, Proposal, Recorded, Relative

LINES = 8  # last events on screen
EVERY_S = 10.0  # a plain line at least this often, when something happened
NEWS = 1.005  # a new best is told when it is this much faster than the last one told


class Progress:
    """An engine's Observer. Use as a context manager around the run. Thread-safe.

    `best`: what the population held when the run began; a resumed one starts from there.
    """

    def __init__(
        self,
        console: Console,
        environment: Environment,
        left: Callable[[], dict[str, float]],
        best: Relative | None = None,
    ) -> None:
        self._console, self._environment, self._left = console, environment, left
        self._lock = threading.Lock()
        self._events: deque[str] = deque(maxlen=LINES)
        self._statuses: Counter[str] = Counter()
        self._in_flight: dict[int, str] = {}
        self._best = _standing(best)
        self._told = self._best[0] if self._best else 0.0
        self._began = self._last_line = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._view, console=self._console, refresh_per_second=2, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def attempt_started(self, brief: Brief) -> None:
        with self._lock:
            self._in_flight[brief.attempt] = "thinking"

    def proposed(self, brief: Brief, proposal: Proposal) -> None:
        with self._lock:
            name = proposal.strategy.name if proposal.strategy else proposal.operator
            self._in_flight[brief.attempt] = f"judging {name}"

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None:
        del failure
        with self._lock:
            self._in_flight.pop(brief.attempt, None)
            self._statuses["no proposal"] += 1

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        with self._lock:
            self._in_flight.pop(recorded.brief.attempt, None)
            self._statuses[evaluation.status.value] += 1
            strategy = recorded.proposal.strategy.name if recorded.proposal.strategy else recorded.proposal.operator
            if is_best and evaluation.score is not None:
                self._best = (evaluation.score, recorded.candidate, strategy)
            if is_best and evaluation.score is not None and evaluation.score >= self._told * NEWS:
                self._told = evaluation.score
                self._note(f"candidate {recorded.candidate}: {strategy} → {evaluation.score:.3f}x, the best so far")
            elif not evaluation.passed:
                self._note(
                    f"candidate {recorded.candidate}: {strategy} → {evaluation.status}: {evaluation.reason[:110]}"
                )
            elif self._live is None and time.monotonic() - self._last_line > EVERY_S:
                self._note(self._state())

    def trouble(self, message: str) -> None:
        with self._lock:
            self._note(message)

    @property
    def in_flight(self) -> int:
        """Attempts that have started and not ended: after a run, those that were cut off."""
        with self._lock:
            return len(self._in_flight)

    def _note(self, line: str) -> None:
        self._events.append(line)
        self._last_line = time.monotonic()
        if self._live is None:
            stamp = f"[{time.monotonic() - self._began:6.1f} s] "
            self._console.print(Text(stamp + " ".join(line.split())), soft_wrap=True)

    def _state(self) -> str:
        best = f"best {self._best[0]:.3f}x" if self._best else "nothing passed yet"
        counts = ", ".join(f"{count} {name}" for name, count in self._statuses.most_common())
        return f"{best} · {counts or 'starting'}"

    def _view(self) -> Group:
        with self._lock:
            table = Table.grid(padding=(0, 2))
            score = f"{self._best[0]:.3f}x by candidate {self._best[1]} ({self._best[2]})" if self._best else "none yet"
            table.add_row("best", Text(f"{score}   {self._environment.label}"))
            counts = ", ".join(f"{count} {name}" for name, count in self._statuses.most_common())
            table.add_row("judged", counts or "nothing yet")
            table.add_row("in flight", ", ".join(self._in_flight.values()) or "-")
            left = ", ".join(f"{value:.3g} {name.replace('_', ' ')}" for name, value in self._left().items())
            table.add_row("left", left or "no limit")
            return Group(table, *(Text("  " + " ".join(line.split())) for line in self._events))


def _standing(best: Relative | None) -> tuple[float, int, str] | None:
    """Score, candidate and last strategy of what a population holds."""
    if best is None or best.evaluation is None or best.evaluation.score is None:
        return None
    return best.evaluation.score, best.candidate, best.strategies[-1].name if best.strategies else "first kernel"
