"""Zygote: a process that has finished its imports and forks a fresh confined child for every job; and its supervisor.

The preloader (preloaded.py) forks the supervisor, which forks the zygote. When the judge or the zygote ends, the
supervisor kills the zygote and all its descendants. With namespaces, the zygote is process 1 of one and the kernel
kills the others. Without them, the supervisor kills all processes of its session, which confined children cannot leave
(`seccomp` in guards.py).

The zygote reads one JSON line per job from its control socket, `{"id", "folder", "limits"}`, forks, and answers
`{"id", "outcome", "confinement"}` when the child and all its processes have ended. The child reads
`folder/request.json`, works in `folder/work`, which has links to the folder's other files, and writes its answer
through a descriptor opened before it was confined. Its other output is discarded. A child that passes its deadline or
writes too much is killed with its PID namespace, or with its process group if there are no namespaces.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from evo_kernel.fitness.sandbox import guards, namespaces
from evo_kernel.fitness.sandbox.namespaces import Namespaces

ROLES = {
    "compile": ("evo_kernel.fitness.compile.child", ("triton", "triton.compiler", "triton.experimental.gluon")),
    "execute": ("evo_kernel.fitness.ir.child", ("torch",)),
    "record": ("evo_kernel.fitness.record.child", ("torch._subclasses.fake_tensor",)),
}
"""Role → the module that serves it, and its other imports, in addition to those of the roles before it."""
NICENESS = 5
"""Lower priority: the process that times kernels competes with as many compilers as there are cores."""
LOG_BYTES = 1 << 20
"""Limit of the zygote's log. Its children have none."""
REQUEST, ANSWER, WORK = "request.json", "answer.json", "work"
"""File names in the folder of a job."""
OUTCOMES = {72: "memory", 73: "crash", 74: "answer"}
"""Meaning of a failed child's exit statuses."""
_DISK_CHECK_S = 0.2  # between two checks of what children have written, if no tmpfs limits it
_MOST_FILES = 16384
_CONFINEMENT_BYTES = 400


@dataclass
class _Job:
    id: int
    pid: int
    pidfd: int
    deadline: float
    confinement_fd: int  # the descriptor from which they are read
    work: str
    limits: guards.SandboxLimits
    killed: str = ""  # the reason


def load(role: str) -> None:
    """Import the modules of a role."""
    module, warm = ROLES[role]
    for name in (*warm, module):
        importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # a forked child must not inherit a lock that another thread holds


def warm_up(role: str) -> str:
    """Do once what every child of a role would do first. Returns the name of the module that serves the role."""
    module, _ = ROLES[role]
    importlib.import_module(module).warm_up()
    return module


def serve(control: socket.socket, module: str, spaces: Namespaces) -> None:
    """Report that the zygote is ready, then serve jobs until the control socket closes."""
    guards.prepare()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_BYTES, hard))
    _send(control, {"ready": True})
    jobs: dict[int, _Job] = {}
    pending = b""
    while True:
        readable, _, _ = select.select(
            [control, *(job.pidfd for job in jobs.values())], [], [], _patience(jobs, spaces)
        )
        for job in [job for job in jobs.values() if job.pidfd in readable]:
            del jobs[job.id]
            _send(control, _reap(job, spaces))
        for job in jobs.values():
            if time.monotonic() >= job.deadline:
                _end(job, "timeout")
            elif not spaces.mounts and _wrote_too_much(job):
                _end(job, "disk")
        if control in readable:
            data = control.recv(1 << 16)
            if not data:
                return  # the supervisor ends what is left
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                job = _start(json.loads(line), module, spaces)
                jobs[job.id] = job


def _patience(jobs: dict[int, _Job], spaces: Namespaces) -> float:
    now = time.monotonic()
    left = max(0.0, min((job.deadline for job in jobs.values()), default=now + 3600) - now)
    return left if spaces.mounts or not jobs else min(left, _DISK_CHECK_S)


def _end(job: _Job, reason: str) -> None:
    if not job.killed:
        job.killed, job.deadline = reason, job.deadline + 3600
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGKILL)


def _reap(job: _Job, spaces: Namespaces) -> dict[str, object]:
    if not spaces.active:  # its process id is not reused yet: it has not been waited for
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.pid, signal.SIGKILL)
    os.close(job.pidfd)
    _, status = os.waitpid(job.pid, 0)
    confinement = os.read(job.confinement_fd, _CONFINEMENT_BYTES).decode()
    os.close(job.confinement_fd)
    code = os.waitstatus_to_exitcode(status)
    outcome = "done" if code == 0 else OUTCOMES.get(code, f"exit {code}")
    if code < 0:
        outcome = "timeout" if -code == signal.SIGXCPU else signal.Signals(-code).name
    if job.killed:
        outcome = job.killed
    return {"id": job.id, "outcome": outcome, "confinement": confinement}


def _wrote_too_much(job: _Job) -> bool:
    """Whether a child's files, deleted ones that are still open included, exceed the limits of size or number."""
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


def _start(request: dict, module: str, spaces: Namespaces) -> _Job:
    limits, folder = guards.SandboxLimits(**request["limits"]), request["folder"]
    read_fd, confinement_fd = os.pipe()
    pid = spaces.fork()
    if pid == 0:
        _child(folder, module, limits, spaces, confinement_fd)
    os.close(confinement_fd)
    deadline = time.monotonic() + limits.deadline_s
    return _Job(request["id"], pid, os.pidfd_open(pid), deadline, read_fd, os.path.join(folder, WORK), limits)


def _child(folder: str, module: str, limits: guards.SandboxLimits, spaces: Namespaces, confinement_fd: int) -> NoReturn:
    """Run one job in the forked child: confined, without output, then exit."""
    status, answer = 71, -1
    try:
        guards.die_with_parent()
        guards.take_small_pages()
        answer = _open_answer(folder, confinement_fd)
        _confine(folder, limits, spaces)
        with open(os.path.join(folder, REQUEST), "rb") as file:
            request = json.loads(file.read())
        reply = sys.modules[module].handle(request, os.getcwd())
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        if len(data) > limits.answer_bytes:
            raise OSError(errno.EFBIG, "the answer is too long")
        _write(answer, data)
        status = 0
    except MemoryError:
        status = 72
    # Any other exception is our bug or an attack: the parent reads its text and decides.
    except BaseException as error:  # noqa: BLE001
        status = 74 if isinstance(error, OSError) and error.errno == errno.EFBIG else 73
        with contextlib.suppress(OSError):
            _write(answer, traceback.format_exc()[-4000:].encode(errors="replace"))
    finally:
        os._exit(status)


_CONFINEMENT_FD = 4


def _open_answer(folder: str, confinement_fd: int) -> int:
    """Return the answer's descriptor; close all others except /dev/null (0 to 2) and `_CONFINEMENT_FD`."""
    null = os.open(os.devnull, os.O_RDWR)
    answer = fcntl.fcntl(os.open(os.path.join(folder, ANSWER), os.O_WRONLY | os.O_NOFOLLOW), fcntl.F_DUPFD, 16)
    confinement_fd = fcntl.fcntl(confinement_fd, fcntl.F_DUPFD, 16)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(answer, 3)
    os.dup2(confinement_fd, _CONFINEMENT_FD)
    os.closerange(_CONFINEMENT_FD + 1, 1 << 16)
    return 3


def _confine(folder: str, limits: guards.SandboxLimits, spaces: Namespaces) -> None:
    """Confine this process, report the active guards to the zygote, and change to the work folder."""
    work = os.path.join(folder, WORK)
    if spaces.active:
        os.setsid()  # process groups cross namespaces: kill(0) would end the zygote
        namespaces.cap_processes(301)
    else:
        os.setpgid(0, 0)  # it must stay in the supervisor's session: the supervisor finds remaining processes by it
    confinement = guards.confine(folder, work, limits, spaces)
    os.write(_CONFINEMENT_FD, confinement.encode())
    os.close(_CONFINEMENT_FD)
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


_ROUNDS, _PAUSE_S = 200, 0.01  # of killing a session: the next round finds what was forked during this one


def supervise(control: socket.socket, zygote: Callable[[Namespaces], None]) -> NoReturn:
    """Run `zygote` in a child until it ends, the judge's end of `control` closes, or SIGTERM arrives.

    The caller must be a session leader. The working folder belongs to the zygote and is used as a trial mount point.
    """
    entered = namespaces.enter()
    pid = os.fork()
    if pid == 0:
        _run(zygote, entered)
    signal.signal(signal.SIGTERM, lambda *_: _end_all(pid, entered))
    waiting = select.poll()
    waiting.register(control, select.POLLRDHUP)
    waiting.register(os.pidfd_open(pid), select.POLLIN)
    waiting.poll()
    _end_all(pid, entered)


def _run(zygote: Callable[[Namespaces], None], entered: bool) -> NoReturn:
    status = 1
    try:
        # The death signal fires when the forking thread ends; the parent has only one.
        guards.die_with_parent()
        zygote(namespaces.inside(os.getcwd()) if entered else Namespaces())
        status = 0
    except BaseException:  # noqa: BLE001  the log holds the traceback; the judge sees that the process ended
        traceback.print_exc()
    finally:
        os._exit(status)


def _end_all(pid: int, entered: bool) -> NoReturn:
    """Kill the zygote and its descendants, then exit."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)  # for process 1 of a namespace, this waits until all others in it have ended
    for _ in range(0 if entered else _ROUNDS):
        remaining = list(_session(os.getpid()))
        for pid_left in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid_left, signal.SIGKILL)
        if not remaining:
            break
        time.sleep(_PAUSE_S)
    os._exit(0)


def _session(leader: int) -> Iterator[int]:
    """Ids of a session's living processes, without its leader."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != leader:
            with contextlib.suppress(OSError):
                state, _parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state not in "ZX":
                    yield int(entry.name)
