"""The clock: samples of work on a device, taken so that neither the cache, drift nor the host's own pace is measured.

What it stands on is a `Device`: a GPU in the worker (cuda_device.py), a simulated one in tests. A batch of samples is
queued without waiting (flush, mark, replay, mark, ...), so that the GPU never waits for the host between two marks, and
the whole batch is held against the wall clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from evo_kernel.fitness.pairing import PAIRING, Comparison, PairSettings, run_pairs
from evo_kernel.fitness.plan import CompiledPlan, View
from evo_kernel.fitness.runners.nvml import GpuState
from evo_kernel.fitness.timing import TIMING, TimingSettings, clock_fault, next_batch, settled, summarise

Replay = Callable[[], Any]


class Buffers(Protocol):
    """The buffers of one plan: `Arena` of cuda_driver.py."""

    def bytes_of(self, buffer: int) -> torch.Tensor: ...

    def tensor(self, view: View) -> torch.Tensor: ...

    def poison(self, plan: CompiledPlan) -> None: ...

    def mend_canaries(self) -> None: ...

    def canaries_whole(self) -> torch.Tensor:
        """Whether nothing was written beside a buffer, as a tensor that nobody has waited for."""
        ...

    def broken_canary(self) -> int | None:
        """Index of a buffer beside which something wrote; None when all bands are whole."""
        ...


class Launches(Protocol):
    """A plan's kernels, loaded: `Launcher` of cuda_driver.py."""

    def run(self, arena: Any) -> None: ...

    def close(self) -> None: ...


class Device(Protocol):
    """What the judge's side needs of a GPU. For one thread."""

    name: str  # as torch spells it
    l2_bytes: int
    refused: tuple[type[Exception], ...]  # raised when a plan cannot be launched as it stands
    broken: tuple[type[Exception], ...]  # raised when the GPU stops, among other things

    def launcher(self, plan: CompiledPlan) -> Launches: ...

    def arena(self, plan: CompiledPlan) -> Buffers: ...

    def capture(self, work: Callable[[], Any], rehearse: bool = False) -> Replay: ...

    def synchronize(self) -> None: ...

    def flush(self) -> None:
        """Fill the L2 with something else."""
        ...

    def mark(self) -> Any:
        """A point in the queue of work."""
        ...

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Between two marks, once the device has been synchronised."""
        ...

    def now(self) -> float:
        """The wall clock, in seconds."""
        ...

    def wipe(self) -> None:
        """Overwrite all freed memory, so that no later kernel finds anything in it."""
        ...

    def release(self) -> None:
        """Hand freed memory back."""
        ...

    def healthy(self) -> bool:
        """Whether the context still works."""
        ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int: ...

    def state(self) -> GpuState: ...


@dataclass(frozen=True)
class Sampled:
    """GPU time of single replays, and how events and the wall clock saw one batch of them: where they agree best.

    One is enough: a host that does not get its turn stretches the wall time of a batch, but shortens none.
    """

    samples_us: list[float]
    event_us: float
    wall_us: float

    @property
    def median_us(self) -> float:
        return summarise(self.samples_us).median_us


def warm_up(device: Device, replays: Sequence[Replay], settings: TimingSettings) -> float:
    """Replay until clocks and caches have settled, by time; the shortest wall time of one replay, in µs."""
    began, number, shortest = device.now(), 0, float("inf")
    while number < settings.warmup or (device.now() - began) * 1e3 < settings.warmup_ms:
        start = device.now()
        replays[number % len(replays)]()
        device.synchronize()
        shortest = min(shortest, (device.now() - start) * 1e6)
        number += 1
    return shortest


def sample(
    device: Device,
    replays: Sequence[Replay],
    settings: TimingSettings = TIMING,
    against_us: float | None = None,
    warmed: Callable[[], None] = lambda: None,
) -> Sampled:
    """Samples over rotating replays with a cold L2 until they are settled. `warmed` is called before the first."""
    expected_us = warm_up(device, replays, settings)
    warmed()
    wall_us = 0.0
    samples: list[float] = []
    looks: list[tuple[float, float]] = []  # (event, wall) µs of each batch
    while not settled(samples, settings, against_us) or _in_doubt(looks, settings):
        marks = []
        time.sleep(settings.rest * wall_us * 1e-6)
        device.synchronize()
        began = device.now()
        first = device.mark()
        for _ in range(next_batch(len(samples), settings, expected_us)):
            device.flush()
            start = device.mark()
            replays[(len(samples) + len(marks)) % len(replays)]()
            marks.append((start, device.mark()))
        device.synchronize()
        wall_us = (device.now() - began) * 1e6
        looks.append((device.elapsed_us(first, marks[-1][1]), wall_us))
        samples += [device.elapsed_us(start, end) for start, end in marks]
        expected_us = summarise(samples).median_us
    event_us, wall_us = min(looks, key=lambda look: abs(math.log(max(look[1], 1e-3) / max(look[0], 1e-3))))
    return Sampled(samples, event_us, wall_us)


def _in_doubt(looks: Sequence[tuple[float, float]], settings: TimingSettings) -> bool:
    """Whether events and the wall clock have disagreed about every batch so far, and may be asked again."""
    return len(looks) < settings.looks and all(clock_fault(event, wall, settings) for event, wall in looks)


def disagreement(sampled: Sampled, settings: TimingSettings = TIMING) -> str:
    """What is wrong with the clock while these samples were taken; empty when nothing is."""
    return clock_fault(sampled.event_us, sampled.wall_us, settings)


def sample_pairs(
    device: Device,
    incumbent: Sequence[Replay],
    challenger: Sequence[Replay],
    rng: Any,
    settings: PairSettings = PAIRING,
) -> tuple[Comparison, list[tuple[float, float]]]:
    """Compare two rotations pair by pair, each pair on the same inputs; all pairs as (incumbent µs, challenger µs)."""
    for replays in (incumbent, challenger):
        warm_up(device, replays, TIMING)
    taken: list[tuple[float, float]] = []

    def one(replay: Replay) -> tuple[Any, Any]:
        device.flush()
        start = device.mark()
        replay()
        return start, device.mark()

    def take(first: Sequence[bool]) -> list[tuple[float, float]]:
        device.synchronize()
        marks = []
        for number, challenger_first in enumerate(first):
            index = (len(taken) + number) % len(incumbent)
            if challenger_first:
                right = one(challenger[index])
                left = one(incumbent[index])
            else:
                left = one(incumbent[index])
                right = one(challenger[index])
            marks.append((left, right))
        device.synchronize()
        pairs = [(device.elapsed_us(*left), device.elapsed_us(*right)) for left, right in marks]
        taken.extend(pairs)
        return pairs

    comparison, _ = run_pairs(take, rng, settings)
    return comparison, taken


class Metronome:
    """A fixed copy of our own, timed now and then: what it drifts by is the machine's doing, not the kernels'."""

    def __init__(self, device: Device, settings: TimingSettings = TIMING) -> None:
        self._device, self._settings = device, settings
        self._beat: Replay | None = None
        self._first_us = 0.0
        self._requests = 0
        self.drift = 0.0  # last beat ÷ first, less one

    def tick(self) -> float:
        """Count a request, beat when one is due, and tell the drift."""
        due = self._requests % self._settings.metronome_every == 0
        self._requests += 1
        if due:
            self._strike()
        return self.drift

    def disturbed(self, stretch_us: float) -> str:
        """What is wrong with the clock while nothing but our own copies run for so long; empty when nothing is.

        Asked when a kernel's clocks disagree: work of other processes on the same GPU takes turns with ours, which
        events do not see. One stretch of several that is off is enough; turns are a few ms, so none need be long.
        """
        beat = self._made()
        stretch_us = min(stretch_us, self._settings.stretch_us)
        for _ in range(self._settings.looks):
            self._device.synchronize()
            began, first = self._device.now(), self._device.mark()
            for _ in range(max(1, math.ceil(stretch_us / max(self._first_us, 1.0)))):
                beat()
            last = self._device.mark()
            self._device.synchronize()
            wall_us = (self._device.now() - began) * 1e6
            if fault := clock_fault(self._device.elapsed_us(first, last), wall_us, self._settings):
                return fault
        return ""

    def _strike(self) -> None:
        us = sample(self._device, [self._made()], self._settings).median_us
        self.drift = us / self._first_us - 1.0

    def _made(self) -> Replay:
        if self._beat is None:
            source = torch.empty(self._settings.metronome_bytes, dtype=torch.uint8, device=self._device.name).random_()
            target = torch.empty_like(source)
            self._beat = self._device.capture(lambda: target.copy_(source))
            sample(self._device, [self._beat], self._settings)  # the first beats of a cold GPU are not the measure
            self._first_us = sample(self._device, [self._beat], self._settings).median_us
        return self._beat
