"""CPU runner: executes plans from their IR on the CPU and models their time from machine code and counted traffic.

Check cases are executed completely. Plans of real size are executed completely if that is cheap, else some of their
programs are (ir/partial.py). A child executes (executor.py) and returns outputs as bytes, which are compared here
(cpu_references.py).
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from evo_kernel.errors import BadDraw
from evo_kernel.fitness.correctness.check import changed_reason
from evo_kernel.fitness.correctness.references import fresh_seed
from evo_kernel.fitness.costmodel.features import plan_features, torch_details
from evo_kernel.fitness.costmodel.model import modeled_time
from evo_kernel.fitness.costmodel.targets import occupancy, target_for
from evo_kernel.fitness.costmodel.torch_costs import unpriced
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic, TorchWork, at_least
from evo_kernel.fitness.plan.launch_plan import Aten, CompiledPlan, Plan
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart
from evo_kernel.fitness.runners import parameters
from evo_kernel.fitness.runners.base import (
    Checked,
    CheckPart,
    Draw,
    PlanSetAnswer,
    PlanSetRequest,
    Round,
    Runner,
    TimePart,
    environment_here,
)
from evo_kernel.fitness.runners.cpu_references import CpuReferences, LookLimits, index_inputs, integers_among
from evo_kernel.fitness.runners.executor import Blobs, Executor, LargeExecution, malformed
from evo_kernel.fitness.runners.launch_limits import DeviceLimits, PlanFault, check_cooperative, check_plan
from evo_kernel.fitness.stages import EXECUTING, Stages
from evo_kernel.fitness.timing.estimates import Comparison, PairVerdict
from evo_kernel.lru_cache import Recent
from evo_kernel.tasks.scripts import refuse_too_large
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec
from evo_kernel.types import CaseKind, Environment, Measurement, Status, content_hash

_BATCH_BYTES = 64 << 20
_COUNTED_PLANS = 4096  # plans whose traffic is cached, about a kilobyte each
_LEAST_S = 0.05  # for programs of a plan whose part says nothing
_SIDE_BY_SIDE = 2  # cases of one candidate executed in parallel: each may take gigabytes

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class CpuRunner(Runner):
    """Runs plans without a GPU; each request is served by a child of its own."""

    def __init__(self, task: Task, arch: int, deadline_s: float, limits: LookLimits | None = None) -> None:
        self.arch, self.stages = arch, Stages()
        self._task = task
        self._executor = Executor(deadline_s, repeat=not task.tolerance.atomics, mutates=task.mutates)
        self._limits = limits or LookLimits()
        self._references = CpuReferences(task, deadline_s, self._limits)
        self._lock = threading.Lock()
        self._indices: dict[str, Mapping[int, torch.Tensor]] = {}
        self._counted: Recent[str, Sequence[LaunchTraffic]] = Recent(_COUNTED_PLANS)
        self._executed: Recent[str, LargeExecution] = Recent(_COUNTED_PLANS)
        self._secret = secrets.token_hex(16)  # determines the inputs for counting traffic, and the programs to count

    def start(self) -> None:
        self._executor.start()

    def close(self) -> None:
        self._references.closed = True
        self._executor.close()

    def environment(self, confinement: str) -> Environment:
        return environment_here("modeled", f"sm_{self.arch}", "none", confinement)

    def counters(self, parts: Sequence[CountPart]) -> CounterReading:
        return CounterReading(why="no hardware counters: there is no GPU here")

    def answer(self, request: PlanSetRequest) -> PlanSetAnswer:
        """Answer a request; cases run in parallel, checks before timings."""
        checks = _side_by_side(self._checked, request.checks)
        if checks and not checks[-1].passed:
            return PlanSetAnswer(checks)
        return PlanSetAnswer(checks, _side_by_side(self._timed, request.timings))

    def prepare_references(self, draws: Sequence[Draw]) -> None:
        for draw in draws:
            self._references.prepare(draw)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[CpuRunner]:
        """Itself: every request has its own child, and plans cannot reach what is cached between requests."""
        yield self

    # --- correctness ------------------------------------------------------------------------------------------------

    def _checked(self, part: CheckPart) -> Checked:
        """Check every round with fresh inputs and memory."""
        plan, case, rounds = part.plan, part.case, part.rounds
        with self.stages.at(EXECUTING):
            if fault := self._fault(plan, case):
                return Checked(Status.REJECTED, fault)
            if case.kind is not CaseKind.CHECK:
                worst = Checked(Status.PASSED)
                for seed, regime in rounds:
                    if not self._references.is_defined((case, seed, regime)):
                        continue
                    try:
                        found = self._check_large(plan, (case, seed, regime))
                    except BadDraw:
                        if regime == "nominal":
                            raise
                        continue
                    if not found.passed:
                        return found
                    worst = max(found, worst, key=lambda one: one.error)
                return worst
            return self._check(plan, case, rounds)

    def _refuse_too_large(self, case: Case) -> None:
        """Once inputs are drawn. Raises TaskError where the system would kill the judge for the executor's copy, and
        for what the reference makes of inputs in float64. What a candidate allocates is the executor's to refuse."""
        specs = [spec for spec in self._task.input_specs(case) if isinstance(spec, TensorSpec)]
        needed = 2 * sum(spec.elements * getattr(torch, spec.dtype).itemsize for spec in specs)
        refuse_too_large(f"{self._task.path}, case {case.name}", needed, torch.device("cpu"), "judge it on a GPU")

    def _fault(self, plan: CompiledPlan, case: Case) -> str:
        """Why the plan is not executed for a case; empty if it is."""
        if misfit := plan.plan.misfit([_spec(spec) for spec in self._task.input_specs(case)]):
            return f"the plan is not for case {case.name}: {misfit}"
        if fault := self._launch_fault(plan):
            return f"on {case.name}: {fault}"
        if strange := next((n.op for n in plan.plan.nodes if isinstance(n, Aten) and unpriced(n)), ""):
            return f"it cannot be timed without a GPU: nothing tells what {strange} computes"
        return ""

    def _launch_fault(self, plan: CompiledPlan) -> str:
        """Why the GPU whose times are modeled cannot launch the plan; empty if it can."""
        target = target_for(self.arch)
        limits = DeviceLimits(self.arch, target.shared_bytes_per_block, target.threads_per_block, target.sm_count)
        try:
            check_plan(plan, limits)
            for launch in plan.plan.launches:
                binary = plan.binaries[launch.kernel]
                if binary.cooperative:
                    fits = occupancy(target, binary.registers, binary.block_shared_bytes, binary.num_warps)
                    check_cooperative(binary, launch, fits.blocks_per_sm, limits)
                for slot in parameters.slots(plan.plan.kernels[launch.kernel], binary, launch):
                    if isinstance(slot, parameters.Mapped):
                        parameters.tensor_map(slot.descriptor, slot.meta, slot.descriptor.offset)
        except PlanFault as fault:
            return str(fault)
        return ""

    def _check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked:
        worst = 0.0
        for batch in batches(plan.plan, rounds):
            draws = [draw for round_ in batch if self._references.applies(draw := (case, *round_))]
            drawn = [self._references.inputs(draw) for draw in draws]
            for draw, inputs, outputs in zip(draws, drawn, self._executor.execute(plan, drawn), strict=False):
                if isinstance(outputs, Checked):
                    return outputs
                result = self._references.compare(draw, inputs, outputs)
                worst = max(worst, result.error)
                if not result.passed:
                    return Checked(Status.WRONG, result.reason, worst)
        return Checked(Status.PASSED, "", worst)

    def _check_large(self, plan: CompiledPlan, draw: Draw) -> Checked:
        """Check a plan of real size, executed completely or in part."""
        inputs = self._references.inputs(draw)
        self._refuse_too_large(draw[0])
        answer = self._execute_large(plan, draw[0], inputs, self._limits.whole_s, self._limits.part_s)
        try:
            return answer if isinstance(answer, Checked) else self._compare(plan, draw, inputs, *answer)
        except ValueError as error:
            return malformed(error)

    def check_in_full(self, plan: CompiledPlan, case: Case, whole_s: float) -> Checked | None:
        draw = (case, fresh_seed(), "nominal")
        inputs = self._references.inputs(draw)
        answer = self._execute_large(plan, case, inputs, whole_s, _LEAST_S)
        if isinstance(answer, Checked):
            return answer
        execution, blobs = answer
        if not execution.whole:
            return None
        try:
            outputs = execution.tensors(plan.plan.outputs, blobs, f"on {case.name}: ")
        except ValueError as error:
            return malformed(error)
        if isinstance(outputs, Checked):
            return outputs
        result = self._references.compare(draw, inputs, outputs)
        return Checked(Status.PASSED if result.passed else Status.WRONG, result.reason, result.error)

    def _execute_large(
        self, plan: CompiledPlan, case: Case, inputs: Sequence[Input], whole_s: float, part_s: float
    ) -> tuple[LargeExecution, Blobs] | Checked:
        with self._lock:
            counted = self._counted.get(traffic_key(plan, case)) or ()
        answer = self._executor.execute_large(plan, inputs, whole_s, part_s, counted)
        if isinstance(answer, Checked):
            return answer
        execution, _ = answer
        if execution.fault is not None:
            return execution.fault.checked(f"on {case.name}: ")
        if execution.changed is not None:
            return Checked(Status.WRONG, f"on {case.name}: {changed_reason(execution.changed)}")
        if len(execution.executed) != len(plan.plan.launches):
            return malformed(f"{len(execution.executed)} launches where the plan has {len(plan.plan.launches)}")
        with self._lock:
            self._executed.put(traffic_key(plan, case), execution)
        return answer

    def _compare(
        self, plan: CompiledPlan, draw: Draw, inputs: Sequence[Input], execution: LargeExecution, blobs: Blobs
    ) -> Checked:
        """Raises ValueError for a malformed answer."""
        views = plan.plan.outputs
        if execution.whole:
            outputs = execution.tensors(views, blobs, f"on {draw[0].name}: ")
        elif any(view.elements and not places for view, (places, _) in zip(views, execution.parts, strict=True)):
            (outputs,) = self._executor.execute(plan, [inputs])
        else:
            return self._references.compare_part(draw, inputs, views, execution, blobs)
        return outputs if isinstance(outputs, Checked) else self._references.compare_large(draw, inputs, outputs)

    # --- time -------------------------------------------------------------------------------------------------------

    def pair(self, incumbent: CompiledPlan, challenger: CompiledPlan, case: Case, seed: int) -> Comparison | Checked:
        """Modeled times are deterministic, so one of each suffices. Outputs are not compared here."""
        times = []
        for plan in (incumbent, challenger):
            measured = self.measure(plan, case, seed, checked=False)
            if isinstance(measured, Checked):
                return measured
            times.append(measured.median_us)
        ratio = times[0] / times[1]
        verdict = PairVerdict.EQUAL if ratio == 1.0 else PairVerdict.FASTER if ratio > 1.0 else PairVerdict.SLOWER
        return Comparison(verdict, 0, ratio, ratio, ratio)

    def _timed(self, part: TimePart) -> Measurement | Checked:
        """Modeled time, the same for the same plan; outputs are checked before if requested."""
        plan, case = part.plan, part.case
        compared: dict[str, float] = {}
        if part.checked and (fault := self._fault(plan, case)):
            return Checked(Status.REJECTED, fault)
        with self.stages.at(EXECUTING):
            traffic = self.traffic(plan, case)  # first: it tells how long the plan takes
        if isinstance(traffic, Checked) and traffic.status is Status.TIMEOUT:
            return traffic  # the check would end so, too
        if part.checked:
            checked = self._checked(CheckPart(plan, case, ((part.seed, "nominal"),)))
            if not checked.passed:
                return checked
            compared = checked.compared.as_details() if checked.compared is not None else {}
        if isinstance(traffic, Checked):
            return traffic
        with self._lock:
            did = self._executed.get(traffic_key(plan, case))
        inside: dict[int, TorchWork] = {}
        if did is not None:
            traffic = [at_least(counted, amounts) for counted, amounts in zip(traffic, did.executed, strict=True)]
            inside = {int(place): work for place, work in did.inside.items()}
        target = target_for(self.arch)
        modeled = modeled_time(plan, traffic, target, inside=inside)
        launches_us = sum(launch.us for launch in modeled.launches)
        shares = [launch.us / max(launches_us, 1e-9) for launch in modeled.launches]
        terms = {name for launch in modeled.launches for name in launch.terms}
        us = modeled.total_us
        return Measurement(
            case=case.name,
            plan=plan.hash,
            median_us=us,
            iqr_us=0.0,
            n=0,
            low_us=us,
            high_us=us,
            features=plan_features(plan, shares, target),
            details={name: sum(n.terms.get(name, 0.0) for n in modeled.launches) for name in terms}
            | torch_details(plan, launches_us, us)
            | compared,
        )

    def traffic(self, plan: CompiledPlan, case: Case) -> Sequence[LaunchTraffic] | Checked:
        """Counted traffic; a plan that differs from one seen before only in warps or stages is not counted again."""
        if not plan.plan.launches:  # only torch operations, which shapes price
            return []
        key = traffic_key(plan, case)
        with self._lock:
            known = self._counted.get(key)
        if known is not None:
            return known
        seed = self._secret_seed(key)
        counted = self._executor.count(plan, self.counted_indices(case), seed, complete=False)
        if isinstance(counted, Checked) and counted.status is Status.WRONG:  # addresses depend on floating-point data
            drawn = self._references.inputs((case, self._secret_seed("inputs", case.name), "nominal"))
            counted = self._executor.count(plan, dict(enumerate(drawn)), seed, complete=True)
        elif not isinstance(counted, Checked) and integers_among(self._task, case) - self.counted_indices(case).keys():
            counted = [replace(launch, crowd=0.0) for launch in counted]  # zeros as indices are all one place
        if isinstance(counted, Checked):
            return counted
        with self._lock:
            return self._counted.put(key, counted)

    def _secret_seed(self, *of: object) -> int:
        """A secret seed derived from the arguments, constant for this runner."""
        return int(content_hash([self._secret, *map(str, of)])[:12], 16)

    def counted_indices(self, case: Case) -> Mapping[int, torch.Tensor]:
        """Values of integer inputs, drawn once a case: they decide where programs read, and no kernel knows them."""
        with self._lock:
            if case.name not in self._indices:
                self._indices[case.name] = index_inputs(self._task, case, self._secret_seed("inputs", case.name))
            return self._indices[case.name]


def _side_by_side(work: Callable[[_Asked], _Answer], parts: Sequence[_Asked]) -> tuple[_Answer, ...]:
    """Answers in order, up to the first failure, after which no further part is started."""
    failed = threading.Event()

    def one(part: _Asked) -> _Answer | None:
        if failed.is_set():
            return None
        found = work(part)
        if isinstance(found, Checked) and not found.passed:
            failed.set()
        return found

    with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
        answers = list(threads.map(one, parts))
    found = [answer for answer in answers if answer is not None]
    last = next((n for n, answer in enumerate(found) if isinstance(answer, Checked) and not answer.passed), len(found))
    return tuple(found[: last + 1])


def traffic_key(plan: CompiledPlan, case: Case) -> str:
    """Hash of all that the counter sees of a plan."""
    rest = plan.plan.model_dump(mode="json", include={"target", "inputs", "buffers", "nodes", "outputs"})
    return content_hash([case.name, [binary.ir for binary in plan.binaries], rest])


def batches(plan: Plan, rounds: Sequence[Round]) -> Iterator[Sequence[Round]]:
    """Rounds for one child each, so that what it is given and answers stays within `_BATCH_BYTES`, or is one round."""
    size = sum(plan.buffers[view.buffer].bytes for view in (*plan.inputs, *plan.outputs) if view is not None)
    count = max(1, _BATCH_BYTES // max(1, size))
    yield from (rounds[start : start + count] for start in range(0, len(rounds), count))


def _spec(spec: TensorSpec | int | float) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    return (spec.dtype, spec.shape, spec.strides) if isinstance(spec, TensorSpec) else None
