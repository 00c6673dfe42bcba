"""Profiles plans: times each launch alone, counts its bytes, and reads its hardware counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo_kernel.errors import UserError
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart
from evo_kernel.fitness.profiling.table import CaseProfile, alone, costs_of, profile
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.fitness.timing.ceilings import Ceilings
from evo_kernel.tasks.task import Task


@dataclass(frozen=True)
class Profiler:
    """Profiles recorded plans with a started runner."""

    task: Task
    runner: Runner
    ceilings: Ceilings
    measured: bool  # whether the runner's times are measured
    deadline_s: float

    def profile(self, parts: Sequence[CountPart], counters: bool | None = None) -> Mapping[str, CaseProfile]:
        """Profiles by case. `counters`: whether to run Nsight Compute; None: if there is a GPU.

        Raises UserError if a launch cannot be timed, InfraError.
        """
        times_us = [self._times_us(part) for part in parts]
        traffic = self._traffic(parts)
        counted = CounterReading()
        if counters or (counters is None and self.measured):
            counted = self.runner.counters(parts)
        target, profiles = target_for(self.runner.arch), {}
        for number, (part, times, counts) in enumerate(zip(parts, times_us, traffic, strict=True)):
            raw = [counted.of(number, launch) for launch in range(len(times))]
            traffic_known, why = (None, counts) if isinstance(counts, str) else (counts, "")
            costs = costs_of(part.plan, times, traffic_known, raw, target)
            notes = tuple(note for note in (why, counted.why) if note)
            profiles[part.case.name] = CaseProfile(tuple(profile(part.plan, costs, target, self.ceilings)), notes)
        return profiles

    def _times_us(self, part: CountPart) -> list[float]:
        """Time of each launch alone. Raises UserError."""
        times = []
        for position in range(len(part.plan.plan.launches)):
            timed = self.runner.measure(alone(part.plan, position), part.case, part.seed, False)
            if isinstance(timed, Checked):
                raise UserError(f"launch {position} of {part.case.name}, {timed.status}: {timed.reason}")
            times.append(timed.median_us)
        return times

    def _traffic(self, parts: Sequence[CountPart]) -> list[Sequence[LaunchTraffic] | str]:
        """Traffic of each part's launches, or why it is unknown. Needs no GPU."""
        sampler = self.runner if isinstance(self.runner, CpuRunner) else None
        own = sampler or CpuRunner(self.task, self.runner.arch, self.deadline_s)
        try:
            if sampler is None:
                own.start()
            answers = [own.traffic(part.plan, part.case) for part in parts]
        finally:
            if sampler is None:
                own.close()
        return [_uncounted(answer) if isinstance(answer, Checked) else answer for answer in answers]


def _uncounted(answer: Checked) -> str:
    return "bytes and tl.dot are not counted: " + answer.reason.removeprefix("it cannot be checked without a GPU: ")
