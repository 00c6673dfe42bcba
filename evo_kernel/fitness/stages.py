"""Counts how many threads are at each stage of the judge, and how busy each GPU is. For display only.

A thread counts at the innermost stage that it has entered: one that waits for the compiler while it records is
compiling.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from evo_kernel.types import PipelineState

THINKING, RECORDING, COMPILING = "thinking", "recording", "compiling"
EXECUTING = "executing"  # without a GPU: the executor and the time model
ELSEWHERE = "judged elsewhere"  # by servers of a spool
WAITING, ON_GPU = "waiting", "on GPU"

RECENT_S = 30.0
"""Length of the window for a GPU's recent load."""


class _Meter:
    """Busy time of one GPU. Not thread-safe: the lock of Stages guards it."""

    def __init__(self) -> None:
        self._holders, self._since, self._total_s = 0, 0.0, 0.0  # current holders, since when; total of ended periods
        self._recent: deque[tuple[float, float]] = deque()

    def begin(self, now: float) -> None:
        if not self._holders:
            self._since = now
        self._holders += 1

    def end(self, now: float) -> None:
        self._holders -= 1
        if not self._holders:
            self._total_s += now - self._since
            self._recent.append((self._since, now))
            self._forget(now - RECENT_S)

    def total_s(self, now: float) -> float:
        return self._total_s + (now - self._since if self._holders else 0.0)

    def recent_s(self, after: float, now: float) -> float:
        """Busy seconds since `after`, at most RECENT_S ago."""
        self._forget(after)
        running = now - max(self._since, after) if self._holders else 0.0
        return running + sum(end - max(begin, after) for begin, end in self._recent)

    def _forget(self, before: float) -> None:
        while self._recent and self._recent[0][1] <= before:
            self._recent.popleft()


class Stages:
    """Threads by stage and load by GPU. Thread-safe; entering a stage costs some microseconds."""

    def __init__(
        self, gpus: Sequence[int] = (), clock: Callable[[], float] = time.monotonic, *, elsewhere: bool = False
    ) -> None:
        """`gpus`: the numbers that `turn` may name; none if plans are executed on the CPU. `elsewhere`: all that a
        judge does is done by servers of a spool."""
        self._clock = clock
        here = (RECORDING, COMPILING, *((WAITING, ON_GPU) if gpus else (EXECUTING,)))
        self._names = (THINKING, *((ELSEWHERE,) if elsewhere else here))
        self._lock = threading.Lock()
        self._marks: dict[int, list[str]] = {}  # by thread, outermost first
        self._meters = {gpu: _Meter() for gpu in gpus}
        self._began = clock()

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPU numbers in the order of the shares in `state`."""
        return tuple(self._meters)

    @contextlib.contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Count the calling thread at this stage until the block ends."""
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
    def turn(self, lock: contextlib.AbstractContextManager[object], gpu: int) -> Iterator[None]:
        """Acquire a GPU's lock, which is reentrant, and count the GPU as busy until the block ends."""
        meter = self._meters[gpu]
        with contextlib.ExitStack() as stack:
            with self.at(WAITING):
                stack.enter_context(lock)
            stack.enter_context(self.at(ON_GPU))
            with self._lock:
                meter.begin(self._clock())
            try:
                yield
            finally:
                with self._lock:
                    meter.end(self._clock())

    def state(self) -> PipelineState:
        """Current counts and shares."""
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
