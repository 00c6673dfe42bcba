"""The parent's side of the CUDA runner: one trusted worker process a GPU, killed and started again when it must be.

The parent holds no CUDA context. An illegal access or an endless kernel costs the worker, gives the culprit its
status, and nothing else: the next request starts a fresh worker.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from evo_kernel.errors import InfraError
from evo_kernel.fitness.features import plan_features
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.runners.base import Checked, Round
from evo_kernel.fitness.targets import target_for
from evo_kernel.fitness.timing import JUDGE_VERSION, summarise
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import Environment, Measurement, Status

START_S = 180.0


class CudaRunner:
    """Replays, checks and times plans of one task on one GPU. Thread-safe: requests take turns."""

    arch = 90  # until the worker says what it found

    def __init__(self, task: Task, gpu: int, deadline_s: float) -> None:
        self._task, self._gpu, self._deadline_s = task, gpu, deadline_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the runner
        self._closed = False
        self.info: dict[str, Any] = {}
        self._busy = threading.local()

    @property
    def busy_s(self) -> float:
        return getattr(self._busy, "s", 0.0)

    def environment(self, confinement: str) -> Environment:
        return Environment(
            kind="measured",
            device=self.info["device"],
            driver=self.info["driver"],
            torch=torch.__version__,
            triton=triton.__version__,
            fp_fusion=os.environ.get("TRITON_DEFAULT_FP_FUSION", "1") == "1",
            judge=JUDGE_VERSION,
            confinement=confinement,
        )

    def check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked:
        answer = self.request("check", plan, case=case.name, rounds=list(rounds))
        return Checked(Status(answer["status"]), answer["reason"], answer.get("error", math.inf))

    def measure(self, plan: CompiledPlan, case: Case, seed: int, checked: bool = True) -> Measurement | Checked:
        checked = checked and bool(self._task.baselines)  # a plan file alone has nothing to be held against
        answer = self.request("time", plan, case=case.name, seed=seed, check=checked)
        if answer["status"] != Status.PASSED:
            return Checked(Status(answer["status"]), answer["reason"], answer.get("error", math.inf))
        found = summarise(answer["samples_us"])
        return Measurement(
            case=case.name,
            plan=plan.hash,
            median_us=found.median_us,
            iqr_us=found.iqr_us,
            n=found.n,
            low_us=found.low_us,
            high_us=found.high_us,
            features=plan_features(plan, None, target_for(self.arch)),
            details={"wall_us": answer["wall_us"]},
        )

    def baselines(self, case: Case) -> Mapping[str, float]:
        answer = self.request("baselines", None, case=case.name)
        if answer["status"] != Status.PASSED:
            raise InfraError(f"the baselines of {case.name} do not run: {answer['reason']}")
        return answer["baselines"]

    def start(self) -> None:
        with self._lock:
            self._ensure_started()

    def close(self) -> None:
        self._closed = True
        self._kill()

    def request(self, command: str, plan: CompiledPlan | None, **fields: Any) -> dict[str, Any]:
        """One request and its answer. A worker that dies answers with the culprit's status and a sentence."""
        text = plan.model_dump_json() if plan is not None else None
        message = json.dumps({"command": command, "plan": text, **fields}).encode() + b"\n"
        with self._lock:
            start = time.monotonic()
            try:
                process = self._ensure_started()
                answer = self._exchange(process, message)
            finally:
                self._busy.s = self.busy_s + time.monotonic() - start
        return answer

    def _exchange(self, process: subprocess.Popen[bytes], message: bytes) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(message)
            process.stdin.flush()
            line = _read_line(process.stdout.fileno(), self._deadline_s)
        except (BrokenPipeError, ConnectionError):
            line = b""
        except TimeoutError:
            self._kill()
            reason = f"it still ran on the GPU after {self._deadline_s:g} s: an endless or far too slow kernel"
            return {"status": Status.TIMEOUT, "reason": reason}
        if line:
            answer = json.loads(line)
            if answer.get("fatal"):
                self._kill()
            return answer
        self._kill()
        return {"status": Status.RUNTIME_ERROR, "reason": "the GPU process died while it ran this kernel"}

    def _ensure_started(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise InfraError("the GPU runner is closed")
        if self._process is not None and self._process.poll() is None:
            return self._process
        root = str(Path(__file__).resolve().parents[3])
        env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([root, *(p for p in sys.path if p)])}
        if "CUDA_VISIBLE_DEVICES" not in os.environ:
            env["CUDA_VISIBLE_DEVICES"] = str(self._gpu)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "evo_kernel.fitness.runners.cuda_worker", str(self._task.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            line = _read_line(self._process.stdout.fileno(), START_S)
        except TimeoutError:
            line = b""
        if not line:
            self._kill()
            raise InfraError(f"the GPU process did not start:\n{self._tail()}")
        self.info = json.loads(line)
        self.arch = int(self.info["arch"])
        return self._process

    def _tail(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode(errors="replace")

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _read_line(fd: int, deadline_s: float) -> bytes:
    """One line from a pipe, or b"" at its end. Raises TimeoutError."""
    end = time.monotonic() + deadline_s
    parts: list[bytes] = []
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise TimeoutError
        data = os.read(fd, 1 << 20)
        if not data:
            return b""
        parts.append(data)
        if data.endswith(b"\n"):
            return b"".join(parts)
