"""The recorder: turns a source into validated, compiled launch plans, or into a status with its reason."""

from __future__ import annotations

import ast
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evo_kernel.errors import InfraError, PlanError
from evo_kernel.fitness.compile.compiler import Compiler, Forbidden, Misfit
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan, Kernel, Plan
from evo_kernel.fitness.record.autotuning import MOST_CHARACTERS, MOST_CONFIGS
from evo_kernel.fitness.sandbox.guards import SandboxLimits
from evo_kernel.fitness.sandbox.zygote import MalformedReply, Zygote
from evo_kernel.fitness.stages import RECORDING, Stages
from evo_kernel.knobs import apply_knobs
from evo_kernel.lru_cache import Recent
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.task import Case, Task, TensorSpec
from evo_kernel.types import Knobs, Source, Status


class _AnswerModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FaultAnswer(_AnswerModel):
    """Why there is no plan. The child cannot report success or a failure of the machine."""

    status: Literal["rejected", "build_error", "runtime_error", "wrong", "timeout"]
    reason: Annotated[str, Field(max_length=4000)]
    misfit: Annotated[str, Field(max_length=400)] = ""


class ConfigsAnswer(_AnswerModel):
    texts: Annotated[list[Annotated[str, Field(max_length=MOST_CHARACTERS)]], Field(max_length=MOST_CONFIGS)]
    own: Annotated[int, Field(ge=0, lt=MOST_CONFIGS)]
    pruned: dict[str, Annotated[list[int], Field(max_length=MOST_CONFIGS)]] = {}


class CaseAnswer(_AnswerModel):
    """One case with one knob setting: `plan` or `fault`."""

    case: Annotated[str, Field(max_length=400)]
    setting: Annotated[int, Field(ge=0, lt=1 << 16)]
    plan: Any = None
    fault: FaultAnswer | None = None


class RecorderAnswer(_AnswerModel):
    """The whole answer of the untrusted child; plans are parsed later.

    `needs`: kernels whose resources host code reads; `configs`: autotune configurations, by kernel.
    """

    records: Annotated[list[CaseAnswer], Field(max_length=1 << 16)]
    needs: Annotated[list[Any], Field(max_length=1 << 10)] = []
    configs: dict[Annotated[str, Field(max_length=400)], ConfigsAnswer] = {}


MAX_SOURCE_CHARS = 1 << 20
_ROUNDS = 4  # how often host code may read another compiled kernel's resources
_SOURCES = 1024  # whose first configurations do not fit, to be remembered
_OUTCOMES = {
    "timeout": (Status.TIMEOUT, "it did not finish recording in {deadline:g} s: an endless import or loop on the host"),
    "memory": (Status.REJECTED, "recording it needs more than {memory} GB of host memory"),
    "crash": (Status.BUILD_ERROR, "recording it ended without an answer: {detail}"),
    "disk": (Status.REJECTED, "it writes more than {disk} MB, or too many files, to disk"),
    "answer": (Status.REJECTED, "its recording has more than {answer} MB: too many launches in all cases together"),
}


@dataclass(frozen=True)
class RecordCase:
    """A case with one specification per input; see the task's `input_specs`."""

    name: str
    inputs: tuple[Mapping[str, Any], ...]
    mutates: tuple[int, ...] = ()  # positions of inputs that the kernel changes: outputs, after those that it returns

    @property
    def tensors(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...]] | None]:
        """(dtype, shape, strides) of each input; None of a number."""
        return [
            (str(s["dtype"]), tuple(s["shape"]), tuple(s["strides"])) if "dtype" in s else None for s in self.inputs
        ]


@dataclass(frozen=True)
class RecordFault:
    """`misfit`: the kernel that is too large for the GPU, or refuses its configuration."""

    status: Status
    reason: str
    misfit: str = ""


@dataclass(frozen=True)
class Configurations:
    """Autotune configurations of a kernel as texts, and the position of the one used where no knob sets it: the first
    that fits. `pruned`: by case with launches, those that these never take."""

    texts: tuple[str, ...]
    own: int = 0
    pruned: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """Plans by (case, knobs), or the fault that prevented a plan."""

    plans: Mapping[tuple[str, Knobs], CompiledPlan | RecordFault]
    configs: Mapping[str, Configurations] = field(default_factory=dict)  # by autotuned kernel

    @property
    def fault(self) -> RecordFault | None:
        """The first fault in the order of cases, or None."""
        return next((value for value in self.plans.values() if isinstance(value, RecordFault)), None)

    @property
    def misfit(self) -> str:
        """An autotuned kernel whose configuration does not fit, though no knob sets it; empty if there is none."""
        for (_, knobs), value in self.plans.items():
            misfit = value.misfit if isinstance(value, RecordFault) else ""
            if misfit in self.configs and f"{misfit}.config" not in dict(knobs):
                return misfit
        return ""

    def of(self, knobs: Knobs) -> Recording:
        """The part of one setting."""
        return Recording({place: plan for place, plan in self.plans.items() if place[1] == knobs}, self.configs)


class Recorder:
    """Records sources in confined children of one zygote and compiles their kernels. Thread-safe."""

    def __init__(
        self,
        compiler: Compiler,
        arch: int,
        deadline_s: float,
        stages: Stages | None = None,
        orders: Callable[[], Sequence[Sequence[int] | None]] = tuple,
    ) -> None:
        """`orders`: see `Plan.laid_out`; asked where an output does not lie row by row."""
        self._compiler, self._arch, self._orders = compiler, arch, orders
        self._stages = stages or Stages()
        self._limits = SandboxLimits(deadline_s=deadline_s)
        self._lock = threading.Lock()
        self._passed_over: Recent[str, dict[str, int]] = Recent(_SOURCES)  # by source: configurations that do not fit
        self._zygote = Zygote("record", {"TRITON_DISABLE_LINE_INFO": "0"})  # evidence names lines of the source
        self.confinement = "unknown"

    def start(self) -> None:
        """Start the zygote and determine which sandbox guards are active."""
        probe = self.record(Source("def run(x):\n    return x\n"), (_PROBE_CASE,), ((),))
        assert probe.fault is None or probe.fault.status is not Status.INFRA_ERROR, probe.fault

    def close(self) -> None:
        self._zygote.close()

    def record(
        self,
        source: Source,
        cases: Sequence[RecordCase],
        settings: Sequence[Knobs],
        patience_s: float = math.inf,
    ) -> Recording:
        """Record `source` for every case and knob setting, and compile the kernels. Raises InfraError only.

        `patience_s`: abandon compilations that take longer, if that is less than the deadline.
        """
        with self._stages.at(RECORDING):
            return self._record(source, cases, settings, patience_s)

    def _record(
        self, source: Source, cases: Sequence[RecordCase], settings: Sequence[Knobs], patience_s: float
    ) -> Recording:
        if (fault := static_fault(source)) is not None:
            return Recording({(case.name, knobs): fault for knobs in settings for case in cases})
        with self._lock:
            passed_over = dict(self._passed_over.get(source.sha256) or {})
        while True:
            recording = self._record_once(source, cases, settings, patience_s, passed_over)
            kernel = recording.misfit
            if passed_over.get(kernel, 0) + 1 >= len(recording.configs[kernel].texts if kernel else ()):
                return recording
            passed_over[kernel] = passed_over.get(kernel, 0) + 1
            with self._lock:
                self._passed_over.put(source.sha256, dict(passed_over))

    def _record_once(
        self,
        source: Source,
        cases: Sequence[RecordCase],
        settings: Sequence[Knobs],
        patience_s: float,
        passed_over: Mapping[str, int],
    ) -> Recording:
        answer = self._answer(source, cases, settings, passed_over)
        if isinstance(answer, RecordFault):
            return Recording({(case.name, knobs): answer for knobs in settings for case in cases})
        drafts = {(r.case, settings[r.setting]): _draft(r) for r in answer.records if r.setting < len(settings)}
        configs = {name: Configurations(tuple(one.texts), one.own, one.pruned) for name, one in answer.configs.items()}
        missing = RecordFault(Status.REJECTED, "the recording lacks this case")
        wanted = {(c.name, k): self._fitting(drafts.get((c.name, k), missing), c) for k in settings for c in cases}
        return Recording(self._compile(wanted, patience_s), configs)

    def _fitting(self, draft: Plan | RecordFault, case: RecordCase) -> Plan | RecordFault:
        """The draft, or a fault if its case, target or inputs differ from what was requested: it may be forged."""
        if isinstance(draft, RecordFault):
            return draft
        misfit = draft.misfit(case.tensors) or (
            "" if draft.target == self._arch else f"it is for target {draft.target}"
        )
        if misfit or draft.case != case.name:
            return RecordFault(Status.REJECTED, f"the recording is malformed: {misfit or 'it is for another case'}")
        changed = tuple(view for position in case.mutates if (view := draft.inputs[position]) is not None)
        draft = draft.model_copy(update={"outputs": (*draft.outputs, *changed)}) if changed else draft
        return draft.laid_out(self._orders)

    def _answer(
        self,
        source: Source,
        cases: Sequence[RecordCase],
        settings: Sequence[Knobs],
        passed_over: Mapping[str, int],
    ) -> RecorderAnswer | RecordFault:
        resources: dict[str, Any] = {}
        for _ in range(_ROUNDS):
            request = {
                "arch": self._arch,
                "cases": [asdict(case) for case in cases],
                "settings": [{"knobs": list(k), "text": apply_knobs(source, k).text} for k in settings],
                "resources": resources,
                "passed_over": dict(passed_over),
            }
            result = self._zygote.run(request, self._limits)
            self.confinement = result.confinement
            if result.data is None:
                return _outcome_fault(result.outcome, result.detail, self._limits)
            try:
                answer = result.read(RecorderAnswer)
            except MalformedReply as error:
                return RecordFault(Status.REJECTED, f"the recording is malformed: {error}")
            if not answer.needs:
                return answer
            fault = self._answer_needs(answer.needs, resources)
            if fault is not None:
                return fault
        return RecordFault(
            Status.REJECTED, f"host code reads the resources of more than {_ROUNDS} compiled kernels, one after another"
        )

    def _answer_needs(self, needs: Sequence[Any], resources: dict[str, Any]) -> RecordFault | None:
        try:
            kernels = [Kernel.model_validate(need) for need in needs[:16]]
        except ValidationError:
            return RecordFault(Status.REJECTED, "the recording is malformed: a kernel does not validate")
        for kernel, binary in zip(kernels, self._compiler.compile(kernels), strict=True):
            if isinstance(binary, str):
                return _refused(binary)
            resources[kernel.key] = {
                "n_regs": binary.registers,
                "n_spills": binary.spill_bytes // 4,
                "n_max_threads": 1024,
                "shared": binary.shared_bytes,
                "num_warps": binary.num_warps,
                "num_ctas": binary.num_ctas,
                "name": binary.symbol,
            }
            resources[kernel.key]["metadata"] = dict(resources[kernel.key])
        return None

    def _compile(
        self, drafts: Mapping[tuple[str, Knobs], Plan | RecordFault], patience_s: float
    ) -> dict[tuple[str, Knobs], CompiledPlan | RecordFault]:
        kernels = {k.key: k for draft in drafts.values() if isinstance(draft, Plan) for k in draft.kernels}
        binaries = dict(zip(kernels, self._compiler.compile(list(kernels.values()), patience_s), strict=True))
        plans: dict[tuple[str, Knobs], CompiledPlan | RecordFault] = {}
        for place, draft in drafts.items():
            if isinstance(draft, RecordFault):
                plans[place] = draft
                continue
            kernels_binaries = [binaries[kernel.key] for kernel in draft.kernels]
            faults = [
                _refused(binary, kernel.name)
                for kernel, binary in zip(draft.kernels, kernels_binaries, strict=True)
                if isinstance(binary, str)
            ]
            plans[place] = faults[0] if faults else _compiled(draft, kernels_binaries)
        return plans


def refuse_unconfined(confinement: str) -> None:
    """Raise InfraError if no guard is active that confines a candidate's code."""
    if not {"namespaces", "landlock", "seccomp"} & set(confinement.split("+")):
        raise InfraError(
            "this machine has no namespaces, no Landlock and no seccomp: candidate code cannot be confined. "
            "Run on a machine that has one of them, or accept the risk with --unconfined."
        )


def static_fault(source: Source) -> RecordFault | None:
    """Faults visible in the text: not Python, no `run`, too long. The text is not searched for cheats."""
    if len(source.text) > MAX_SOURCE_CHARS:
        return RecordFault(
            Status.REJECTED, f"the source has {len(source.text)} characters; the limit is {MAX_SOURCE_CHARS}"
        )
    try:
        tree = parse_module(source.text)
    except SyntaxError as error:
        line = f" (line {error.lineno})" if error.lineno else ""
        return RecordFault(Status.BUILD_ERROR, f"not valid Python: {error.msg}{line}")
    except ValueError as error:
        return RecordFault(Status.BUILD_ERROR, f"not valid Python: {error}")
    names = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
    names |= {t.id for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    names |= {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    if "run" not in names:
        return RecordFault(Status.BUILD_ERROR, "the module defines no function `run`, which the judge calls")
    return None


def _refused(reason: str, kernel: str = "") -> RecordFault:
    status = Status.REJECTED if isinstance(reason, Forbidden) else Status.BUILD_ERROR
    return RecordFault(status, reason, kernel if isinstance(reason, Misfit) else "")


def _compiled(draft: Plan, binaries: Sequence[Binary | str]) -> CompiledPlan | RecordFault:
    """The plan with its binaries, or a fault if the launches do not match the IR: the plan may be forged."""
    try:
        return CompiledPlan(plan=draft, binaries=tuple(b for b in binaries if not isinstance(b, str)))
    except ValidationError as error:
        return RecordFault(
            Status.REJECTED, f"the recorded plan is not valid: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        )


def _draft(record: CaseAnswer) -> Plan | RecordFault:
    if record.plan is not None:
        try:
            return Plan.model_validate(record.plan)
        except (ValidationError, PlanError, RecursionError) as error:
            detail = error.errors()[0] if isinstance(error, ValidationError) else {"msg": str(error), "loc": ()}
            where = ".".join(map(str, detail["loc"]))
            return RecordFault(Status.REJECTED, f"the recorded plan is not valid: {where}: {detail['msg']}")
    if record.fault is None:
        return RecordFault(Status.REJECTED, "the recording is malformed: it holds neither a plan nor a fault")
    fault = record.fault
    return RecordFault(Status(fault.status), fault.reason[:2000] or "no reason was given", fault.misfit)


def _outcome_fault(outcome: str, detail: str, limits: SandboxLimits) -> RecordFault:
    default = (Status.BUILD_ERROR, "the process that recorded it ended early ({outcome})")
    status, text = _OUTCOMES.get(outcome, default)
    sizes = {"memory": limits.memory_bytes >> 30, "disk": limits.disk_bytes >> 20, "answer": limits.answer_bytes >> 20}
    last = detail.strip().splitlines()[-1] if detail.strip() else "no trace was left"
    return RecordFault(status, text.format(deadline=limits.deadline_s, detail=last, outcome=outcome, **sizes))


_PROBE_CASE = RecordCase("probe", ({"dtype": "float32", "shape": [4], "strides": [1]},))


def record_case(task: Task, case: Case) -> RecordCase:
    specs: list[Mapping[str, object]] = []
    known = task.host_values(case) if task.host_known else {}
    for position, spec in enumerate(task.input_specs(case)):
        if not isinstance(spec, TensorSpec):
            specs.append({"value": spec})
            continue
        host = {"host": known[position].tolist()} if position in known else {}
        specs.append({"dtype": spec.dtype, "shape": list(spec.shape), "strides": list(spec.strides), **host})
    return RecordCase(case.name, tuple(specs), task.mutates)
