"""A user's command for what a run finds: a child that may fail, hang or be missing without the search noticing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from evo_kernel.config import Config
from evo_kernel.engine import Observer, RunSummary
from evo_kernel.types import Evaluation, Purpose, Recorded

WAITING = 32
"""Events that wait at most while a command runs; further ones are dropped, and their number is told."""
EVENTS = ("best", "champion", "stall", "end")


class Notifier:
    """Runs the command once an event, one at a time. Use as a context manager; thread-safe; never raises.

    The event is one JSON object on the command's standard input; its name is in EVO_KERNEL_EVENT too. Nothing of it
    becomes part of the command. `stall_s`: seconds without a better candidate after which `stall` is told, once.
    """

    def __init__(
        self, command: str, deadline_s: float, stall_s: float, about: Mapping[str, Any], trouble: Callable[[str], None]
    ) -> None:
        self._command, self._deadline_s, self._stall_s = command, deadline_s, stall_s
        self._about, self._trouble = dict(about), trouble
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING)
        self._dropped, self._complained = 0, False
        self._better_at, self._stalled = time.monotonic(), False
        self._ends_at = math.inf  # on the monotonic clock
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Notifier:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what was told, all together as long as one command may take."""
        self._ends_at = time.monotonic() + self._deadline_s
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=self._deadline_s)
        self._thread.join(self._deadline_s + 1.0)

    def tell(self, event: str, **data: Any) -> None:
        """Hand over an event; at once."""
        if event in ("best", "champion"):
            self._better_at, self._stalled = time.monotonic(), False
        try:
            self._queue.put_nowait({"event": event, **self._about, "at": time.time(), **data})
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        while True:
            try:
                event = self._queue.get(timeout=self._until_stall_s())
            except queue.Empty:
                self._stalled = True
                self.tell("stall", quiet_s=round(time.monotonic() - self._better_at))
                continue
            if event is None:
                return
            self._run(event)

    def _until_stall_s(self) -> float | None:
        """None once it was told: nothing but a better candidate makes it news again."""
        return None if self._stalled else max(0.01, self._better_at + self._stall_s - time.monotonic())

    def _run(self, event: dict[str, Any]) -> None:
        left_s = min(self._deadline_s, self._ends_at - time.monotonic())
        if left_s <= 0.0:
            return
        data = {**event, "dropped": self._dropped} if self._dropped else event
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
            child.communicate(json.dumps(data) + "\n", timeout=left_s)
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
    with Notifier(config.on_event, config.on_event_s, config.stall_minutes * 60, about, observer.trouble) as notifier:
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
