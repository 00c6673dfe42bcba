"""The runner of a machine with no GPU: plans are executed on the CPU from the IR that was compiled, and their time is
modeled from the compiled code.

Check cases are executed whole. Plans of real size are executed whole where that is cheap, else in part (ir/partial.py),
and held against the reference or slices of it. A child executes; outputs come back as bytes and are compared here,
where the references are.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from evo_kernel.errors import InfraError, TaskError
from evo_kernel.fitness.correctness import check, regimes
from evo_kernel.fitness.correctness.check import poisoned
from evo_kernel.fitness.correctness.error_bounds import Change, Expected, expect_by
from evo_kernel.fitness.correctness.references import References
from evo_kernel.fitness.correctness.slicing.reference import SlicedReference
from evo_kernel.fitness.correctness.slicing.tracing import NotSliceable
from evo_kernel.fitness.costmodel.features import plan_features, torch_details
from evo_kernel.fitness.costmodel.index_inputs import index_inputs
from evo_kernel.fitness.costmodel.model import modeled_time
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.costmodel.torch_costs import unpriced
from evo_kernel.fitness.ir.launch_traffic import Amount, LaunchTraffic, at_least
from evo_kernel.fitness.plan.launch_plan import Aten, CompiledPlan, Plan, View
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart
from evo_kernel.fitness.runners.base import (
    Checked,
    CheckPart,
    Draw,
    Exam,
    Examined,
    ExamRunner,
    Paired,
    Round,
    TimePart,
    environment_here,
)
from evo_kernel.fitness.sandbox.guards import SandboxLimits
from evo_kernel.fitness.sandbox.zygote import JobResult, Zygote
from evo_kernel.fitness.stages import EXECUTING, Stages
from evo_kernel.fitness.timing.pairing import Comparison, PairVerdict
from evo_kernel.lru_cache import Recent
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec
from evo_kernel.types import CaseKind, Environment, Measurement, Status, content_hash

WHOLE_S = 2.0
"""Seconds up to which a plan of real size is executed whole, and its reference had whole."""
PART_S = 1.25
"""Of any other plan, seconds for which programs are executed."""
SLICES_S = 1.5
"""Seconds for slices of a reference."""
SLACK = 2.0
"""Some elements may be less exact than all of them together: allowed beyond their share of the honest error."""
_REFERENCE_BYTES = 2 << 30
_BATCH_BYTES = 64 << 20
_ANSWER_BYTES = 512 << 20
_MEMORY_BYTES = 24 << 30
_COUNTED_PLANS = 4096  # whose traffic is kept: about a kilobyte each


_KEPT_DRAWS = 3  # sets of inputs of large cases
_SIDE_BY_SIDE = 2  # cases of one candidate: each may take gigabytes

_Form = TypeVar("_Form", bound=BaseModel)
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Fault(_Told):
    status: Annotated[str, Field(pattern="^(rejected|wrong|runtime_error|timeout)$")]
    reason: Annotated[str, Field(max_length=4000)]


_Bytes = Annotated[int, Field(ge=0, le=_ANSWER_BYTES)]
_Position = Annotated[int, Field(ge=0, lt=256)]


class _Round(_Told):
    fault: _Fault | None = None
    changed: _Position | None = None
    outputs: Annotated[list[_Bytes], Field(max_length=64)] = []
    unwritten: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] = []  # elements, by output


class _Rounds(_Told):
    rounds: Annotated[list[_Round], Field(min_length=1, max_length=1 << 12)]


class _Traffic(_Told):
    fault: _Fault | None = None
    traffic: list[LaunchTraffic] = []


class _Look(_Told):
    fault: _Fault | None = None
    whole: bool = False
    changed: _Position | None = None
    executed: Annotated[list[dict[str, Amount]], Field(max_length=1 << 20)] = []
    outputs: Annotated[list[_Bytes], Field(max_length=64)] = []
    parts: Annotated[list[tuple[_Bytes, _Bytes]], Field(max_length=64)] = []
    unwritten: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] = []


class CpuRunner(ExamRunner):
    """Implements Runner without a GPU. Thread-safe: each request is a child of its own."""

    busy_s = 0.0
    card = ""
    baseline_faults: Mapping[str, str] = {}

    def __init__(self, task: Task, arch: int, deadline_s: float) -> None:
        self.arch, self.stages = arch, Stages()
        self._task, self._deadline_s = task, deadline_s
        self._zygote = Zygote("execute")
        self._closed = False
        self._references = References(_REFERENCE_BYTES)
        self._lock, self._drawing = threading.Lock(), threading.Lock()
        self._indices: dict[str, Mapping[int, torch.Tensor]] = {}
        self._counted: Recent[str, Sequence[LaunchTraffic]] = Recent(_COUNTED_PLANS)
        self._secret = secrets.token_hex(16)  # decides on which inputs traffic is counted, and which programs' lines
        self._executed: Recent[str, Sequence[Mapping[str, float]]] = Recent(_COUNTED_PLANS)
        self._draws: Recent[tuple[str, int, str], tuple[Input, ...]] = Recent(_KEPT_DRAWS)
        self._sliced: Recent[tuple[str, int, str], SlicedReference] = Recent(_KEPT_DRAWS)

    def start(self) -> None:
        self._zygote.start()

    def close(self) -> None:
        self._closed = True
        self._zygote.close()

    def environment(self, confinement: str) -> Environment:
        return environment_here("modeled", f"sm_{self.arch}", "none", confinement)

    def baselines(self, case: Case) -> Mapping[str, float]:
        """None: no vendor kernel can be timed here, so the judge takes the task's first kernel."""
        return {}

    def ceilings(self) -> Mapping[str, float]:
        """None: the table of targets stands in."""
        return {}

    def counters(self, parts: Sequence[CountPart]) -> CounterReading:
        return CounterReading(why="no hardware counters: there is no GPU here")

    def exam(self, exam: Exam) -> Examined:
        """Cases side by side, each by children of its own; all checks first."""
        checks = _side_by_side(self._checked, exam.checks)
        if checks and not checks[-1].passed:
            return Examined(checks)
        return Examined(checks, _side_by_side(self._timed, exam.timings))

    def get_ready(self, draws: Sequence[Draw]) -> None:
        for case, seed, regime in draws:
            if case.kind is CaseKind.CHECK:
                self._expected(case, seed, regime, self._draw(case, seed, regime))
                continue
            inputs = self._large_draw(case, seed, regime)
            sliced = self._sliced_reference(case, seed, regime, inputs)
            if sliced.fault or sliced.whole_seconds <= WHOLE_S:
                self._expected(case, seed, regime, inputs)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[CpuRunner]:
        """Itself: every request is a child of its own, and what is kept between them no plan can reach."""
        yield self

    # --- correctness ------------------------------------------------------------------------------------------------

    def _checked(self, part: CheckPart) -> Checked:
        """Every round on fresh inputs and memory."""
        plan, case, rounds = part.plan, part.case, part.rounds
        with self.stages.at(EXECUTING):
            if misfit := plan.plan.misfit([_spec(spec) for spec in self._task.input_specs(case)]):
                return Checked(Status.REJECTED, f"the plan is not for case {case.name}: {misfit}")
            if strange := next((n.op for n in plan.plan.nodes if isinstance(n, Aten) and unpriced(n)), ""):
                return Checked(
                    Status.REJECTED, f"it cannot be timed without a GPU: nothing tells what {strange} computes"
                )
            if case.kind is not CaseKind.CHECK:
                looks = (self._look(plan, case, seed, regime) for seed, regime in rounds)
                return next((found for found in looks if not found.passed), Checked(Status.PASSED))
            return self._check(plan, case, rounds)

    def _check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked:
        worst = 0.0
        for batch in _batches(plan.plan, rounds):
            drawn = [self._draw(case, seed, regime) for seed, regime in batch]
            executed = self._execute(plan, drawn)
            for (seed, regime), inputs, outputs in zip(batch, drawn, executed, strict=False):
                if isinstance(outputs, Checked):
                    return outputs
                expected = self._expected(case, seed, regime, inputs)
                result = check.compare(case.name, outputs, expected, self._task.tolerance)
                worst = max(worst, result.error)
                if not result.passed:
                    return Checked(Status.WRONG, result.reason, worst)
        return Checked(Status.PASSED, "", worst)

    def _execute(self, plan: CompiledPlan, drawn: Sequence[Sequence[Input]]) -> list[list[torch.Tensor] | Checked]:
        """Outputs of each round, or how it failed; what comes after a failure is left out."""
        files = {
            f"round{number}.{name}": data
            for number, inputs in enumerate(drawn)
            for name, data in _files(plan.plan, inputs).items()
        }
        request = {"command": "execute", "rounds": len(drawn), "repeat": not self._task.tolerance.atomics}
        told = self._ask(plan, request, files, _Rounds, self._deadline_s * len(drawn))
        if isinstance(told, Checked):
            return [told]
        header, blobs = told
        made: list[list[torch.Tensor] | Checked] = []
        for part in header.rounds:
            if part.fault is not None:
                return [*made, _failed(part.fault)]
            if part.changed is not None:
                return [*made, Checked(Status.WRONG, f"the kernel changes its input {part.changed}")]
            try:
                if lacking := _unwritten_integers(plan.plan, part.unwritten):
                    return [*made, Checked(Status.WRONG, lacking)]
                made.append(
                    [blobs.tensor(size, view) for size, view in zip(part.outputs, plan.plan.outputs, strict=True)]
                )
            except ValueError as error:
                return [*made, _malformed(error)]
        return made if len(made) == len(drawn) else [*made, _malformed("it lacks a round")]

    def _look(self, plan: CompiledPlan, case: Case, seed: int, regime: str) -> Checked:
        """A plan of real size, whole or in part."""
        inputs = self._large_draw(case, seed, regime)
        request = {
            "command": "look", "seed": secrets.randbits(48), "whole_s": WHOLE_S, "part_s": PART_S,
            "repeat": not self._task.tolerance.atomics,
        }  # fmt: skip
        told = self._ask(plan, request, _files(plan.plan, inputs), _Look, self._deadline_s)
        if isinstance(told, Checked):
            return told
        header, blobs = told
        if header.fault is not None:
            return _failed(header.fault, f"on {case.name}: ")
        if header.changed is not None:
            return Checked(Status.WRONG, f"on {case.name}: the kernel changes its input {header.changed}")
        if len(header.executed) != len(plan.plan.launches):
            return _malformed(f"{len(header.executed)} launches where the plan has {len(plan.plan.launches)}")
        with self._lock:
            self._executed.put(_traffic_key(plan, case), header.executed)
        try:
            if header.whole:
                if lacking := _unwritten_integers(plan.plan, header.unwritten):
                    return Checked(Status.WRONG, f"on {case.name}: {lacking}")
                outputs = [
                    blobs.tensor(size, view) for size, view in zip(header.outputs, plan.plan.outputs, strict=True)
                ]
                return self._compare_whole(case, seed, regime, inputs, outputs)
            looked_at = zip(plan.plan.outputs, header.parts, strict=True)
            if any(view.elements and not places for view, (places, _) in looked_at):
                (made,) = self._execute(plan, [inputs])
                return made if isinstance(made, Checked) else self._compare_whole(case, seed, regime, inputs, made)
            return self._compare_part(plan.plan, case, seed, regime, inputs, header, blobs)
        except ValueError as error:
            return _malformed(error)

    def _compare_whole(
        self, case: Case, seed: int, regime: str, inputs: Sequence[Input], outputs: Sequence[torch.Tensor]
    ) -> Checked:
        sliced = self._sliced_reference(case, seed, regime, inputs)
        if not sliced.fault and sliced.whole_seconds > WHOLE_S:
            found = self._compare_drawn(case, seed, sliced, outputs)
            if found is not None:
                return found
        expected = self._expected(case, seed, regime, inputs)
        return _verdict(case, check.compare(case.name, outputs, expected, self._task.tolerance))

    def _compare_drawn(
        self, case: Case, seed: int, sliced: SlicedReference, outputs: Sequence[torch.Tensor]
    ) -> Checked | None:
        """Random elements of whole outputs against slices, and that none is unwritten; None as `_compare_slices`."""
        generator = np.random.default_rng(seed)
        drawn = [
            torch.from_numpy(generator.integers(max(1, out.numel()), size=min(64, out.numel()))) for out in outputs
        ]
        for number, out in enumerate(outputs):
            if bool((marks := poisoned(out)).any()) and out.is_floating_point():
                lacking = int(marks.sum())
                return Checked(
                    Status.WRONG,
                    f"on {case.name}: output {number} has {lacking} of {out.numel()} elements that were never written, "
                    "or that come from memory nothing wrote",
                )
        values = [out.reshape(-1)[n] for out, n in zip(outputs, drawn, strict=True)]
        return self._compare_slices(case, sliced, drawn, values)

    def _compare_part(
        self, plan: Plan, case: Case, seed: int, regime: str, inputs: Sequence[Input], header: _Look, blobs: _Blobs
    ) -> Checked:
        elements, values = [], []
        for (places, data), view, lacking in zip(header.parts, plan.outputs, header.unwritten, strict=True):
            if lacking:
                return Checked(
                    Status.WRONG,
                    f"on {case.name}: {lacking} of {view.elements} elements of an output are never written, "
                    "or come from memory nothing wrote",
                )
            numbers = blobs.take(places).view(torch.int64)
            elements.append(numbers)
            values.append(blobs.take(data).view(getattr(torch, view.dtype)))
            if numbers.numel() != values[-1].numel() or bool(((numbers < 0) | (numbers >= view.elements)).any()):
                raise ValueError("elements that the output does not have")
        found = self._compare_slices(case, self._sliced_reference(case, seed, regime, inputs), elements, values)
        if found is not None:
            return found
        whole = self._expected(case, seed, regime, inputs)
        wanted = [_chosen(full, numbers) for full, numbers in zip(whole, elements, strict=True)]
        return _verdict(case, check.compare(case.name, values, wanted, self._task.tolerance))

    def _compare_slices(
        self, case: Case, sliced: SlicedReference, elements: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Checked | None:
        """Elements against slices of the reference: those that can be had in time, of each output some. None where they
        cost as much as the whole reference does, or fail."""
        seconds = SLICES_S
        try:
            while True:
                sample = sliced.sample(elements, seconds, np.random.default_rng())
                parts = zip(elements, sample.elements, strict=True)
                if not any(asked.numel() and not had.numel() for asked, had in parts):
                    break
                if seconds >= min(sliced.whole_seconds, self._deadline_s):
                    return None
                seconds *= 4
            expected = sliced.expect(sample)
        except (NotSliceable, TaskError):  # a task whose reference is at fault fails as a whole, too
            return None
        kept = []
        for numbers, asked, found in zip(sample.elements, elements, values, strict=True):
            order = torch.argsort(asked)
            kept.append(found[order[torch.searchsorted(asked[order], numbers)]])
        return _verdict(case, check.compare(case.name, kept, expected, self._task.tolerance))

    def _sliced_reference(self, case: Case, seed: int, regime: str, inputs: Sequence[Input]) -> SlicedReference:
        with self._drawing:
            return self._sliced.find((case.name, seed, regime), lambda: SlicedReference(self._task, inputs))

    # --- time -------------------------------------------------------------------------------------------------------

    def pair(self, incumbent: CompiledPlan, challenger: CompiledPlan, case: Case, seed: int) -> Paired | Checked:
        """Modeled times are exact: one is enough of each. Nothing is looked at: `check` and `measure` do that."""
        times = []
        for plan in (incumbent, challenger):
            found = self.measure(plan, case, seed, checked=False)
            if isinstance(found, Checked):
                return found
            times.append(found.median_us)
        ratio = times[0] / times[1]
        verdict = PairVerdict.EQUAL if ratio == 1.0 else PairVerdict.FASTER if ratio > 1.0 else PairVerdict.SLOWER
        return Paired(Comparison(verdict, 0, ratio, ratio, ratio), *times)

    def _timed(self, part: TimePart) -> Measurement | Checked:
        """Modeled time, the same for the same plan; where it is to be checked, after a look at it."""
        plan, case = part.plan, part.case
        if part.checked and not (seen := self._checked(CheckPart(plan, case, ((part.seed, "nominal"),)))).passed:
            return seen
        with self.stages.at(EXECUTING):
            traffic = self.traffic(plan, case)
        if isinstance(traffic, Checked):
            return traffic
        with self._lock:
            did = self._executed.get(_traffic_key(plan, case))
        if did is not None:
            traffic = [at_least(counted, amounts) for counted, amounts in zip(traffic, did, strict=True)]
        target = target_for(self.arch)
        modeled = modeled_time(plan, traffic, target)
        total = max(sum(launch.us for launch in modeled.launches), 1e-9)
        shares = [launch.us / total for launch in modeled.launches]
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
            details={name: sum(n.terms.get(name, 0.0) for n in modeled.launches) for name in _terms(modeled)}
            | torch_details(plan, sum(launch.us for launch in modeled.launches), us),
        )

    def traffic(self, plan: CompiledPlan, case: Case) -> Sequence[LaunchTraffic] | Checked:
        """Counted traffic; a plan that differs from one seen before only in warps or stages is not counted again."""
        key = _traffic_key(plan, case)
        with self._lock:
            known = self._counted.get(key)
        if known is not None:
            return known
        inputs = self._index_inputs(case)
        drawn_by = self._drawn(key)
        told = self._count(plan, inputs, drawn_by, complete=False)
        if isinstance(told, Checked) and told.status is Status.WRONG:  # addresses depend on floating-point data
            drawn = self._large_draw(case, self._drawn("inputs", case.name), "nominal")
            told = self._count(plan, dict(enumerate(drawn)), drawn_by, complete=True)
        if isinstance(told, Checked):
            return told
        with self._lock:
            return self._counted.put(key, told)

    def _count(
        self, plan: CompiledPlan, inputs: Mapping[int, Input], seed: int, complete: bool
    ) -> Sequence[LaunchTraffic] | Checked:
        files = _files(plan.plan, [inputs.get(n) for n in range(len(plan.plan.inputs))])
        request = {"command": "count", "seed": seed, "complete": complete}
        told = self._ask(plan, request, files, _Traffic, self._deadline_s)
        if isinstance(told, Checked):
            return told
        header, _ = told
        if header.fault is not None:
            return _failed(header.fault)
        if len(header.traffic) != len(plan.plan.launches):
            return _malformed(f"{len(header.traffic)} launches where the plan has {len(plan.plan.launches)}")
        return tuple(header.traffic)

    def _drawn(self, *of: object) -> int:
        """A seed that nobody else can know, the same for the same things as long as the runner lives."""
        return int(content_hash([self._secret, *map(str, of)])[:12], 16)

    # --- shared -----------------------------------------------------------------------------------------------------

    def _ask(
        self, plan: CompiledPlan, request: dict[str, Any], files: dict[str, bytes], form: type[_Form], deadline_s: float
    ) -> tuple[_Form, _Blobs] | Checked:
        """One request to a child: its header and what follows it."""
        whole = {
            **request,
            "plan": plan.plan.model_dump(mode="json"),
            "ir": [binary.ir for binary in plan.binaries],
            "deadline_s": self._deadline_s,
        }
        # The child ends itself when it is late; this deadline is for one that does not.
        limits = SandboxLimits(deadline_s=deadline_s + 5.0, memory_bytes=_MEMORY_BYTES, answer_bytes=_ANSWER_BYTES)
        result = self._zygote.run(whole, limits, files)
        if result.data is None:
            return self._ended(result)
        try:
            length = int.from_bytes(result.data[:8], "little")
            header = TypeAdapter(form).validate_json(result.data[8 : 8 + length], strict=True)
        except (ValidationError, json.JSONDecodeError) as error:
            return _malformed(error)
        return header, _Blobs(result.data, 8 + length)

    def _ended(self, result: JobResult) -> Checked:
        if result.outcome == "timeout":
            return Checked(Status.TIMEOUT, f"it did not finish on the CPU within {self._deadline_s:g} s")
        if result.outcome == "memory":
            return Checked(Status.RUNTIME_ERROR, "it needs more memory than the executor may use")
        last = result.detail.strip().splitlines()[-1] if result.detail.strip() else result.outcome
        return Checked(Status.RUNTIME_ERROR, f"it ended in the executor: {last}"[:2000])

    def _expected(self, case: Case, seed: int, regime: str, inputs: Sequence[Input]) -> tuple[Expected, ...]:
        """Raises InfraError once this runner is closed: nobody waits for what a thread of it still computes."""

        def run(change: Change) -> Sequence[torch.Tensor]:
            if self._closed:
                raise InfraError("the runner is closed")
            return self._task.outputs(*map(change, inputs))

        make = partial(expect_by, run, inputs, self._task.tolerance.precision)
        return self._references.of(case.name, seed, regime, make)

    def _index_inputs(self, case: Case) -> Mapping[int, torch.Tensor]:
        """Values of integer inputs, drawn once a case: they decide where programs read, and no kernel knows them."""
        with self._lock:
            if case.name not in self._indices:
                self._indices[case.name] = index_inputs(self._task, case, self._drawn("inputs", case.name))
            return self._indices[case.name]

    def _draw(self, case: Case, seed: int, regime: str) -> tuple[Input, ...]:
        return regimes.drawn(self._task, case, seed, regime, "cpu")

    def _large_draw(self, case: Case, seed: int, regime: str) -> tuple[Input, ...]:
        """Inputs of a large case: made one at a time, the last few kept."""
        with self._drawing:
            return self._draws.find((case.name, seed, regime), lambda: self._draw(case, seed, regime))


def _side_by_side(work: Callable[[_Asked], _Answer], parts: Sequence[_Asked]) -> tuple[_Answer, ...]:
    """Answers in order, up to the first failure: when one has failed, none after it is begun."""
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


class _Blobs:
    """Bytes of tensors, one behind the other."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._position = data, start

    def take(self, size: int) -> torch.Tensor:
        """The next bytes, as uint8. Raises ValueError."""
        if self._position + size > len(self._data):
            raise ValueError("fewer bytes than were announced")
        made = torch.from_numpy(np.frombuffer(self._data, dtype=np.uint8, count=size, offset=self._position).copy())
        self._position += size
        return made

    def tensor(self, size: int, view: View) -> torch.Tensor:
        """The next bytes as an output. Raises ValueError."""
        if size != view.elements * view.item_bytes:
            raise ValueError("an output came back with another size")
        return self.take(size).view(getattr(torch, view.dtype)).reshape(view.shape)


def _chosen(full: Expected, places: torch.Tensor) -> Expected:
    """What is expected of some elements: their share of the honest error, by number or by size."""
    truth = full.truth.flatten()[places]
    share = math.sqrt(places.numel() / max(1, full.honest.numel()))
    if truth.is_floating_point():
        whole = float(torch.where(full.truth.isfinite(), full.truth, 0).norm())
        share = max(share, float(torch.where(truth.isfinite(), truth, 0).norm()) / whole if whole else 0.0)
    return replace(
        full,
        truth=truth,
        honest=full.honest.flatten()[places],
        compared=full.compared.flatten()[places],
        frobenius=full.frobenius * min(1.0, SLACK * share),
    )


def _verdict(case: Case, result: Any) -> Checked:
    if result.passed:
        return Checked(Status.PASSED, "", result.error)
    return Checked(Status.WRONG, f"wrong on {case.name}: {result.reason}", math.inf)


def _failed(fault: _Fault, where: str = "") -> Checked:
    return Checked(Status(fault.status), f"{where}{fault.reason}"[:2000])


def _unwritten_integers(plan: Plan, unwritten: Sequence[int]) -> str:
    """Outputs of integers that lack elements; of other outputs poison tells (check.py). Raises ValueError."""
    for number, (view, lacking) in enumerate(zip(plan.outputs, unwritten, strict=True)):
        if lacking and not getattr(torch, view.dtype).is_floating_point:
            return (
                f"output {number} has {lacking} of {view.elements} elements that were never written, or that come from "
                "memory nothing wrote"
            )
    return ""


def _malformed(error: object) -> Checked:
    return Checked(Status.REJECTED, f"the executor's answer is malformed: {error}"[:2000])


def _traffic_key(plan: CompiledPlan, case: Case) -> str:
    """Hash of all that the counter sees of a plan."""
    rest = plan.plan.model_dump(mode="json", include={"target", "inputs", "buffers", "nodes", "outputs"})
    return content_hash([case.name, [binary.ir for binary in plan.binaries], rest])


def _batches(plan: Plan, rounds: Sequence[Round]) -> Iterator[Sequence[Round]]:
    """Rounds for one child each, so that what it is given and answers stays within `_BATCH_BYTES`, or is one round."""
    size = sum(plan.buffers[view.buffer].bytes for view in (*plan.inputs, *plan.outputs) if view is not None)
    count = max(1, _BATCH_BYTES // max(1, size))
    yield from (rounds[start : start + count] for start in range(0, len(rounds), count))


def _terms(modeled: Any) -> set[str]:
    return {name for launch in modeled.launches for name in launch.terms}


def _spec(spec: TensorSpec | int | float) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    return (spec.dtype, spec.shape, spec.strides) if isinstance(spec, TensorSpec) else None


def _files(plan: Plan, inputs: Sequence[Input | None]) -> dict[str, bytes]:
    """Content of the buffers of inputs."""
    made = {}
    for view, value in zip(plan.inputs, inputs, strict=True):
        if view is not None and isinstance(value, torch.Tensor):
            storage = torch.zeros(plan.buffers[view.buffer].bytes, dtype=torch.uint8)
            usable = storage.numel() // view.item_bytes * view.item_bytes
            typed = storage[:usable].view(getattr(torch, view.dtype))
            torch.as_strided(typed, view.shape, view.strides, view.offset).copy_(value)
            made[f"buffer{view.buffer}.bin"] = storage.numpy().tobytes()
    return made
