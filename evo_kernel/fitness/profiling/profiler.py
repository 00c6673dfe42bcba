"""Profiles plans: times each launch alone and counts its bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from evo_kernel.errors import UserError
from evo_kernel.fitness.correctness.references import fresh_seed
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.profiling.table import CaseProfile, alone, costs_of, profile
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.fitness.timing.ceilings import Ceilings
from evo_kernel.tasks.task import Case, Task


def profile_plans(
    task: Task, runner: Runner, ceilings: Ceilings, deadline_s: float, parts: Sequence[tuple[Case, CompiledPlan]]
) -> Mapping[str, CaseProfile]:
    """Profiles of recorded plans by case, with a started runner.

    Raises UserError if a launch cannot be timed, InfraError.
    """
    seed, target, profiles = fresh_seed(), target_for(runner.arch), {}
    times_us = [_times_us(runner, case, plan, seed) for case, plan in parts]
    with _counting(task, runner, deadline_s) as counter:
        traffic = [counter.traffic(plan, case) for case, plan in parts]
    for (case, plan), times, counts in zip(parts, times_us, traffic, strict=True):
        known, notes = (None, (_uncounted(counts),)) if isinstance(counts, Checked) else (counts, ())
        costs = costs_of(plan, times, known, target)
        profiles[case.name] = CaseProfile(tuple(profile(plan, costs, target, ceilings)), notes)
    return profiles


def _times_us(runner: Runner, case: Case, plan: CompiledPlan, seed: int) -> list[float]:
    """Time of each launch alone. Raises UserError."""
    times = []
    for position in range(len(plan.plan.launches)):
        timed = runner.measure(alone(plan, position), case, seed, False)
        if isinstance(timed, Checked):
            raise UserError(f"launch {position} of {case.name}, {timed.status}: {timed.reason}")
        times.append(timed.median_us)
    return times


@contextlib.contextmanager
def _counting(task: Task, runner: Runner, deadline_s: float) -> Iterator[CpuRunner]:
    """A started runner that counts traffic, which needs no GPU."""
    if isinstance(runner, CpuRunner):
        yield runner
        return
    own = CpuRunner(task, runner.arch, deadline_s)
    try:
        own.start()
        yield own
    finally:
        own.close()


def _uncounted(answer: Checked) -> str:
    return "bytes and tl.dot are not counted: " + answer.reason.removeprefix("it cannot be checked without a GPU: ")
