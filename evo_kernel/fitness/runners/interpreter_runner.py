"""The runner of a machine with no GPU: plans are executed by Triton's interpreter in confined children, on small
cases, and their time is modeled from the compiled code.

Only the kernel text that a plan carries is executed; outputs come back as bytes and are compared here, where the
references are. A child never sees a reference.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import triton

from evo_kernel.fitness import check, looked, regimes
from evo_kernel.fitness.confined.guards import Limits
from evo_kernel.fitness.confined.zygote import JobResult, Malformed, Zygote
from evo_kernel.fitness.counters import Counted, CountPart
from evo_kernel.fitness.expected import Expected, expect
from evo_kernel.fitness.features import plan_features, torch_details
from evo_kernel.fitness.interpreting import TOO_LATE
from evo_kernel.fitness.interpreting.sampling_inputs import index_inputs
from evo_kernel.fitness.interpreting.traffic import LaunchTraffic, read_traffic
from evo_kernel.fitness.model import modeled_time
from evo_kernel.fitness.pairing import Comparison, PairSettings, Verdict
from evo_kernel.fitness.pipeline import EXECUTING, Stages
from evo_kernel.fitness.plan import CompiledPlan, Plan, View
from evo_kernel.fitness.references import References
from evo_kernel.fitness.runners.base import Checked, Exam, Examined, Paired, Round, exam_one_by_one
from evo_kernel.fitness.targets import target_for
from evo_kernel.fitness.timing import JUDGE_VERSION
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec
from evo_kernel.types import CaseKind, Environment, Measurement, Status, content_hash

_LATE = (Status.TIMEOUT, "it did not finish in the interpreter within {deadline:g} s")
_STATUS = {
    "timeout": _LATE,
    f"exit {TOO_LATE}": _LATE,
    "memory": (Status.RUNTIME_ERROR, "it needs more memory than the interpreter may use"),
}
_REFERENCE_BYTES = 1 << 30
_BATCH_BYTES = 64 << 20
_ANSWER_BYTES = 256 << 20
_SAMPLED_PLANS = 4096  # whose traffic is kept: about a kilobyte each
_NOT_SAMPLED = {"num_warps", "num_stages", "num_ctas", "maxnreg"}
"""Options that decide how a program is compiled, not what it reads, writes and computes."""
_KEPT_FILES = 3  # sets of input files of large cases
_ELEMENTS, _ELEMENTS_UNKNOWN, _FLOPS = 20_000_000, 4_000_000, 2e9
"""Input elements, with and without a known flop count, and flops of a case whose full-size reference can be had."""


class InterpreterRunner:
    """Implements Runner without a GPU. Thread-safe: each request is a child of its own."""

    busy_s = 0.0
    baseline_faults: Mapping[str, str] = {}

    def __init__(self, task: Task, arch: int, deadline_s: float) -> None:
        self.arch, self.stages = arch, Stages()
        self._task, self._deadline_s = task, deadline_s
        self._zygote = Zygote("interpret", {"TRITON_INTERPRET": "1"})
        self._references = References(_REFERENCE_BYTES)
        self._lock = threading.Lock()
        self._indices: dict[str, Mapping[int, torch.Tensor]] = {}
        self._sampled: dict[str, Sequence[LaunchTraffic]] = {}
        self._preparing = threading.Lock()
        self._files: dict[tuple[object, ...], dict[str, bytes]] = {}

    def start(self) -> None:
        self._zygote.start()

    def close(self) -> None:
        self._zygote.close()

    def environment(self, confinement: str) -> Environment:
        return Environment(
            kind="modeled",
            device=f"sm_{self.arch}",
            driver="none",
            torch=torch.__version__,
            triton=triton.__version__,
            fp_fusion=os.environ.get("TRITON_DEFAULT_FP_FUSION", "1") == "1",
            judge=JUDGE_VERSION,
            confinement=confinement,
        )

    def baselines(self, case: Case) -> Mapping[str, float]:
        """None: no vendor kernel can be timed here, so the judge takes the task's first kernel."""
        return {}

    def check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked:
        """Every round on fresh inputs and memory; one child for as many rounds as fit in its answer.

        Check cases are executed as a whole; of larger ones, some programs.
        """
        with self.stages.at(EXECUTING):
            return self._check(plan, case, rounds)

    def _check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked:
        if (gap := _gap(plan.plan)) is not None:
            return gap
        if misfit := plan.plan.misfit([_spec(spec) for spec in self._task.input_specs(case)]):
            return Checked(Status.REJECTED, f"the plan is not for case {case.name}: {misfit}")
        if case.kind is not CaseKind.CHECK:
            looks = (self._look(plan.plan, case, seed, regime) for seed, regime in rounds)
            return next((found for found in looks if not found.passed), Checked(Status.PASSED))
        worst = 0.0
        for batch in _batches(plan.plan, rounds):
            drawn = [self._draw(case, seed, regime) for seed, regime in batch]
            executed = self._execute(plan.plan, drawn)
            for (seed, regime), inputs, outputs in zip(batch, drawn, executed, strict=False):
                if isinstance(outputs, Checked):
                    return outputs
                make = partial(expect, self._task, inputs)
                expected = self._references.of(case.name, seed, regime, "cpu", make)
                result = check.compare(case.name, outputs, expected, self._task.tolerance)
                worst = max(worst, result.error)
                if not result.passed:
                    return Checked(Status.WRONG, result.reason, worst)
        return Checked(Status.PASSED, "", worst)

    def ceilings(self) -> Mapping[str, float]:
        """None: the table of targets stands in."""
        return {}

    def counters(self, parts: Sequence[CountPart]) -> Counted:
        return Counted(why="no hardware counters: there is no GPU here")

    def exam(self, exam: Exam) -> Examined:
        return exam_one_by_one(self, exam)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[InterpreterRunner]:
        """Itself: every request is a child of its own, and what is kept between them no plan can reach."""
        yield self

    def pair(
        self,
        incumbent: CompiledPlan,
        challenger: CompiledPlan,
        case: Case,
        seed: int,
        settings: PairSettings | None = None,
        checked: bool = True,
    ) -> Paired | Checked:
        """Modeled times are exact: one is enough of each. Nothing is looked at: `check` and `measure` do that."""
        del checked
        times = []
        for plan in (incumbent, challenger):
            found = self.measure(plan, case, seed, checked=False)
            if isinstance(found, Checked):
                return found
            times.append(found.median_us)
        ratio = times[0] / times[1]
        verdict = Verdict.EQUAL if ratio == 1.0 else Verdict.FASTER if ratio > 1.0 else Verdict.SLOWER
        return Paired(Comparison(verdict, 0, ratio, ratio, ratio), *times)

    def measure(
        self, plan: CompiledPlan, case: Case, seed: int, checked: bool = True, against_us: float | None = None
    ) -> Measurement | Checked:
        """Modeled time, the same for the same plan; with `checked`, after a look at some of its programs."""
        del against_us
        if checked and not (seen := self.check(plan, case, [(seed, "nominal")])).passed:
            return seen
        with self.stages.at(EXECUTING):
            traffic = self.traffic(plan.plan, case)
        if isinstance(traffic, Checked):
            return traffic
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

    def traffic(self, plan: Plan, case: Case) -> Sequence[LaunchTraffic] | Checked:
        """Sampled traffic; a plan that differs from one seen before only in warps or stages is not sampled again."""
        key = _traffic_key(plan, case)
        if (known := self._sampled.get(key)) is not None:
            return known
        request = {"command": "traffic", "plan": plan.model_dump(mode="json")}
        files = {
            f"buffer{view.buffer}.bin": _bytes_of(plan, view, value)
            for position, value in self._index_inputs(case).items()
            if (view := plan.inputs[position]) is not None
        }
        result = self._zygote.run(request, Limits(deadline_s=self._deadline_s, memory_bytes=16 << 30), files)
        answer = _answer(result)
        if answer is None or "traffic" not in answer:
            return self._failed(result.outcome, result.detail, answer)
        try:
            traffic = read_traffic(answer["traffic"])
            if len(traffic) != len(plan.launches):
                raise ValueError(f"it tells of {len(traffic)} launches where the plan has {len(plan.launches)}")
        except ValueError as error:
            return Checked(Status.REJECTED, f"the interpreter's answer is malformed: {error}")
        with self._lock:
            self._sampled[key] = traffic
            if len(self._sampled) > _SAMPLED_PLANS:
                del self._sampled[next(iter(self._sampled))]
        return traffic

    def _index_inputs(self, case: Case) -> Mapping[int, torch.Tensor]:
        """Values of integer inputs, drawn once a case: they decide where sampled programs read."""
        with self._lock:
            if case.name not in self._indices:
                self._indices[case.name] = index_inputs(self._task, case)
            return self._indices[case.name]

    def _draw(self, case: Case, seed: int, regime: str) -> tuple[Input, ...]:
        generator = torch.Generator("cpu").manual_seed(seed)
        return regimes.apply(regime, self._task.inputs(case, generator, "cpu"))

    def _execute(self, plan: Plan, drawn: Sequence[Sequence[Input]]) -> list[list[torch.Tensor] | Checked]:
        """Outputs of each round, or how it failed; what comes after a failure is left out."""
        files = [
            {
                view.buffer: _bytes_of(plan, view, value)
                for view, value in zip(plan.inputs, inputs, strict=True)
                if view is not None and isinstance(value, torch.Tensor)
            }
            for inputs in drawn
        ]
        named = {f"round{n}.buffer{index}.bin": data for n, made in enumerate(files) for index, data in made.items()}
        request = {
            "command": "execute",
            "plan": plan.model_dump(mode="json"),
            "rounds": len(files),
            "deadline_s": self._deadline_s,
        }
        # The child ends itself when one round is late; this deadline is for one that does not.
        limits = Limits(deadline_s=self._deadline_s * len(files), answer_bytes=_ANSWER_BYTES)
        result = self._zygote.run(request, limits, named)
        answer = _answer(result)
        if answer is None or "rounds" not in answer:
            return [self._failed(result.outcome, result.detail, answer)]
        answers = answer["rounds"]
        if not isinstance(answers, list) or not answers:
            return [Checked(Status.REJECTED, "the interpreter's answer is malformed: it has no rounds")]
        found = [self._outputs(plan, made, answer) for made, answer in zip(files, answers, strict=False)]
        ended = any(isinstance(outputs, Checked) for outputs in found)
        if not ended and len(found) < len(files):
            found.append(Checked(Status.REJECTED, "the interpreter's answer is malformed: it lacks a round"))
        return found

    def _outputs(self, plan: Plan, given: Mapping[int, bytes], answer: Any) -> list[torch.Tensor] | Checked:
        """One round of a child's answer, which is untrusted."""
        try:
            if "fault" in answer:
                return self._failed("", "", answer)
            for index, data in given.items():
                if answer["inputs"][str(index)] != hashlib.sha256(data).hexdigest():
                    position = next(n for n, view in enumerate(plan.inputs) if view and view.buffer == index)
                    return Checked(Status.WRONG, f"the kernel changes its input {position}")
            data = {int(index): base64.b64decode(text, validate=True) for index, text in answer["outputs"].items()}
            return [_tensor(data[view.buffer], plan, view) for view in plan.outputs]
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            return Checked(Status.REJECTED, f"the interpreter's answer is malformed: {error}")

    def _look(self, plan: Plan, case: Case, seed: int, regime: str) -> Checked:
        """Hold what some programs of a large plan write against the reference, where that can be afforded."""
        if not _is_affordable(self._task, case):
            return Checked(Status.PASSED)
        files, expected = self._prepared(plan, case, seed, regime)
        request = {"command": "look", "plan": plan.model_dump(mode="json"), "seed": seed & 0xFFFFFFFF}
        result = self._zygote.run(request, Limits(deadline_s=self._deadline_s, answer_bytes=_ANSWER_BYTES), files)
        if result.outcome in ("timeout", "memory"):
            return Checked(Status.PASSED)  # too large for the interpreter, not wrong
        answer = _answer(result)
        if answer is None or "look" not in answer:
            return self._failed(result.outcome, result.detail, answer)
        try:
            fault = looked.fault_of(answer["look"], plan, expected, self._task.tolerance)
        except (KeyError, ValueError, TypeError, RuntimeError, IndexError) as error:
            return Checked(Status.REJECTED, f"the interpreter's answer is malformed: {error}")
        return Checked(Status.WRONG, f"wrong on {case.name}: {fault}", math.inf) if fault else Checked(Status.PASSED)

    def _prepared(
        self, plan: Plan, case: Case, seed: int, regime: str
    ) -> tuple[dict[str, bytes], tuple[Expected, ...]]:
        """Input files and what is expected of a large case: made one at a time, the last few kept."""
        key = (case.name, seed, regime, plan.inputs)
        with self._preparing:
            if key not in self._files:
                self._files[key] = _input_files(plan, self._draw(case, seed, regime))
                while len(self._files) > _KEPT_FILES:
                    self._files.pop(next(iter(self._files)))

            def make() -> tuple[Expected, ...]:
                return expect(self._task, self._draw(case, seed, regime))

            return self._files[key], self._references.of(case.name, seed, regime, "cpu", make)

    def _failed(self, outcome: str, detail: str, answer: dict[str, Any] | None) -> Checked:
        if answer is not None and isinstance(fault := answer.get("fault"), dict) and {"status", "reason"} <= set(fault):
            status = Status(fault["status"]) if fault["status"] in list(Status) else Status.RUNTIME_ERROR
            status = Status.RUNTIME_ERROR if status in (Status.PASSED, Status.INFRA_ERROR, Status.REFUTED) else status
            return Checked(status, str(fault["reason"])[:2000], of_text=bool(fault.get("of_text")))
        last = detail.strip().splitlines()[-1] if detail.strip() else outcome
        status, text = _STATUS.get(outcome, (Status.RUNTIME_ERROR, "it ended in the interpreter: {last}"))
        return Checked(status, text.format(deadline=self._deadline_s, last=last))


def _answer(result: JobResult) -> dict[str, Any] | None:
    if result.data is None:
        return None
    try:
        return result.read(dict[str, Any])
    except Malformed as error:
        return {"fault": {"status": "rejected", "reason": f"the interpreter's answer is malformed: {error}"}}


def _traffic_key(plan: Plan, case: Case) -> str:
    """Hash of all that the sampler sees of a plan."""
    kernels = [
        {
            **kernel.model_dump(mode="json"),
            "attributes": (),
            "options": [o for o in kernel.options if o[0] not in _NOT_SAMPLED],
        }
        for kernel in plan.kernels
    ]
    rest = plan.model_dump(mode="json", include={"target", "inputs", "buffers", "nodes", "outputs"})
    return content_hash([case.name, kernels, rest])


def _batches(plan: Plan, rounds: Sequence[Round]) -> Iterator[Sequence[Round]]:
    """Rounds for one child each, so that what it is given and answers stays within `_BATCH_BYTES`, or is one round."""
    size = sum(plan.buffers[view.buffer].bytes for view in (*plan.inputs, *plan.outputs) if view is not None)
    count = max(1, _BATCH_BYTES // max(1, size))
    yield from (rounds[start : start + count] for start in range(0, len(rounds), count))


def _gap(plan: Plan) -> Checked | None:
    """Refuses kernels: plans carry IR, and the interpreter executes Python."""
    if not plan.kernels:
        return None
    return Checked(Status.REJECTED, "it cannot be checked without a GPU: use --device cuda", of_text=True)


def _terms(modeled: Any) -> set[str]:
    return {name for launch in modeled.launches for name in launch.terms}


def _spec(spec: TensorSpec | int | float) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    return (spec.dtype, spec.shape, spec.strides) if isinstance(spec, TensorSpec) else None


def _input_files(plan: Plan, inputs: Sequence[Input]) -> dict[str, bytes]:
    return {
        f"buffer{view.buffer}.bin": _bytes_of(plan, view, value)
        for view, value in zip(plan.inputs, inputs, strict=True)
        if view is not None and isinstance(value, torch.Tensor)
    }


def _is_affordable(task: Task, case: Case) -> bool:
    """Whether the reference of a case can be had in a few seconds on a CPU, and its inputs handed over."""
    elements = sum(spec.elements for spec in task.input_specs(case) if isinstance(spec, TensorSpec))
    flops = task.flops(case)
    return elements <= (_ELEMENTS_UNKNOWN if flops is None else _ELEMENTS) and (flops or 0) <= _FLOPS


def _bytes_of(plan: Plan, view: View, value: torch.Tensor) -> bytes:
    storage = torch.zeros(plan.buffers[view.buffer].bytes, dtype=torch.uint8)
    _view(storage, view).copy_(value)
    return storage.numpy().tobytes()


def _tensor(data: bytes, plan: Plan, view: View) -> torch.Tensor:
    if len(data) != plan.buffers[view.buffer].bytes:
        raise ValueError("a buffer came back with another size")
    return (
        _view(torch.frombuffer(bytearray(data), dtype=torch.uint8), view).clone() if data else torch.empty(view.shape)
    )


def _view(storage: torch.Tensor, view: View) -> torch.Tensor:
    usable = storage.numel() // view.item_bytes * view.item_bytes
    return torch.as_strided(storage[:usable].view(getattr(torch, view.dtype)), view.shape, view.strides, view.offset)
