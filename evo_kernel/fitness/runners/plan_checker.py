"""Checks plans on a GPU: runs each round twice with different poison, then compares; several checks at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from evo_kernel.errors import PlanError, TaskError
from evo_kernel.fitness.correctness.check import poisoned
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.runners.cuda_memory import POISON, Arena, other_poison, plan_bytes
from evo_kernel.fitness.runners.worker_state import Answer, PlanFailed, Plans, WorkerState, equal_each, fill
from evo_kernel.tasks.task import Case, Input
from evo_kernel.types import Status

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_driver import Launcher


@dataclass
class _Ran:
    """One round of a check: two runs on the same inputs."""

    seed: int
    regime: str
    inputs: tuple[Input, ...]
    arenas: Sequence[Arena]


class PlanChecker:
    """Checks the plans of a plan set. A check is {plan, case, rounds: [[seed, regime], ...]}."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state

    def checks(self, plans: Plans, parts: Sequence[Answer], progress: Callable[[], None]) -> list[Answer | None]:
        """Answers up to the first failure. None: unknown, because a later part of its group lost the context."""
        answers: list[Answer | None] = []
        for group in self._groups(plans, parts):
            answers += self._check_group(plans, group, progress)
            last = answers[-1]
            if last is not None and last["status"] != Status.PASSED:
                break
        return answers

    def _groups(self, plans: Plans, parts: Sequence[Answer]) -> Iterator[list[Answer]]:
        """Consecutive parts whose buffers fit together into the memory of one check."""
        group: list[Answer] = []
        size = 0
        for part in parts:
            try:
                more = 2 * plan_bytes(plans(part["plan"])) * len(part["rounds"])
            except PlanError:
                more = 0  # the fault is reported when its turn comes
            if group and size + more > self._state.budget.check_bytes:
                yield group
                group, size = [], 0
            group.append(part)
            size += more
        if group:
            yield group

    def _check_group(self, plans: Plans, parts: Sequence[Answer], progress: Callable[[], None]) -> list[Answer | None]:
        """Run the kernels of all parts, then compare: freed memory is overwritten once per group, not per part."""
        if len(parts) == 1:
            progress()
            return [
                self._state.with_intact_references(partial(self._state.with_launcher, plans, parts[0], self._check))
            ]
        failed: Answer | None = None
        with contextlib.ExitStack() as stack:
            ran: list[tuple[Answer, CompiledPlan, list[_Ran]]] = []
            for part in parts:
                progress()
                verdict = self._state.guarded(partial(self._run_part, stack, plans, part))
                if verdict["status"] != Status.PASSED:
                    failed = verdict
                    break
                ran.append((part, verdict["plan"], verdict["ran"]))
            if failed is not None and failed.get("fatal"):
                stack.pop_all()  # its buffers are lost with the context
                return [*(None for _ in ran), failed]
            answers = self._compare_group(plans, ran)
            if any(answer["status"] != Status.PASSED for answer in answers):
                return [*answers]
        return [*answers, failed] if failed is not None else [*answers]

    def _run_part(self, stack: contextlib.ExitStack, plans: Plans, part: Answer) -> Answer:
        """Run the kernels of one check; its buffers live as long as the stack."""
        plan, rounds = plans(part["plan"]), part["rounds"]
        with self._state.launcher(plan) as launcher, self._state.phase("run"):
            arenas = stack.enter_context(self._state.lent(plan, 2 * len(rounds)))
            ran = self._run_rounds(plan, launcher, part, rounds, arenas)
        return {"status": Status.PASSED, "plan": plan, "ran": ran}

    def _compare_group(self, plans: Plans, ran: Sequence[tuple[Answer, CompiledPlan, list[_Ran]]]) -> list[Answer]:
        """Compare up to the first failure; if the references are damaged, the part is checked again alone."""
        answers: list[Answer] = []
        damaged = False
        for part, plan, rounds in ran:
            recheck = partial(self._state.with_launcher, plans, part, self._check)
            case = self._state.task.case(part["case"])
            with self._state.phase("compare"):
                verdict = self._state.guarded(recheck if damaged else partial(self._compared, plan, case, rounds))
            if verdict["status"] == Status.WRONG and not damaged and not self._state.intact():
                damaged = True  # the inputs of the following parts may be damaged too
                self._state.forget()
                verdict = self._state.guarded(recheck)
            answers.append(verdict)
            if verdict["status"] != Status.PASSED:
                break
        return answers

    def _check(self, plan: CompiledPlan, launcher: Launcher, part: Answer) -> Answer:
        """Check every round: poisoned scratch, two runs that must agree, then the reference; several rounds at once if
        they fit."""
        case = self._state.task.case(part["case"])
        at_once = max(1, self._state.budget.check_bytes // max(1, 2 * plan_bytes(plan)))
        rounds, worst = list(part["rounds"]), 0.0
        for first in range(0, len(rounds), at_once):
            some = rounds[first : first + at_once]
            with self._state.lent(plan, 2 * len(some)) as arenas:
                with self._state.phase("run"):
                    ran = self._run_rounds(plan, launcher, part, some, arenas)
                with self._state.phase("compare"):
                    worst = max(worst, self._compared(plan, case, ran)["error"])
        return {"status": Status.PASSED, "reason": "", "error": worst}

    def _run_rounds(
        self, plan: CompiledPlan, launcher: Launcher, part: Answer, rounds: Sequence[Any], arenas: Sequence[Arena]
    ) -> list[_Ran]:
        case = self._state.task.case(part["case"])
        ran = [
            self._run_twice(plan, launcher, case, seed, regime, arenas[2 * n : 2 * n + 2])
            for n, (seed, regime) in enumerate(rounds)
        ]
        self._state.device.synchronize()
        return ran

    def _compared(self, plan: CompiledPlan, case: Case, ran: Sequence[_Ran]) -> Answer:
        return {"status": Status.PASSED, "reason": "", "error": max(self._judge(plan, case, run) for run in ran)}

    def _run_twice(
        self, plan: CompiledPlan, launcher: Launcher, case: Case, seed: int, regime: str, arenas: Sequence[Arena]
    ) -> _Ran:
        inputs = self._state.draw(case, seed, regime)
        for arena, poison in zip(arenas, (POISON, None), strict=True):
            arena.set_canary(other_poison() if poison is None else poison)
            fill(arena, plan, inputs)
            self._state.clean()
            launcher.prepare(arena, poison)
            launcher.run(arena, in_place=poison is None)  # as when timed
            self._state.ran(plan)
        return _Ran(seed, regime, inputs, arenas)

    def _judge(self, plan: CompiledPlan, case: Case, ran: _Ran) -> float:
        """The error of one round, relative to the allowed error. Raises PlanFailed."""
        self._state.undisturbed(plan, ran.arenas, [ran.inputs] * len(ran.arenas))
        first, second = ([arena.tensor(view) for view in plan.plan.outputs] for arena in ran.arenas)
        atomics = self._state.task.tolerance.atomics
        differ = PlanFailed(
            Status.WRONG,
            "two runs on the same inputs differ: a race, a read of memory nothing wrote, or an order of atomics, which "
            "TOLERANCE = 'atomics' in the task allows",
        )
        same = atomics or equal_each([(first, second)])[0]
        if not same and not any(bool(poisoned(output).any()) for output in first):
            raise differ
        worst = 0.0
        for outputs in (first, second) if atomics else (first,):
            try:
                result = self._state.compare(case, ran.seed, ran.regime, ran.inputs, outputs)
            except TaskError as error:
                if ran.regime != "nominal":  # the reference does not take such inputs
                    return worst
                reason = f"the reference fails on inputs of {case.name}: {error}"
                raise PlanFailed(Status.REJECTED, reason) from error
            if not result.passed:
                raise PlanFailed(Status.WRONG, result.reason, result.error)
            worst = max(worst, result.error)
        if not same:  # a correct value that equals the poison
            raise differ
        return worst
