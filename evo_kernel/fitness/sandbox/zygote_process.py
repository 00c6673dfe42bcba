"""The zygote: a process that has the heavy imports done and forks a fresh confined child for every job.

Born in a nursery (preloaded.py), behind a warden (warden.py). It reads one
JSON line a job from its control socket, `{"id", "folder", "limits"}`, forks, and answers `{"id", "outcome", "walls",
...}` when the child and all that it started are gone. The child reads `folder/request.json`, works in `folder/work`,
where it finds links to the folder's other files, and writes its answer through a descriptor that it got before the
walls stood; nothing that it prints goes anywhere. A child that outlives its deadline, or writes too much, is killed
with its whole process-id namespace, or its process group where there are no namespaces.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
from typing import NoReturn

from evo_kernel.fitness.sandbox import guards, namespaces
from evo_kernel.fitness.sandbox.namespaces import Namespaces

ROLES = {
    "compile": ("evo_kernel.fitness.compile.child", ("triton", "triton.compiler", "triton.experimental.gluon")),
    "execute": ("evo_kernel.fitness.ir.child", ("torch",)),
    "record": ("evo_kernel.fitness.record.child", ("torch._subclasses.fake_tensor",)),
}
"""Role → the module that serves it, and what else it imports: each adds to those before it."""


NICENESS = 5
"""The process that times kernels must get its turn among as many compilers as there are cores."""


LOG_BYTES = 1 << 20
"""Of the zygote's own log. Its children have none."""
REQUEST, ANSWER, WORK = "request.json", "answer.json", "work"
"""Names in the folder of a job."""
OUTCOMES = {72: "memory", 73: "crash", 74: "answer"}
"""What the statuses mean with which a child ends if it does not end well."""
_LOOK_S = 0.2  # between two looks at what children have written, where no file system bounds it
_MOST_FILES = 16384
_WALLS_BYTES = 400


@dataclass
class _Job:
    id: int
    pid: int
    pidfd: int
    deadline: float
    walls: int  # the descriptor from which they are read
    work: str
    limits: guards.SandboxLimits
    killed: str = ""  # why


def load(role: str) -> None:
    """Import what every child of a role needs."""
    module, warm = ROLES[role]
    for name in (*warm, module):
        importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # a forked child must inherit no lock of another thread


def warm_up(role: str) -> str:
    """What every child of a role would do first; the name of the module that serves it."""
    module, _ = ROLES[role]
    importlib.import_module(module).warm_up()
    return module


def serve(control: socket.socket, module: str, around: Namespaces) -> None:
    """Say that the zygote is warm, then serve jobs until nobody asks any more."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_BYTES, hard))
    _send(control, {"ready": True})
    jobs: dict[int, _Job] = {}
    pending = b""
    while True:
        readable, _, _ = select.select(
            [control, *(job.pidfd for job in jobs.values())], [], [], _patience(jobs, around)
        )
        for job in [job for job in jobs.values() if job.pidfd in readable]:
            del jobs[job.id]
            _send(control, _reap(job, around))
        for job in jobs.values():
            if time.monotonic() >= job.deadline:
                _end(job, "timeout")
            elif not around.mounts and _wrote_too_much(job):
                _end(job, "disk")
        if control in readable:
            data = control.recv(1 << 16)
            if not data:
                return  # the warden ends what is left
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                job = _start(json.loads(line), module, around)
                jobs[job.id] = job


def _patience(jobs: dict[int, _Job], around: Namespaces) -> float:
    now = time.monotonic()
    left = max(0.0, min((job.deadline for job in jobs.values()), default=now + 3600) - now)
    return left if around.mounts or not jobs else min(left, _LOOK_S)


def _end(job: _Job, why: str) -> None:
    if not job.killed:
        job.killed, job.deadline = why, job.deadline + 3600
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGKILL)


def _reap(job: _Job, around: Namespaces) -> dict[str, object]:
    if not around.stand:  # its number is still its own: it has not been waited for
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.pid, signal.SIGKILL)
    os.close(job.pidfd)
    _, status = os.waitpid(job.pid, 0)
    walls = os.read(job.walls, _WALLS_BYTES).decode()
    os.close(job.walls)
    code = os.waitstatus_to_exitcode(status)
    outcome = "done" if code == 0 else OUTCOMES.get(code, f"exit {code}")
    if code < 0:
        outcome = "timeout" if -code == signal.SIGXCPU else signal.Signals(-code).name
    if job.killed:
        outcome = job.killed
    return {"id": job.id, "outcome": outcome, "walls": walls}


def _wrote_too_much(job: _Job) -> bool:
    """Whether the files of a child are larger, or more, than they may be; those that it deleted and holds open too."""
    size, count = 0, 0
    folders = [job.work, f"/proc/{job.pid}/fd"]
    while folders and count <= _MOST_FILES and size <= job.limits.disk_bytes:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folders.pop()):
                count += 1
                with contextlib.suppress(OSError):
                    own = entry.path.startswith(job.work)
                    if own and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif own or "(deleted)" in os.readlink(entry.path):
                        size += 512 * entry.stat(follow_symlinks=not own).st_blocks
    return count > _MOST_FILES or size > job.limits.disk_bytes


def _start(request: dict, module: str, around: Namespaces) -> _Job:
    limits, folder = guards.SandboxLimits(**request["limits"]), request["folder"]
    walls, telling = os.pipe()
    pid = around.fork()
    if pid == 0:
        _child(folder, module, limits, around, telling)
    os.close(telling)
    deadline = time.monotonic() + limits.deadline_s
    return _Job(request["id"], pid, os.pidfd_open(pid), deadline, walls, os.path.join(folder, WORK), limits)


def _child(folder: str, module: str, limits: guards.SandboxLimits, around: Namespaces, telling: int) -> NoReturn:
    """The child proper: silent, confined, gone after one job."""
    status, answer = 71, -1
    try:
        guards.die_with_parent()
        answer = _open_answer(folder, telling)
        _confine(folder, limits, around)
        with open(os.path.join(folder, REQUEST), "rb") as file:
            request = json.loads(file.read())
        made = sys.modules[module].handle(request, os.getcwd())
        data = made if isinstance(made, bytes) else json.dumps(made).encode()
        if len(data) > limits.answer_bytes:
            raise OSError(errno.EFBIG, "the answer is too long")
        _write(answer, data)
        status = 0
    except MemoryError:
        status = 72
    # Whatever else escapes a handler is our bug or an attack: the parent sees the text, then decides.
    except BaseException as error:  # noqa: BLE001
        status = 74 if isinstance(error, OSError) and error.errno == errno.EFBIG else 73
        with contextlib.suppress(OSError):
            _write(answer, traceback.format_exc()[-4000:].encode(errors="replace"))
    finally:
        os._exit(status)


_TELLING = 4


def _open_answer(folder: str, telling: int) -> int:
    """The descriptor to answer through; of all others, those to nowhere and `_TELLING` stay open."""
    null = os.open(os.devnull, os.O_RDWR)
    answer = fcntl.fcntl(os.open(os.path.join(folder, ANSWER), os.O_WRONLY | os.O_NOFOLLOW), fcntl.F_DUPFD, 16)
    telling = fcntl.fcntl(telling, fcntl.F_DUPFD, 16)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(answer, 3)
    os.dup2(telling, _TELLING)
    os.closerange(_TELLING + 1, 1 << 16)
    return 3


def _confine(folder: str, limits: guards.SandboxLimits, around: Namespaces) -> None:
    """Put the walls up, tell the zygote which, and go to the folder to work in."""
    work = os.path.join(folder, WORK)
    if around.stand:
        os.setsid()  # a process group reaches across namespaces: kill(0) would end the zygote
        namespaces.cap_processes(301)
    else:
        os.setpgid(0, 0)  # its session must stay the warden's, which looks for what is left by that
    walls = guards.confine(folder, work, limits, around)
    os.write(_TELLING, walls.encode())
    os.close(_TELLING)
    os.chdir(work)
    for name in os.listdir(folder):
        if name not in (REQUEST, ANSWER, WORK):
            os.symlink(os.path.join(folder, name), name)
    os.environ["HOME"] = os.environ["TMPDIR"] = os.environ["TRITON_HOME"] = work
    os.environ["TRITON_CACHE_DIR"] = os.path.join(work, "cache")


def _write(fd: int, data: bytes) -> None:
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    while data:
        data = data[os.write(fd, data) :]


def _send(control: socket.socket, message: dict[str, object]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
