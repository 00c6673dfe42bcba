"""State of the GPU process: references, inputs, buffers, and the checks that fail a plan.

A candidate's kernels never run while a reference is readable on the device: kernels first, comparison after them, and
freed memory is overwritten before the next kernel.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evo_kernel.errors import PlanError, TaskError
from evo_kernel.fitness.correctness import check, regimes
from evo_kernel.fitness.correctness.check import changed_reason, unbound
from evo_kernel.fitness.correctness.conversions import conversions, converts
from evo_kernel.fitness.correctness.error_bounds import Expected, expect
from evo_kernel.fitness.correctness.references import SealedReferences
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, View
from evo_kernel.fitness.runners.cuda_memory import Arena, Arenas, Inputs, as_words, size_of
from evo_kernel.fitness.runners.launch_limits import CudaFault
from evo_kernel.tasks.layout import write
from evo_kernel.tasks.task import Case, Input, Task
from evo_kernel.types import CheckResult, Status

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import CudaDevice
    from evo_kernel.fitness.runners.cuda_driver import Launcher

Answer = dict[str, Any]
Plans = Callable[[int], CompiledPlan]
_REFERENCE = 8
"""Approximate memory for computing a reference, as a multiple of its float32 inputs; see `expect` in error_bounds.py.
"""


OTHERS = 1 / 16
"""Share of GPU memory above which others are to blame where it does not suffice; contexts take less."""


@dataclass(frozen=True)
class MemoryShares:
    """Shares of GPU memory: for caches between requests, and for one check."""

    references: float = 0.15
    inputs: float = 0.10
    arenas: float = 0.15
    check_bytes: int = 8 << 30


class Disturbed(Exception):
    """The machine is at fault: the measurement says nothing about the plan."""


class PlanFailed(Exception):
    """A plan that failed, with its answer."""

    def __init__(self, status: Status, reason: str, error: float = float("inf")) -> None:
        super().__init__(reason)
        self.answer: Answer = {"status": status, "reason": reason, "error": error}


class WorkerState:
    """Caches between requests, and the verdicts that use them. For one thread."""

    def __init__(self, task: Task, device: CudaDevice, budget: MemoryShares | None = None) -> None:
        self.task, self.device, self.budget = task, device, budget or MemoryShares()
        total = device.total_bytes()
        self.references = SealedReferences(device.name, int(total * self.budget.references))
        self.inputs = Inputs(int(total * self.budget.inputs))
        self.arenas = Arenas(device.arena, int(total * self.budget.arenas))
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.dirty = False  # freed memory may hold parts of a reference, or results of torch operations

    def with_intact_references(self, work: Callable[[], Answer]) -> Answer:
        """The answer of `work`, which is repeated if the cached data that it used is damaged."""
        answer = self.guarded(work)
        if answer["status"] == Status.WRONG and not self.intact():
            self.forget()  # an earlier kernel wrote into cached data: this plan is not responsible
            answer = self.guarded(work)
        return answer

    def guarded(self, work: Callable[[], Answer]) -> Answer:
        """The answer of `work`; a plan's faults become answers, with `fatal` if the context is lost.

        Raises Disturbed where other processes leave too little memory.
        """
        answer = self._tried(work)
        if answer.pop("out of memory", False):
            self.forget()  # perhaps our caches leave too little memory
            answer = self._tried(work)
            if answer.pop("out of memory", False) and self.device.others_bytes() > OTHERS * self.device.total_bytes():
                taken = self.device.others_bytes() >> 30
                raise Disturbed(f"out of GPU memory, of which other processes have {taken} GiB: end some of them")
        return answer

    def _tried(self, work: Callable[[], Answer]) -> Answer:
        try:
            return work()
        except PlanFailed as refused:
            answer = refused.answer
        except (*self.device.refused, PlanError) as fault:
            answer = {"status": Status.REJECTED, "reason": str(fault)}
        except torch.OutOfMemoryError as error:
            reason = f"out of GPU memory: {str(error).splitlines()[0]}"
            answer = {"status": Status.RUNTIME_ERROR, "reason": reason, "out of memory": True}
        except self.device.broken as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            captured = "captur" in lines[0]  # of a graph, in which torch's operation may not wait or copy to the host
            reason = f"{'a torch operation cannot be timed' if captured else 'the GPU stopped'}: {lines[0]}"
            fatal = isinstance(error, CudaFault) or not self.device.healthy()  # the driver's own state may be damaged
            answer = {"status": Status.RUNTIME_ERROR, "reason": reason, "fatal": fatal}
        self.dirty = True  # its buffers were freed without being overwritten
        return answer

    def make_room(self) -> None:
        """For another process that waits for the GPU: clear the caches where most of its memory is taken."""
        held, total = self.device.held_bytes(), self.device.total_bytes()
        if held > OTHERS * total and held + self.device.others_bytes() > total / 2:
            self.forget()

    def forget(self) -> None:
        """Clear the caches."""
        self._give_back(self.references, self.inputs, self.arenas)

    def _give_back(self, *stocks: SealedReferences | Inputs | Arenas) -> None:
        for stock in stocks:
            stock.clear()
        with contextlib.suppress(*self.device.broken):
            self.device.wipe()
            self.device.release()

    def intact(self) -> bool:
        """Whether no kernel wrote into cached inputs and references."""
        try:
            return self.inputs.intact() and self.references.intact()
        except self.device.broken:
            return True  # a lost context is detected elsewhere

    def draw(self, case: Case, seed: int, regime: str = "nominal") -> tuple[Input, ...]:
        """The inputs of a case, cached."""
        key = (case.name, seed, regime)
        return self.inputs.of(key, lambda: regimes.drawn(self.task, case, seed, regime, self.device.name))

    def undisturbed(self, plan: CompiledPlan, arenas: Sequence[Arena], inputs: Sequence[tuple[Input, ...]]) -> None:
        """Raise PlanFailed if a canary is damaged or an input has changed."""
        same = [Arena.canaries_whole(arenas)]
        places: list[int | None] = [None]
        sparse = _sparse_inputs(plan)
        for arena, values in zip(arenas, inputs, strict=True):
            for position, (view, value) in enumerate(zip(plan.plan.inputs, values, strict=True)):
                if view is not None and isinstance(value, torch.Tensor):
                    if position not in self.task.mutates:
                        same.append(_equal(arena.tensor(view), value))
                        places.append(position)
                    if view.buffer in sparse:
                        same.append(arena.gaps_whole(sparse[view.buffer]))
                        places.append(position)
        changed = [place for place, equal in zip(places, _together(same), strict=True) if not equal]
        positions = [place for place in changed if place is not None]
        if len(positions) < len(changed):
            buffer = next((index for arena in arenas if (index := arena.broken_canary()) is not None), 0)
            raise PlanFailed(Status.WRONG, f"a kernel writes outside a buffer (near buffer {buffer} of the plan)")
        if positions:
            raise PlanFailed(Status.WRONG, changed_reason(positions[0]))

    def compare(
        self, case: Case, seed: int, regime: str, inputs: tuple[Input, ...], *launches: Sequence[torch.Tensor]
    ) -> CheckResult:
        """Compare launches with the reference after their kernels have finished: first failure, or last result. Raises
        PlanFailed if any output would pass on this case."""
        with self.expected(case, seed, regime, inputs) as expected:
            results = [check.compare(case.name, outputs, expected, self.task.tolerance, regime) for outputs in launches]
            passed = all(result.passed for result in results)
            if passed and regime == "nominal" and (why := unbound(self.task, case, expected)):
                raise PlanFailed(Status.REJECTED, f"on {case.name}: {why}")
        return next((result for result in results if not result.passed), results[-1])

    @contextlib.contextmanager
    def expected(self, case: Case, seed: int, regime: str, inputs: tuple[Input, ...]) -> Iterator[tuple[Expected, ...]]:
        self.dirty = True
        computed: list[bool] = []

        def make() -> tuple[Expected, ...]:
            computed.append(True)
            if self.device.free_bytes() < _REFERENCE * size_of(inputs):
                self._give_back(self.arenas)  # arenas are unused now; inputs and references are needed to detect damage
            outside = regime != "nominal" and self._converts
            if outside and conversions(lambda: self.task.outputs(*inputs)).undefined:
                raise TaskError(f"{self.task.path}: a float is converted to an integer that does not hold it.")
            return expect(self.task, inputs, is_nominal=regime == "nominal")

        with self.references.open((case.name, seed, regime), make) as expected:
            yield expected
        if computed:  # computing a reference frees much memory, which would otherwise have to be overwritten
            self.device.wipe()
            self.device.release()

    @functools.cached_property
    def _converts(self) -> bool:
        return converts(self.task, self.device.name)

    def clean(self) -> None:
        """Before a candidate's kernel: overwrite freed memory, if it may hold what no kernel may read."""
        if self.dirty:
            with self.phase("wipe"):
                self.device.wipe()
            self.dirty = False

    def ran(self, plan: CompiledPlan) -> None:
        """After a plan's launches outside of graphs: results of its torch operations lie in freed memory."""
        self.dirty = self.dirty or bool(plan.plan.aten_nodes)

    def with_launcher(self, plans: Plans, part: Answer, work: Callable[..., Answer]) -> Answer:
        plan = plans(part["plan"])
        with self.launcher(plan) as launcher:
            return work(plan, launcher, part)

    @contextlib.contextmanager
    def launcher(self, plan: CompiledPlan) -> Iterator[Launcher]:
        with self.phase("load"):
            launcher = self.device.launcher(plan)
        try:
            yield launcher
            with self.phase("wait"):
                self.device.synchronize()
        finally:
            with self.phase("unload"), contextlib.suppress(*self.device.broken):  # a lost context cannot unload
                launcher.close()

    @contextlib.contextmanager
    def lent(self, plan: CompiledPlan, count: int) -> Iterator[list[Arena]]:
        """Lend arenas."""
        with contextlib.ExitStack() as stack:
            with self.phase("lend"):
                arenas = stack.enter_context(self.arenas.lent(plan, count))
            yield arenas

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent_s[name] += time.perf_counter() - began


def refill(arena: Arena, plan: CompiledPlan, inputs: Sequence[Input], positions: Sequence[int]) -> None:
    """Copy inputs that the plan's last run changed."""
    for position in positions:
        view, value = plan.plan.inputs[position], inputs[position]
        if view is not None and isinstance(value, torch.Tensor):
            write(arena.tensor(view), value)


def fill(arena: Arena, plan: CompiledPlan, inputs: Sequence[Input]) -> None:
    """Copy inputs to the plan's buffers. Raises PlanError."""
    if misfit := plan.plan.misfit([_spec(value) for value in inputs]):
        raise PlanError(misfit)
    for buffer in _sparse_inputs(plan):
        arena.bytes_of(buffer).fill_(arena.canary)
    refill(arena, plan, inputs, range(len(inputs)))


def _sparse_inputs(plan: CompiledPlan) -> dict[int, list[View]]:
    """Inputs that are not dense, by number, with their views."""
    views: dict[int, list[View]] = {}
    for view in plan.plan.inputs:
        if view is not None:
            views.setdefault(view.buffer, []).append(view)
    sizes = plan.plan.buffers
    return {
        buffer: views_of_buffer
        for buffer, views_of_buffer in views.items()
        if len(views_of_buffer) > 1
        or views_of_buffer[0].elements * views_of_buffer[0].item_bytes != sizes[buffer].bytes
    }


def _spec(value: Input) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    if not isinstance(value, torch.Tensor):
        return None
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), value.stride()


def _equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Whether two tensors are bit-equal, NaN included, as a tensor; does not synchronise."""
    if left.shape != right.shape:
        return torch.tensor(False, device=left.device)
    return (as_words(left) == as_words(right)).all()


def _together(flags: Sequence[torch.Tensor]) -> list[bool]:
    """Copy one-element tensors to the host with one synchronisation."""
    return [bool(flag) for flag in torch.stack(list(flags)).tolist()] if flags else []


def equal_each(pairs: Sequence[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]) -> list[bool]:
    """Whether each pair of tensor lists is bit-equal."""
    flags = [[_equal(a, b) for a, b in zip(left, right, strict=True)] for left, right in pairs]
    equal = iter(_together([flag for some in flags for flag in some]))
    return [all([next(equal) for _ in some]) for some in flags]
