"""Timed launches of a plan over rotating buffers, whose outputs are compared after every batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.runners.cuda_memory import Arena
from evo_kernel.fitness.runners.sampling import TimedWork
from evo_kernel.fitness.runners.worker_state import PlanFailed, WorkerState, equal_each, fill
from evo_kernel.tasks.task import Case
from evo_kernel.types import Status

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import Block
    from evo_kernel.fitness.runners.cuda_driver import Launcher


class CheckedTiming:
    """A plan over several sets of buffers with the inputs of `seed`; the last arena holds the result of the first
    launch.

    Every launch must write what the first one wrote, whatever its addresses, number and time. After every batch, each
    output is compared with the first, and inputs must be unchanged. If the task allows atomics, or torch operations are
    not deterministic, each launch that differs is compared with the reference. With `check` False nothing is compared.
    """

    def __init__(
        self,
        state: WorkerState,
        plan: CompiledPlan,
        launcher: Launcher,
        arenas: Sequence[Arena],
        case: Case,
        seed: int,
        check: bool,
    ) -> None:
        self._state, self._plan, self._launcher = state, plan, launcher
        *self._arenas, self._first = arenas
        self._case, self._seed, self._check = case, seed, check
        self._torch_results: Sequence[Block] = ()  # where captured torch operations have theirs
        self._may_differ = state.task.tolerance.atomics or bool(plan.plan.aten_nodes)
        with state.phase("fill"):
            self._inputs = state.draw(case, seed)
            for arena in arenas:
                fill(arena, plan, self._inputs)

    def captured(self) -> TimedWork:
        """One graph for each set. The first launch is not captured, so that a fault appears before a capture."""
        device, pool = self._state.device, self._state.device.pool()
        with self._state.phase("capture"):
            self._state.clean()
            self._launcher.prepare(self._first)
            self._launcher.run(self._first)
            self._state.ran(self._plan)
            device.synchronize()
            replays = [
                device.capture(partial(self._launcher.run, arena), number == 0, pool)
                for number, arena in enumerate(self._arenas)
            ]
            if self._plan.plan.aten_nodes:
                self._torch_results = device.free_blocks(pool)
        return TimedWork(replays, self._prepare, self._ran)

    def compare(self) -> None:
        """Compare the first launch with the reference after all others. Raises PlanFailed."""
        self._compare(self._first)

    def _compare(self, *arenas: Arena) -> None:
        if not self._check:
            return
        outputs = map(self._outputs, arenas)
        result = self._state.compare(self._case, self._seed, "nominal", self._inputs, *outputs)
        if not result.passed:
            raise PlanFailed(Status.WRONG, f"right when checked, wrong when timed: {result.reason}", result.error)

    def _outputs(self, arena: Arena) -> list[torch.Tensor]:
        return [arena.tensor(view) for view in self._plan.plan.outputs]

    def _prepare(self, number: int) -> None:
        self._state.device.wipe(self._torch_results)
        self._launcher.prepare(self._arenas[number])

    def _ran(self, numbers: Sequence[int]) -> None:
        """Raises PlanFailed."""
        with self._state.phase("look"):
            arenas = [self._arenas[number] for number in numbers]
            self._state.undisturbed(self._plan, [*arenas, self._first], [self._inputs] * (len(arenas) + 1))
            first_outputs = self._outputs(self._first)
            same = equal_each([(self._outputs(arena), first_outputs) for arena in arenas])
            others = [arena for arena, equal in zip(arenas, same, strict=True) if not equal]
            if others and not self._may_differ:
                raise PlanFailed(Status.WRONG, "two timed launches on the same inputs differ: a race, or worse")
            if others:
                self._compare(*others)
                self._state.clean()
