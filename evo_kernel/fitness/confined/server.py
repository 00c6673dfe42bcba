"""The zygote: a process that has the heavy imports done and forks a fresh confined child for every job.

Started as `python -P -m evo_kernel.fitness.confined.server ROLE SCRATCH CONTROL_FD`. It reads one JSON line a job from
its control socket, `{"id", "folder", "limits"}`, forks, and answers `{"id", "outcome", ...}` when the child and all
that it started are gone. The child reads `folder/request.json` and writes `folder/result.json`; nothing that it
prints goes anywhere. A child that outlives its deadline is killed with its whole process-id namespace.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass

from evo_kernel.fitness.confined import guards

ROLES = {
    "record": (
        "evo_kernel.fitness.record.child",
        ("torch", "triton", "torch._subclasses.fake_tensor", "triton.experimental.gluon"),
    ),
    "compile": ("evo_kernel.fitness.compiling.child", ("triton", "triton.compiler", "triton.experimental.gluon")),
    "interpret": ("evo_kernel.fitness.interpreting.child", ("torch", "triton")),
}


NICENESS = 5
"""The process that times kernels must get its turn among as many compilers as there are cores."""


@dataclass
class _Job:
    id: int
    pid: int
    pidfd: int
    deadline: float
    timed_out: bool = False


def main() -> None:
    role, control_fd = sys.argv[1], int(sys.argv[2])
    os.nice(NICENESS)
    # Not PR_SET_PDEATHSIG: it fires when the *thread* that started this process ends. The end of the control socket
    # says that the parent is gone.
    handler = _prepare(role)
    control = socket.socket(fileno=control_fd)
    _send(control, {"ready": True})
    _serve(control, handler)


def _prepare(role: str) -> str:
    """Import what every child needs, with one thread: a forked child must inherit no lock of another thread."""
    module, warm = ROLES[role]
    for name in warm:
        importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    importlib.import_module(module).warm_up()
    gc.collect()
    gc.freeze()  # a child's collector would touch, and so copy, every page of what was loaded here
    return module


def _serve(control: socket.socket, module: str) -> None:
    jobs: dict[int, _Job] = {}
    pending = b""
    while True:
        now = time.monotonic()
        timeout = min((job.deadline for job in jobs.values()), default=now + 3600) - now
        readable, _, _ = select.select([control, *(job.pidfd for job in jobs.values())], [], [], max(0.0, timeout))
        for job in [job for job in jobs.values() if job.pidfd in readable]:
            del jobs[job.id]
            _send(control, _reap(job))
        for job in jobs.values():
            if time.monotonic() >= job.deadline and not job.timed_out:
                job.timed_out, job.deadline = True, job.deadline + 3600
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job.pid, signal.SIGKILL)
        if control in readable:
            data = control.recv(1 << 16)
            if not data:
                for job in jobs.values():
                    os.kill(job.pid, signal.SIGKILL)
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                job = _start(json.loads(line), module, control)
                jobs[job.id] = job


def _reap(job: _Job) -> dict[str, object]:
    os.close(job.pidfd)
    _, status, usage = os.wait4(job.pid, 0)
    if job.timed_out:
        outcome = "timeout"
    elif os.WIFSIGNALED(status):
        outcome = signal.Signals(os.WTERMSIG(status)).name
    else:
        outcome = "done" if os.WEXITSTATUS(status) == 0 else f"exit {os.WEXITSTATUS(status)}"
    return {"id": job.id, "outcome": outcome, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_kb": usage.ru_maxrss}


def _start(request: dict, module: str, control: socket.socket) -> _Job:
    limits = guards.Limits(**request["limits"])
    pid = os.fork()
    if pid == 0:
        _overseer(request["folder"], module, limits, control)
    return _Job(request["id"], pid, os.pidfd_open(pid), time.monotonic() + limits.deadline_s)


def _overseer(folder: str, module: str, limits: guards.Limits, control: socket.socket) -> None:
    """First child: enters the namespaces, starts the child proper as process 1 there, and passes its fate on."""
    status = 70
    try:
        guards.die_with_parent()
        control.close()
        os.setsid()
        in_namespaces = guards.enter_namespaces()
        pid = os.fork()
        if pid == 0:
            _child(folder, module, limits, in_namespaces)
        _, raw = os.waitpid(pid, 0)
        status = os.waitstatus_to_exitcode(raw)
        if status < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the signal is passed on, a core file is not
            signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -status)
    finally:
        os._exit(status if status >= 0 else 70)


def _child(folder: str, module: str, limits: guards.Limits, in_namespaces: bool) -> None:
    """The child proper: silent, confined, gone after one job."""
    status = 71
    try:
        guards.die_with_parent()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.closerange(3, 1024)
        if in_namespaces:
            guards.cap_processes(301)
        os.chdir(folder)
        os.environ["HOME"] = os.environ["TMPDIR"] = os.environ["TRITON_HOME"] = folder
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "cache")
        walls = guards.confine(folder, limits, in_namespaces)
        with open("request.json", "rb") as file:
            request = json.loads(file.read())
        answer = sys.modules[module].handle(request, folder)
        answer["confinement"] = walls
        with open("result.json", "w", encoding="utf-8") as file:
            json.dump(answer, file)
        status = 0
    except MemoryError:
        status = 72
    # Whatever else escapes a handler is our bug or an attack: the parent sees the text, then decides.
    except BaseException:  # noqa: BLE001
        with contextlib.suppress(OSError), open("crash.txt", "w", encoding="utf-8") as file:
            file.write(traceback.format_exc()[-4000:])
        status = 73
    finally:
        os._exit(status)


def _send(control: socket.socket, message: dict[str, object]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
