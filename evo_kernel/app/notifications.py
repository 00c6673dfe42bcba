"""`on_event`: runs the user's command for a new best, a new champion and the end. Its failures do not stop a search."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from evo_kernel.config import Config
from evo_kernel.engine import Observer, RunSummary
from evo_kernel.types import Evaluation, Purpose, Recorded


class Notifier:
    """Runs the command once an event, one after the other, in a thread of its own. Never raises.

    The event is one JSON object on the command's standard input; its name is in EVO_KERNEL_EVENT too. Nothing of it
    becomes part of the command.
    """

    def __init__(
        self, command: str, deadline_s: float, about: Mapping[str, Any], trouble: Callable[[str], None]
    ) -> None:
        self._command, self._deadline_s, self._about, self._trouble = command, deadline_s, dict(about), trouble
        self._ends_at = float("inf")  # on the monotonic clock
        self._complained = False
        self._queue = ThreadPoolExecutor(1)

    def close(self) -> None:
        """Wait for what was told, all together as long as one command may take."""
        self._ends_at = time.monotonic() + self._deadline_s
        self._queue.shutdown()

    def tell(self, event: str, **data: Any) -> None:
        """Hand over an event; at once."""
        with contextlib.suppress(RuntimeError):  # closed: a thread that was cut off tells too late
            self._queue.submit(self._run, {"event": event, **self._about, "at": time.time(), **data})

    def _run(self, event: dict[str, Any]) -> None:
        left_s = min(self._deadline_s, self._ends_at - time.monotonic())
        if left_s <= 0.0:
            return
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=os.environ | {"EVO_KERNEL_EVENT": event["event"]}, start_new_session=True, text=True,
            )  # fmt: skip
        except OSError as error:
            self._complain(f"could not be started: {error}")
            return
        try:
            child.communicate(json.dumps(event) + "\n", timeout=left_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # not waited for yet: the number is still its own
            child.wait()
            self._complain(f"took longer than {left_s:.3g} s and was ended")
        else:
            if child.returncode:
                self._complain(f"ended with exit code {child.returncode}")

    def _complain(self, what: str) -> None:
        """Once a run: a command that fails every time is no news."""
        if not self._complained:
            self._complained = True
            self._trouble(f"the on_event command {what}")


class NotifyingObserver:
    """Passes everything on to an observer, and tells a notifier of a better candidate and a new champion."""

    def __init__(self, observer: Observer, notifier: Notifier) -> None:
        self._notifier = notifier
        self.attempt_started, self.proposed = observer.attempt_started, observer.proposed
        self.operator_failed, self.confirming = observer.operator_failed, observer.confirming
        self.trouble, self._judged = observer.trouble, observer.judged

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        self._judged(recorded, evaluation, is_best)
        champion = evaluation.purpose is Purpose.CONFIRM and evaluation.passed
        if not (is_best or champion):
            return
        strategy = recorded.proposal.strategy
        self._notifier.tell(
            "champion" if champion else "best",
            candidate=recorded.candidate,
            score=evaluation.score,
            operator=recorded.proposal.operator,
            strategy=strategy.name if strategy is not None else None,
            environment=evaluation.environment.label,
        )


@contextlib.contextmanager
def told(
    config: Config, task: str, population: Path, observer: Observer
) -> Iterator[tuple[Observer, Callable[[RunSummary], None]]]:
    """An observer for a run, and what to call with its summary; without a command both add nothing."""
    if not config.on_event:
        yield observer, lambda summary: None
        return
    about = {"task": task, "population": str(population.absolute())}
    notifier = Notifier(config.on_event, config.on_event_s, about, observer.trouble)
    with contextlib.closing(notifier):
        yield NotifyingObserver(observer, notifier), lambda summary: notifier.tell("end", **_end(summary))


def _end(summary: RunSummary) -> dict[str, Any]:
    best = summary.best
    score = best.evaluation.score if best is not None and best.evaluation is not None else None
    return {
        "why": summary.why,
        "cause": summary.cause,
        "attempts": summary.attempts,
        "wall_s": round(summary.wall_s, 1),
        "candidate": best.candidate if best is not None else None,
        "score": score,
    }
