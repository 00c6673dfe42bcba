"""The trusted GPU process: checks plans against references that only it has, and times them.

cuda_process.py starts it. A spare process imports everything, waits for one line on stdin, and only then uses the GPU:
so it takes no GPU memory and is ready at once after a fault. Requests are packed by ipc.py; every answer is one JSON
line, with a line of `progress` before each part of a long request. Candidate code is never imported: requests hold
validated plans. After a CUDA error the context is unreliable: the answer has `fatal`, and the parent starts a new
process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.plan.torch_operations import searching
from evo_kernel.fitness.runners import ipc
from evo_kernel.fitness.runners.plan_checker import PlanChecker
from evo_kernel.fitness.runners.process import GO, LOAD
from evo_kernel.fitness.runners.timer import Timer, own_copies
from evo_kernel.fitness.runners.worker_state import Answer, Disturbed, MemoryShares, Plans, WorkerState
from evo_kernel.fitness.timing.baselines import COMPILED, baseline_function, baseline_names
from evo_kernel.fitness.timing.estimates import CLAIM, TIMING, TimingSettings
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task, describe
from evo_kernel.types import Status

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import CudaDevice


LOG_BYTES = 1 << 30
"""Limit of files that it writes: output of kernels is in its log."""


class GpuWorker:
    """Answers requests, one at a time."""

    def __init__(self, task: Task, device: CudaDevice, requests: BinaryIO, replies: BinaryIO) -> None:
        self.task, self.device, self._requests, self._replies = task, device, requests, replies
        self.handler = RequestHandler(task, device)

    def serve(self) -> None:
        """Serve requests until they end or the context is lost."""
        for request in ipc.unpack(self._requests):
            if not self.device.healthy():
                self.reply({"stale": True})  # the request has not been started, so it is not responsible
                return
            try:
                answer = self.answer(request)
            except Disturbed as disturbed:
                self.handler.state.dirty = True  # buffers were freed without being overwritten
                answer = {"disturbed": str(disturbed)}
            # An exception here is our bug or the machine's fault: the parent raises it.
            except Exception:  # noqa: BLE001
                answer = {"bug": traceback.format_exc(), "fatal": True}
            self.reply(answer)
            if answer.get("fatal"):
                return

    def answer(self, request: dict[str, Any]) -> Answer:
        """Dispatch one request. A candidate's faults are answers."""

        @cache
        def plans(position: int) -> CompiledPlan:
            with self.handler.state.phase("read"):
                return ipc.plan_of(request, position)

        match request["command"]:
            case "plan set":
                self.handler.timer.settings = _SETTINGS[request["precision"]]
                return self.handler.answer(plans, request["checks"], request["timings"], self.progress)
            case "pair":
                self.progress()
                return self.handler.pair(plans, request)
            case "baseline":
                return self._baseline(request)
            case "references":
                return self._references(request["draws"])
            case "ceilings":
                return {"status": Status.PASSED, "ceilings": self.handler.timer.ceilings(self.progress)}
            case "make room":
                self.handler.state.make_room()
                return {"status": Status.PASSED}
            case other:
                raise ValueError(f"unknown command {other!r}")

    def _references(self, draws: Sequence[Sequence[Any]]) -> Answer:
        """Compute references before the first request. A task's fault is reported when the reference is requested."""
        with contextlib.suppress(TaskError, torch.OutOfMemoryError):
            for name, seed, regime in draws:
                self.progress()
                state, case = self.handler.state, self.task.case(name)
                with state.expected(case, seed, regime, state.draw(case, seed, regime)):
                    pass
        return {"status": Status.PASSED}

    def _baseline(self, request: dict[str, Any]) -> Answer:
        case = self.task.case(request["case"])
        self.progress()
        try:
            function = baseline_function(self.task, request["name"])
            with torch.no_grad(), searching(deterministic=False):
                if request["name"] == COMPILED:
                    self._compile(case, function)
                return self.handler.timer.time_function(case, function, CLAIM)
        except Disturbed:
            raise
        # Vendor functions may be unavailable for this dtype, shape or build, and raise many kinds of error.
        except Exception as error:  # noqa: BLE001
            fatal = not self.device.healthy()
            return {"status": Status.RUNTIME_ERROR, "reason": describe(error), "fatal": fatal}
        finally:
            if "torch._dynamo" in sys.modules:  # otherwise nothing was compiled, and resetting would import it
                torch.compiler.reset()
            if self.device.healthy():
                self.handler.state.forget()  # memory that the process of plans may need

    def _compile(self, case: Case, function: Callable[..., Any]) -> None:
        """Call what compiles itself at its first call. While it does, which takes seconds to minutes, the GPU is for
        others; before it launches anything, it waits until it is told to go on."""
        from torch._dynamo.callback import callback_handler

        inputs = own_copies(self.handler.state.draw(case, 0), self.task.mutates)
        self.device.synchronize()
        self.reply({"compiling": True})
        waited = False

        def wait(*_: Any) -> None:
            nonlocal waited
            if not waited:
                waited = True
                self.reply({"compiled": True})
                if self._requests.readline() != GO:
                    sys.exit()  # the parent ended

        callback_handler.register_end_callback(wait)  # until `_baseline` resets the compiler
        try:
            function(*inputs)
        finally:
            wait()

    def progress(self) -> None:
        self.reply({"progress": True})

    def reply(self, answer: dict[str, Any]) -> None:
        self._replies.write(json.dumps(answer).encode() + b"\n")
        self._replies.flush()


_SETTINGS = {"search": TIMING, "claim": CLAIM}


def serve(task_file: str, at_once: bool) -> None:
    """Answer requests until they end. `at_once`: take the GPU before the go-ahead."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_BYTES, hard))  # kernels can print
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the replies
    requests = os.fdopen(0, "rb")
    task = load(task_file)
    from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

    from evo_kernel.fitness.runners.cuda_device import CudaDevice
    from evo_kernel.fitness.runners.cuda_driver import ok

    torch.backends.cuda.matmul.allow_tf32 = task.tolerance.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = task.tolerance.precision == "tf32"
    torch.backends.cudnn.deterministic = True
    device = CudaDevice() if at_once else None
    order = requests.readline()
    if order == LOAD:
        if COMPILED in baseline_names(task):
            importlib.import_module("torch._inductor.compile_fx")
        replies.write(b'{"loaded": true}\n')
        replies.flush()
        order = requests.readline()
    if order != GO:
        return
    device = device or CudaDevice()
    worker = GpuWorker(task, device, requests, replies)
    properties = torch.cuda.get_device_properties(0)
    worker.reply(
        {
            "device": properties.name,
            "arch": properties.major * 10 + properties.minor,
            "driver": str(ok(driver.cuDriverGetVersion())),
            "uuid": str(getattr(properties, "uuid", "")),
            "l2_bytes": device.l2_bytes,
            "pid": os.getpid(),
        }
    )
    worker.serve()


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
            answer: Answer = {"checks": self.checker.checks(plans, checks, progress), "timings": []}
            last = answer["checks"][-1] if checks else {"status": Status.PASSED}
            for part in timings if last["status"] == Status.PASSED else ():
                progress()
                time = partial(self.state.with_launcher, plans, part, self.timer.time)
                last = self.state.with_intact_references(time)
                answer["timings"].append(last)
                if last["status"] != Status.PASSED:
                    break
            answer["fatal"] = last.pop("fatal", False)
            if answer["timings"] and not answer["fatal"]:
                with self.state.phase("metronome"):
                    answer["drift"] = self.timer.metronome.tick()
        return answer | {"spent_s": dict(spent_s)}

    def pair(self, plans: Plans, part: Answer) -> Answer:
        """Compare plan 0, the incumbent, with plan 1, the challenger: {case, seed, check}."""
        self.state.spent_s.clear()
        return self.state.guarded(partial(self.timer.pair, plans, part)) | {"spent_s": dict(self.state.spent_s)}
