"""Handles a request about one plan set in the GPU process: checks, then timings, until the first failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from evo_kernel.fitness.runners.plan_checker import PlanChecker
from evo_kernel.fitness.runners.timer import Timer
from evo_kernel.fitness.runners.worker_state import Answer, MemoryShares, Plans, WorkerState
from evo_kernel.fitness.timing.estimates import TIMING, TimingSettings
from evo_kernel.tasks.task import Task
from evo_kernel.types import Status

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import CudaDevice


class RequestHandler:
    """State of one GPU process besides the CUDA context. For one thread."""

    def __init__(
        self, task: Task, device: CudaDevice, settings: TimingSettings = TIMING, budget: MemoryShares | None = None
    ) -> None:
        self.state = WorkerState(task, device, budget)
        self.checker, self.timer = PlanChecker(self.state), Timer(self.state, settings)

    def answer(
        self,
        plans: Plans,
        checks: Sequence[Answer],
        timings: Sequence[Answer],
        progress: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Answers in order, up to the first failure."""
        spent_s = self.state.spent_s
        spent_s.clear()
        with self.state.phase("plan set"):
            answer = self._in_order(plans, checks, timings, progress)
        return answer | {"spent_s": dict(spent_s)}

    def _in_order(
        self, plans: Plans, checks: Sequence[Answer], timings: Sequence[Answer], progress: Callable[[], None]
    ) -> Answer:
        answer: Answer = {"checks": self.checker.checks(plans, checks, progress), "timings": []}
        last = answer["checks"][-1] if checks else {"status": Status.PASSED}
        for part in timings if last["status"] == Status.PASSED else ():
            progress()
            last = self.state.with_intact_references(partial(self.state.with_launcher, plans, part, self.timer.time))
            answer["timings"].append(last)
            if last["status"] != Status.PASSED:
                break
        answer["fatal"] = last.pop("fatal", False)
        if answer["timings"] and not answer["fatal"]:
            with self.state.phase("metronome"):
                answer["drift"] = self.timer.metronome.tick()
        return answer

    def pair(self, plans: Plans, part: Answer) -> Answer:
        """Compare plan 0, the incumbent, with plan 1, the challenger: {case, seed, check}."""
        self.state.spent_s.clear()
        return self.timer.pair(plans, part) | {"spent_s": dict(self.state.spent_s)}
