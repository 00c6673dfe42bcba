"""Who is at which stage of the way through the judge, and how busy each GPU is: a gauge that stages are marked on.

A thread counts at the innermost stage that it has marked, so one that waits for compiled code while it records is
compiling. Nothing is decided by these numbers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from evo_kernel.types import PipelineState

THINKING, RECORDING, COMPILING = "thinking", "recording", "compiling"
EXECUTING = "executing"  # without a GPU: by the executor of IR, and in the model
WAITING, ON_GPU = "waiting", "on GPU"

RECENT_S = 30.0
"""What counts as the last moments of a GPU."""


class _Lock(Protocol):
    def acquire(self) -> bool: ...

    def release(self) -> None: ...


class _Meter:
    """When one GPU was busy. Not thread-safe: the gauge's lock guards it."""

    def __init__(self) -> None:
        self._held, self._since, self._total_s = 0, 0.0, 0.0  # who is on it, since when; what is over
        self._recent: deque[tuple[float, float]] = deque()

    def begin(self, now: float) -> None:
        if not self._held:
            self._since = now
        self._held += 1

    def end(self, now: float) -> None:
        self._held -= 1
        if not self._held:
            self._total_s += now - self._since
            self._recent.append((self._since, now))
            self._forget(now - RECENT_S)

    def total_s(self, now: float) -> float:
        return self._total_s + (now - self._since if self._held else 0.0)

    def recent_s(self, after: float, now: float) -> float:
        """Busy seconds since `after`, which is no longer ago than RECENT_S."""
        self._forget(after)
        running = now - max(self._since, after) if self._held else 0.0
        return running + sum(end - max(begin, after) for begin, end in self._recent)

    def _forget(self, before: float) -> None:
        while self._recent and self._recent[0][1] <= before:
            self._recent.popleft()


class Stages:
    """The gauge. Thread-safe; a mark costs some microseconds."""

    def __init__(self, gpus: Sequence[int] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """`gpus`: numbers of those that `turn` will name; without any, plans are executed on the CPU."""
        self._clock = clock
        self._names = (THINKING, RECORDING, COMPILING, *((WAITING, ON_GPU) if gpus else (EXECUTING,)))
        self._lock = threading.Lock()
        self._marks: dict[int, list[str]] = {}  # by thread, outermost first
        self._meters = {gpu: _Meter() for gpu in gpus}
        self._began = clock()

    @property
    def gpus(self) -> tuple[int, ...]:
        """In the order of the shares in `state`."""
        return tuple(self._meters)

    @contextlib.contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """The calling thread is at this stage until the block ends."""
        thread = threading.get_ident()
        with self._lock:
            self._marks.setdefault(thread, []).append(stage)
        try:
            yield
        finally:
            with self._lock:
                marks = self._marks[thread]
                marks.pop()
                if not marks:
                    del self._marks[thread]

    @contextlib.contextmanager
    def turn(self, lock: _Lock, gpu: int) -> Iterator[None]:
        """Wait for a GPU's lock, and be on that GPU while it is held; who holds it already may take it again."""
        with self.at(WAITING):
            lock.acquire()
        try:
            with self.at(ON_GPU), self._busy(gpu):
                yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _busy(self, gpu: int) -> Iterator[None]:
        meter = self._meters[gpu]
        with self._lock:
            meter.begin(self._clock())
        try:
            yield
        finally:
            with self._lock:
                meter.end(self._clock())

    def state(self) -> PipelineState:
        """All of it at this moment."""
        with self._lock:
            now = self._clock()
            counts = Counter(marks[-1] for marks in self._marks.values())
            passed_s = max(now - self._began, 1e-9)
            recent_s = min(passed_s, RECENT_S)
            meters = self._meters.values()
            return PipelineState(
                at=time.time(),
                stages={name: counts[name] for name in self._names},
                busy_recent=tuple(meter.recent_s(now - recent_s, now) / recent_s for meter in meters),
                busy_session=tuple(meter.total_s(now) / passed_s for meter in meters),
                recent_s=recent_s,
            )
