"""The clock: takes samples of work on a device so that caches, drift and the host's speed do not affect them.

The device is a GPU (cuda_device.py), in tests a simulated one. A batch of samples is queued without waiting (prepare,
mark, replay, mark, ...), so the GPU never waits for the host between two marks. Each batch's event time is compared
with the wall clock. The first replay after a pause takes up to a fifth longer (seen on an H200 at 50 µs), so batches
of short ones begin with a replay that is not timed. State that a launch could read from earlier ones is overwritten
before each replay, outside its time; docs/internals/gpu-state.md lists it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evo_kernel.fitness.timing.estimates import (
    PAIRING,
    TIMING,
    Comparison,
    PairSettings,
    TimingSettings,
    clock_fault,
    next_batch,
    run_pairs,
    settled,
    summarise,
)

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import CudaDevice

Replay = Callable[[], Any]


@dataclass(frozen=True)
class Sampled:
    """GPU times of single replays, and the event and wall times of the batch on which both agree best.

    One batch suffices: a host that is not scheduled lengthens a batch's wall time but never shortens it.
    """

    samples_us: list[float]
    event_us: float
    wall_us: float

    @property
    def median_us(self) -> float:
        return summarise(self.samples_us).median_us


@dataclass(frozen=True)
class Paired:
    """A comparison, and the event and wall times of the batch on which both agree best."""

    comparison: Comparison
    event_us: float
    wall_us: float


@dataclass(frozen=True)
class TimedWork:
    """Work to time: replays that alternate between sets of buffers.

    `prepare` is queued before each replay, with its number. `ran`, if given, is called after every batch with the
    numbers of its replays, `lead_in`'s included, which then are distinct, so that it can check the results of each. It
    may raise.
    """

    replays: Sequence[Replay]
    prepare: Callable[[int], None]
    ran: Callable[[Sequence[int]], None] | None = None

    @classmethod
    def of_ours(cls, device: CudaDevice, replays: Sequence[Replay]) -> TimedWork:
        """Work whose results need no check, timed under the same conditions."""
        return cls(replays, lambda _: device.clear())

    def batch(self, number: int, wanted: int, leads: bool) -> list[int]:
        """Sets of the next batch after `number` samples, at most `wanted`. `leads`: one is left for `lead_in`."""
        count = len(self.replays)
        most = wanted if self.ran is None else min(wanted, max(1, count - leads))
        return [turn % count for turn in range(number, number + most)]

    def lead_in(self, turns: Sequence[int]) -> list[int]:
        """Queue a replay that is not timed, on a set that this batch does not time: its lines may stay in the L2.

        Returns its number, or nothing where no set is left.
        """
        turn = (turns[-1] + 1) % len(self.replays)
        if turn in turns and self.ran is not None:
            return []
        self.prepare(turn)
        self.replays[turn]()
        return [turn]

    def look(self, numbers: Sequence[int]) -> None:
        if self.ran is not None:
            self.ran(numbers)


def warm_up(device: CudaDevice, work: TimedWork, settings: TimingSettings) -> float:
    """Replay until clocks and caches are stable, for a fixed time.

    Returns the shortest wall time of one replay, in µs.
    """
    began, number, shortest = device.now(), 0, float("inf")
    while number < settings.warmup or (device.now() - began) * 1e3 < settings.warmup_ms:
        turn = number % len(work.replays)
        work.prepare(turn)
        device.synchronize()
        start = device.now()
        work.replays[turn]()
        device.synchronize()
        shortest = min(shortest, (device.now() - start) * 1e6)
        number += 1
    work.look(range(min(number, len(work.replays))))
    return shortest


def sample(
    device: CudaDevice, work: TimedWork, settings: TimingSettings = TIMING, against_us: float | None = None
) -> Sampled:
    """Samples over rotating replays until they are settled."""
    expected_us = warm_up(device, work, settings)
    wall_us = 0.0
    samples: list[float] = []
    batches: list[tuple[float, float]] = []  # (event, wall) µs of each batch
    while not settled(samples, settings, against_us) or _in_doubt(batches, settings):
        marks = []
        leads = expected_us < settings.lead_us
        turns = work.batch(len(samples), next_batch(len(samples), settings, expected_us), leads)
        time.sleep(settings.rest * wall_us * 1e-6)
        device.unpin()
        device.synchronize()
        began = device.now()
        first = device.mark()
        led = work.lead_in(turns) if leads else []
        for turn in turns:
            work.prepare(turn)
            start = device.mark()
            work.replays[turn]()
            marks.append((start, device.mark()))
        device.synchronize()
        wall_us = (device.now() - began) * 1e6
        batches.append((device.elapsed_us(first, marks[-1][1]), wall_us))
        samples += [device.elapsed_us(start, end) for start, end in marks]
        expected_us = summarise(samples).median_us
        work.look([*led, *turns])
    return Sampled(samples, *_best_agreeing(batches))


def _best_agreeing(batches: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(batches, key=lambda look: abs(math.log(max(look[1], 1e-3) / max(look[0], 1e-3))))


def _in_doubt(batches: Sequence[tuple[float, float]], settings: TimingSettings) -> bool:
    """Whether events and the wall clock have disagreed about every batch so far and more batches are allowed."""
    return len(batches) < settings.looks and all(clock_fault(event, wall, settings) for event, wall in batches)


def disagreement(sampled: Sampled | Paired, settings: TimingSettings = TIMING) -> str:
    """The disagreement of the clocks during these samples, as a sentence; empty if they agree."""
    return clock_fault(sampled.event_us, sampled.wall_us, settings)


def sample_pairs(
    device: CudaDevice, incumbent: TimedWork, challenger: TimedWork, rng: Any, settings: PairSettings = PAIRING
) -> Paired:
    """Compare two rotations pair by pair. Sets with the same number may share their memory.

    Where its buffers lie can change a kernel's time by 7 % (seen on an H100: 74 or 79.5 µs for the same softmax). So
    each pair is timed twice, with the two sets exchanged, and counts as its geometric mean.
    """
    works = incumbent, challenger
    short = max(warm_up(device, work, TIMING) for work in works) < TIMING.lead_us
    half = len(incumbent.replays) // 2
    taken: list[tuple[float, float]] = []
    batches: list[tuple[float, float]] = []  # (event, wall) µs of each batch

    def one(work: TimedWork, turn: int) -> tuple[Any, Any]:
        work.prepare(turn)
        start = device.mark()
        work.replays[turn]()
        return start, device.mark()

    def batch(start: int, first: Sequence[bool]) -> list[tuple[float, float]]:
        """(incumbent, challenger) µs on sets from `start` on, and as many from `half` further; all are distinct."""
        turns = [[(start + shift + number) % (2 * half) for number in range(len(first))] for shift in (0, half)]
        device.unpin()
        device.synchronize()
        began, begin = device.now(), device.mark()
        led = [work.lead_in(own) if short and len(first) < half else [] for work, own in zip(works, turns, strict=True)]
        marks = []
        for *both, challenger_first in zip(*turns, first, strict=True):
            order = (1, 0) if challenger_first else (0, 1)
            timed = {number: one(works[number], both[number]) for number in order}
            marks.append((timed[0], timed[1]))
        end = device.mark()
        device.synchronize()
        batches.append((device.elapsed_us(begin, end), (device.now() - began) * 1e6))
        times = [(device.elapsed_us(*left), device.elapsed_us(*right)) for left, right in marks]
        for work, lead, own in zip(works, led, turns, strict=True):
            work.look([*lead, *own])
        return times

    def take(first: Sequence[bool]) -> list[tuple[float, float]]:
        before, most = len(taken), max(1, half - short)
        while (done := len(taken) - before) < len(first):
            orders = first[done : done + most]
            there = batch(len(taken), orders)
            back = batch(len(taken) + half, [not order for order in orders])
            taken.extend((math.sqrt(a * c), math.sqrt(b * d)) for (a, b), (c, d) in zip(there, back, strict=True))
        return taken[before:]

    return Paired(run_pairs(take, rng, settings), *_best_agreeing(batches))


class Metronome:
    """Times a fixed copy of ours now and then: its drift is caused by the machine, not by the kernels."""

    def __init__(self, device: CudaDevice, settings: TimingSettings = TIMING) -> None:
        self._device, self._settings = device, settings
        self._beat: TimedWork | None = None
        self._first_us = 0.0
        self._requests = 0
        self.drift = 0.0  # last time ÷ first time, minus one

    def tick(self) -> float:
        """Count a request; time the copy if it is due; return the drift."""
        due = self._requests % self._settings.metronome_every == 0
        self._requests += 1
        if due:
            us = sample(self._device, self._made(), self._settings).median_us
            self.drift = us / self._first_us - 1.0
        return self.drift

    def disturbed(self, stretch_us: float) -> str:
        """The disagreement of the clocks while only our own copies run for that long; empty if they agree.

        Called when a kernel's clocks disagree. Other processes on the GPU take turns with ours, which events do not
        show. Several stretches are timed and one that disagrees is enough; turns last a few ms, so stretches are short.
        """
        beat = self._made()
        stretch_us = min(stretch_us, self._settings.stretch_us)
        for _ in range(self._settings.looks):
            self._device.synchronize()
            began, first = self._device.now(), self._device.mark()
            for _ in range(max(1, math.ceil(stretch_us / max(self._first_us, 1.0)))):
                beat.replays[0]()
            last = self._device.mark()
            self._device.synchronize()
            wall_us = (self._device.now() - began) * 1e6
            if fault := clock_fault(self._device.elapsed_us(first, last), wall_us, self._settings):
                return fault
        return ""

    def _made(self) -> TimedWork:
        if self._beat is None:
            source = torch.empty(self._settings.metronome_bytes, dtype=torch.uint8, device=self._device.name).random_()
            target = torch.empty_like(source)
            self._beat = TimedWork.of_ours(self._device, [self._device.capture(lambda: target.copy_(source))])
            sample(self._device, self._beat, self._settings)  # the first times on a cold GPU are discarded
            self._first_us = sample(self._device, self._beat, self._settings).median_us
        return self._beat
