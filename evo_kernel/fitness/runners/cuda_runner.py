"""The parent's side of the CUDA runner: one trusted worker process per GPU, restarted after a fault.

Runners of one GPU, of this process and of others, take turns on it.

The parent has no CUDA context. After an illegal access or an endless kernel the worker is lost, and the plan that
caused it gets the verdict. A spare process with everything loaded takes over, and requests lost to another plan's fault
are repeated. It is the spare one that times baselines: while torch.compile compiles there, candidates have the GPU.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evo_kernel.errors import InfraError
from evo_kernel.fitness.costmodel.features import plan_features, torch_details
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.gpus import is_free, is_wanted, turn
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart
from evo_kernel.fitness.runners import ipc, ncu
from evo_kernel.fitness.runners.base import (
    Checked,
    CheckPart,
    Draw,
    PlanSetAnswer,
    PlanSetRequest,
    Runner,
    TimePart,
    environment_here,
)
from evo_kernel.fitness.runners.process import (
    GO,
    Lost,
    WorkerProcess,
    loaded_ahead,
    open_log,
    usual_command,
    worker_env,
)
from evo_kernel.fitness.stages import Stages
from evo_kernel.fitness.timing.baselines import baseline_names, deadline_of
from evo_kernel.fitness.timing.estimates import Comparison, PairVerdict, summarise
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Compared, Environment, Measurement, Status

_STATE = ("clock_mhz", "power_w")  # fields of a Measurement; the rest of the GPU's state is in its details
_NCU_S = 30.0  # for ncu and its target process to start
_SWITCH_S = 0.0005  # the GPU idles while the thread that has its answer waits for the interpreter lock
_TRIES = 4  # processes that a request may lose to other requests' faults before the machine is blamed


class CudaRunner(Runner):
    """Replays, checks and times plans of one task on one GPU. Thread-safe: requests take turns."""

    arch = 90  # until the worker reports its GPU

    def __init__(self, task: Task, gpu: int, deadline_s: float, command: Sequence[str] = ()) -> None:
        """`command` starts a worker other than the usual one."""
        self._task, self._gpu, self._deadline_s = task, gpu, deadline_s
        self._command = tuple(command) or usual_command(task.spec)
        self._lock = threading.RLock()  # held by a thread that uses the runner exclusively
        self._has_turn = False  # on the GPU; guarded by the lock
        self.stages = Stages((gpu,))
        self._process: WorkerProcess | None = None
        self._spares: list[WorkerProcess] = []  # without a GPU
        self._idle: list[WorkerProcess] = []  # they have timed baselines, and have the GPU
        self._in_use: list[WorkerProcess] = []  # by a baseline
        self._log = open_log()
        self._closed = False
        self._busy = threading.local()
        self._baseline_faults: dict[str, str] = {}
        self.info: dict[str, Any] = {}
        self.respawns = 0
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        """Seconds by phase over all requests, as counted by the worker; `request` is measured by the parent, so the
        difference is transfer time."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))

    # --- Runner -----------------------------------------------------------------------------------------------------

    @property
    def card(self) -> str:
        return str(self.info.get("uuid", ""))

    @property
    def is_free(self) -> bool:
        return is_free(self.card)

    def prepare_references(self, draws: Sequence[Draw]) -> None:
        self.request({"command": "references", "draws": [[case.name, seed, regime] for case, seed, regime in draws]})

    @property
    def busy_s(self) -> float:
        return getattr(self._busy, "s", 0.0)

    @property
    def baseline_faults(self) -> Mapping[str, str]:
        return dict(self._baseline_faults)

    def start(self) -> None:
        with self._lock:
            self._ensure_started()

    def environment(self, confinement: str) -> Environment:
        return environment_here("measured", self.info["device"], self.info["driver"], confinement)

    def answer(self, request: PlanSetRequest) -> PlanSetAnswer:
        parts: list[CheckPart | TimePart] = [*request.checks, *request.timings]
        plans = {part.plan.hash: part.plan for part in parts}
        places = {key: position for position, key in enumerate(plans)}
        known = bool(self._task.baselines)  # a plan file alone has no reference
        checks = [
            {"plan": places[c.plan.hash], "case": c.case.name, "rounds": [list(draw) for draw in c.rounds]}
            for c in request.checks
        ]
        timings = [
            {"plan": places[t.plan.hash], "case": t.case.name, "seed": t.seed, "check": t.checked and known}
            | {"against_us": t.against_us}
            for t in request.timings
        ]
        fields = {"command": "plan set", "checks": checks, "timings": timings, "precision": request.precision}
        answer = self.request(fields, list(plans.values()))
        if "status" in answer:  # the process was lost
            return _lost(request, _checked(answer), answer.get("part", 0))
        return PlanSetAnswer(
            checks=tuple(_checked(reply) if reply else None for reply in answer["checks"]),
            timings=tuple(
                self._measurement(part, reply, answer.get("drift"))
                for part, reply in zip(request.timings, answer["timings"], strict=False)
            ),
        )

    def pair(
        self, incumbent: CompiledPlan, challenger: CompiledPlan, case: Case, seed: int, checked: bool = True
    ) -> Comparison | Checked:
        checked = checked and bool(self._task.baselines)
        fields = {"command": "pair", "case": case.name, "seed": seed, "check": checked}
        answer = self.request(fields, [incumbent, challenger])
        if answer["status"] != Status.PASSED:
            return _checked(answer)
        comparison = dict(answer["comparison"])
        verdict = PairVerdict(comparison.pop("verdict"))
        return Comparison(verdict, **comparison)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[CudaRunner]:
        with self.stages.turn(self._turn(), self._gpu):
            if self._process is not None and self._process.served:
                self._end()
            self._ensure_started()
            yield self

    def baselines(self, case: Case) -> Mapping[str, float]:
        times: dict[str, float] = {}
        for name in baseline_names(self._task):
            answer = self._baseline(case, name)
            if answer["status"] == Status.PASSED:
                times[name] = summarise(answer["samples_us"]).median_us
            else:
                self._baseline_faults[f"{case.name}: {name}"] = answer["reason"]
        if not times and self._task.baselines:
            faults = "; ".join(f"{name}: {reason}" for name, reason in self._baseline_faults.items())
            raise InfraError(f"no baseline of {case.name} runs: {faults}")
        return times

    def ceilings(self) -> Mapping[str, float]:
        answer = self.request({"command": "ceilings"})
        if answer["status"] != Status.PASSED:
            raise InfraError(f"the ceilings of this GPU cannot be measured: {answer['reason']}")
        return answer["ceilings"]

    def counters(self, parts: Sequence[CountPart]) -> CounterReading:
        """Runs ncu; see runners/ncu.py. The worker waits:

        two processes on one GPU would disturb each other's counters.
        """
        with self._turn():
            return ncu.count(self._task, parts, worker_env(self._gpu), _NCU_S + self._deadline_s)

    def close(self) -> None:
        self._closed = True
        for process in (self._process, *self._spares, *self._idle, *self._in_use):
            if process is not None:
                with contextlib.suppress(InfraError):  # nothing is asked of it any more
                    process.kill()

    # --- requests ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The GPU for the calling thread alone. Reentrant. Raises InfraError."""
        with self._lock:
            if self._has_turn:
                yield
                return
            self._ensure_started()  # tells which GPU it is
            with turn(self.card, lambda: self._closed):
                self._has_turn = True
                try:
                    yield
                finally:
                    self._has_turn = False

    def request(self, fields: dict[str, Any], plans: Sequence[CompiledPlan] = ()) -> dict[str, Any]:
        """Send one request and return its answer. If the worker dies, the answer is the responsible plan's status and
        reason.

        Raises InfraError if the machine is at fault.
        """
        message = ipc.pack(fields, plans)
        with self._on_gpu():
            answer = self._answered(message, self._deadline_s, bool(plans))
            if not answer.get("fatal") and is_wanted(self.card):
                self._answered(ipc.pack({"command": "make room"}), self._deadline_s, judges=False)
            for phase, seconds in answer.get("spent_s", {}).items():
                self.spent_s[phase] += seconds
        return answer

    @contextlib.contextmanager
    def _on_gpu(self) -> Iterator[None]:
        """The GPU for the calling thread alone, whose time on it counts."""
        with self.stages.turn(self._turn(), self._gpu):
            start = time.monotonic()
            try:
                yield
            finally:
                taken = time.monotonic() - start
                self._busy.s = self.busy_s + taken
                self.spent_s["request"] += taken

    def _baseline(self, case: Case, name: str) -> dict[str, Any]:
        """The answer to a request for one baseline. Raises InfraError if the machine is at fault."""
        message = ipc.pack({"command": "baseline", "case": case.name, "name": name})
        deadline_s = deadline_of(self._task, name)
        for _ in range(2):  # a single loss may be a kill from outside
            with self._baseline_process(case) as process:
                try:
                    with self._on_gpu():
                        answer = process.ask(message, deadline_s)
                    if answer.get("compiling"):
                        process.answered(deadline_s)  # it has compiled
                        with self._on_gpu():
                            answer = process.ask(GO, deadline_s)
                except TimeoutError:
                    process.kill()
                    return {"status": Status.TIMEOUT, "reason": f"it took longer than {deadline_s:g} s"}
                except Lost:
                    process.kill()
                    continue
                if answer.get("fatal") or answer.get("stale"):
                    process.kill()
            if (fault := answer.get("bug") or answer.get("disturbed")) is not None:
                raise InfraError(f"the process that times baselines failed:\n{fault}")
            if not answer.get("stale"):
                return answer
        return {"status": Status.RUNTIME_ERROR, "reason": "the GPU process died while it ran this baseline"}

    @contextlib.contextmanager
    def _baseline_process(self, case: Case) -> Iterator[WorkerProcess]:
        """A process for the calling thread alone. Of hidden cases the one that has the GPU for a confirmation, which
        must not wait for another thread's baseline, which waits for the GPU. Raises InfraError."""
        if case.kind is CaseKind.CONFIRM:
            with self._on_gpu():
                yield self._ensure_started()
            return
        process = self._other()
        self._in_use.append(process)
        try:
            if self._closed:
                raise InfraError("the GPU runner is closed")
            if not process.info:
                process.wait_until_loaded()
                with self._on_gpu():  # a new context disturbs others' clocks
                    process.go()
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            self._in_use.remove(process)
        if process.alive():
            self._idle.append(process)
        if self._closed:  # by another thread in the meantime
            self.close()

    def _other(self) -> WorkerProcess:
        """A process that serves nobody; if it has no `info` yet, it has no GPU. Raises InfraError."""
        if self._closed:
            raise InfraError("the GPU runner is closed")
        for stock in (self._idle, self._spares):
            with contextlib.suppress(IndexError):
                if (process := stock.pop()).alive():
                    return process
        return self._new()

    def _answered(self, message: bytes, deadline_s: float, judges: bool) -> dict[str, Any]:
        """`judges`: the request is about a candidate's plans, so exceptions are their verdict."""
        alone = 0  # new processes that were lost with this request
        for _ in range(_TRIES):
            process = self._ensure_started()
            fresh = process.served == 0
            try:
                answer = process.ask(message, deadline_s)
            except TimeoutError:
                self._drop()
                reason = f"it still ran on the GPU after {deadline_s:g} s: an endless or much too slow kernel"
                return {"status": Status.TIMEOUT, "reason": reason, "part": max(0, process.progress - 1)}
            except Lost:
                self._drop()
                alone += fresh
                if alone == 2:  # a single loss may be a kill from outside
                    reason = "the GPU process died while it ran this kernel"
                    return {"status": Status.RUNTIME_ERROR, "reason": reason, "part": max(0, process.progress - 1)}
                continue
            if answer.get("fatal") or answer.get("stale"):
                self._drop()
            if "bug" in answer and judges:
                alone += fresh
                if alone == 2:
                    last = str(answer["bug"]).strip().splitlines()[-1][:400]
                    reason = f"the judge raised an exception on it: {last}"
                    return {"status": Status.RUNTIME_ERROR, "reason": reason, "part": 0}
                continue
            if "bug" in answer:
                raise InfraError(f"the GPU process failed:\n{answer['bug']}")
            if "disturbed" in answer:
                raise InfraError(answer["disturbed"])
            if not answer.get("stale"):
                return answer
        raise InfraError(f"the GPU process was lost {_TRIES} times to faults of other requests: check the GPU")

    def _ensure_started(self) -> WorkerProcess:
        if self._process is not None and self._process.alive():
            return self._process
        self._drop()
        for attempt in (1, 2):
            process = self._other()
            if not self._spares:
                self._spares.append(WorkerProcess(self._command, self._gpu, self._log))
                self._spares[-1].load()
            try:
                self.info = process.info or process.go()
                break
            except InfraError:
                if attempt == 2:
                    raise
        self.arch = int(self.info["arch"])
        self._process = process
        if self._closed:  # by another thread in the meantime
            self.close()
            raise InfraError("the GPU runner is closed")
        return process

    def _new(self) -> WorkerProcess:
        return loaded_ahead(self._command, self._gpu) or WorkerProcess(self._command, self._gpu, self._log)

    def _drop(self) -> None:
        """Close a process that was lost to a fault."""
        self.respawns += self._process is not None
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()

    def _measurement(self, part: TimePart, answer: dict[str, Any], drift: float | None) -> Measurement | Checked:
        if answer["status"] != Status.PASSED:
            return _checked(answer)
        summary, state = summarise(answer["samples_us"]), answer["state"]
        details = {name: value for name, value in state.items() if name not in _STATE}
        if (error := answer["error"]) is not None:
            elements = sum(view.elements for view in part.plan.plan.outputs)
            details |= Compared(error, elements, elements, whole=True).as_details()
        return Measurement(
            case=part.case.name,
            plan=part.plan.hash,
            median_us=summary.median_us,
            iqr_us=summary.iqr_us,
            n=summary.n,
            low_us=summary.low_us,
            high_us=summary.high_us,
            features=plan_features(part.plan, None, target_for(self.arch)),
            details=details
            | {"wall_share": answer["wall_share"], "sets": float(answer["sets"])}
            | torch_details(part.plan),
            drift=drift,
            **{name: state[name] for name in _STATE if name in state},
        )


def _lost(request: PlanSetRequest, fault: Checked, part: int) -> PlanSetAnswer:
    """The responsible part is the one that ran last; results of the other parts were lost with the process."""
    checks = len(request.checks)
    if part < checks:
        return PlanSetAnswer(checks=(*(None,) * part, fault))
    return PlanSetAnswer(checks=(None,) * checks, timings=(*(None,) * (part - checks), fault))


def _checked(answer: Mapping[str, Any]) -> Checked:
    status = Status(answer["status"])
    usual = 0.0 if status is Status.PASSED else float("inf")
    return Checked(status, answer["reason"], answer.get("error", usual))
