"""Timed launches of one plan, over rotating sets of inputs: each begins alike, and each is looked at afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.runners.buffer_cache import checksum
from evo_kernel.fitness.runners.clock import Buffers, Launches, TimedWork
from evo_kernel.fitness.runners.referee import PlanFailed, Referee, fill
from evo_kernel.tasks.task import Case
from evo_kernel.types import Status

_ONE_IN = 4  # batches after which a launch is compared at once, where launches on the same inputs may differ


class CheckedTiming:
    """A plan over arenas of its own, set n holding the inputs of `seed + n`.

    After every batch: nothing beside the scratch has changed, and where the task wants the same bits on the same inputs
    every launch on a set has written what the first one on it did. So one comparison with the reference, of a set that
    is drawn when all is over, speaks for early and late launches alike. Where bits may differ, launches drawn from
    batches in between are compared too. With `check` False nothing is held against the reference.
    """

    def __init__(
        self,
        referee: Referee,
        plan: CompiledPlan,
        launcher: Launches,
        arenas: Sequence[Buffers],
        case: Case,
        seed: int,
        check: bool,
    ) -> None:
        self._referee, self._plan, self._launcher, self._arenas = referee, plan, launcher, arenas
        self._case, self._seed, self._check = case, seed, check
        self._exact = not referee.task.tolerance.atomics and not plan.plan.aten_nodes
        self._sums: dict[int, list[int]] = {}
        with referee.phase("fill"):
            self._drawn = [referee.draw(case, seed + number) for number in range(len(arenas))]
            for arena, inputs in zip(arenas, self._drawn, strict=True):
                fill(arena, plan, inputs)

    def captured(self) -> TimedWork:
        """A graph an arena. The first launch is a plain one, so that a fault shows before a capture does."""
        device = self._referee.device
        with self._referee.phase("capture"):
            self._referee.clean()
            self._prepare(0)
            self._launcher.run(self._arenas[0])
            device.synchronize()
            replays = [
                device.capture(partial(self._launcher.run, arena), number == 0)
                for number, arena in enumerate(self._arenas)
            ]
        return TimedWork(replays, self._prepare, self._ran)

    def compare(self, among: Sequence[int]) -> None:
        """What the last launch on one of these sets wrote, drawn now, against the reference. Raises PlanFailed."""
        if not self._check:
            return
        number = secrets.choice(among)
        outputs = [self._arenas[number].tensor(view) for view in self._plan.plan.outputs]
        result = self._referee.compare(self._case, self._seed + number, "nominal", self._drawn[number], outputs)
        if not result.passed:
            raise PlanFailed(Status.WRONG, f"right when checked, wrong when timed: {result.reason}", result.error)

    def _prepare(self, number: int) -> None:
        self._launcher.prepare(self._arenas[number])

    def _ran(self, numbers: Sequence[int]) -> None:
        """Raises PlanFailed."""
        with self._referee.phase("look"):
            arenas = [self._arenas[number] for number in numbers]
            self._referee.undisturbed(self._plan, arenas, [self._drawn[number] for number in numbers])
            if self._exact:
                self._same(numbers)
            elif secrets.randbelow(_ONE_IN) == 0:
                self.compare(numbers)
                self._referee.clean()

    def _same(self, numbers: Sequence[int]) -> None:
        views = self._plan.plan.outputs
        sums = checksum([self._arenas[number].tensor(view) for number in numbers for view in views])
        for place, number in enumerate(numbers):
            found = sums[place * len(views) : (place + 1) * len(views)]
            if self._sums.setdefault(number, found) != found:
                raise PlanFailed(Status.WRONG, "two timed launches on the same inputs differ: a race, or worse")
