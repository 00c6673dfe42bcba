"""Warm processes that zygotes are forked from: what they import is imported once, while their judge imports it too.

`start` begins; call it before torch is imported. One nursery serves all zygotes of a process, and what is lost is born
again in milliseconds. Started as `python -P -m evo_kernel.fitness.sandbox.preloaded LIFE_FD ASK_FD...`, it imports
what each role needs, in the order of `zygote_process.ROLES`. On its way it leaves a process behind for every role but
the last, that a role's zygotes carry no more memory than they need: a fork copies the tables of all of it. None has a
second thread. A request is the folder of a zygote and its environment, with control socket and log as descriptors; the
answer is a process id. What is born is a warden in a session of its own (warden.py), and ends with its judge; so do
these.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn

from evo_kernel.errors import InfraError
from evo_kernel.fitness.sandbox import warden, zygote_process

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONHASHSEED")
_REQUEST_BYTES = 1 << 16


class Born:
    """What a Zygote asks of its process. It is no child of ours, so its end is seen by a descriptor."""

    def __init__(self, pid: int) -> None:
        self.pid, self._ended = pid, os.pidfd_open(pid)

    def poll(self) -> int | None:
        return 0 if self._has_ended(0.0) else None

    def wait(self, timeout_s: float | None = None) -> int:
        if not self._has_ended(timeout_s):
            raise subprocess.TimeoutExpired("zygote", timeout_s or 0.0)
        return 0

    def __del__(self) -> None:
        os.close(self._ended)

    def _has_ended(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._ended], [], [], timeout_s)[0])


class _Nursery:
    """The judge's side. Thread-safe."""

    def __init__(self) -> None:
        pairs = {role: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for role in zygote_process.ROLES}
        lasting, self._life = os.pipe2(os.O_CLOEXEC)  # nobody writes: its end is ours
        theirs = [lasting, *(their.fileno() for _, their in pairs.values())]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "evo_kernel.fitness.sandbox.preloaded", *map(str, theirs)],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment(),
            cwd=tempfile.gettempdir(), start_new_session=True,
        )  # fmt: skip
        os.close(lasting)
        for _, their in pairs.values():
            their.close()
        self._asking = {role: ours for role, (ours, _) in pairs.items()}

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, role: str, request: Mapping[str, object], control: socket.socket, log: BinaryIO) -> bool:
        """Whether the request could be sent; where it is lost, so is the other end of `control`."""
        try:
            socket.send_fds(self._asking[role], [json.dumps(request).encode()], [control.fileno(), log.fileno()])
        except OSError:
            return False
        return True

    def said(self) -> str:
        """The end of what it wrote."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def close(self) -> None:
        for asking in self._asking.values():
            asking.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # zygotes are in sessions of their own
        self._process.wait()
        os.close(self._life)
        self._log.close()


_lock = threading.Lock()
_alive: list[_Nursery] = []  # one at most


def start() -> None:
    """Begin to import what zygotes need, in another process; returns at once."""
    _started()


def _started() -> _Nursery:
    with _lock:
        if not _alive or not _alive[0].alive():
            close()
            _alive.append(_Nursery())
        return _alive[0]


@atexit.register
def close() -> None:
    """End it. What was born lives on. Idempotent."""
    while _alive:
        _alive.pop().close()


def birth(
    role: str, folder: Path, env: Mapping[str, str], ours: socket.socket, theirs: socket.socket, log: BinaryIO
) -> Born:
    """A zygote in `folder`, with `env` on top of the usual environment, that listens to the other end of `ours`.

    Raises InfraError where it was not born, or `ours` was shut meanwhile.
    """
    nursery = _started()
    request = {"folder": str(folder), "env": dict(env)}
    if not nursery.ask(role, request, theirs, log):
        nursery = _started()
        nursery.ask(role, request, theirs, log)
    theirs.close()  # so that the end of whoever has it now is seen
    told = b""
    with contextlib.suppress(OSError):
        while not told.endswith(b"\n") and (read := ours.recv(1)):
            told += read
    if not told.endswith(b"\n"):
        raise InfraError(f"the {role} process was not born:\n{nursery.said()}")
    return Born(int(told))


def environment() -> dict[str, str]:
    """Of a zygote, and of what it is forked from: nothing of ours but what programs need to be found."""
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    env |= {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    package_root = str(Path(__file__).resolve().parents[3])
    return env | {"PYTHONPATH": os.pathsep.join([package_root, *_python_path()])}


def _python_path() -> list[str]:
    """Where the parent finds its packages, the working folder left out (`-P` keeps it out of the child too)."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.getcwd()
    return [
        path
        for path in sys.path
        if path and os.path.abspath(path) != here and ("site-packages" in path or path in named)
    ]


# --- the process itself ---------------------------------------------------------------------------------------------


def main() -> None:
    life, *descriptors = map(int, sys.argv[1:])
    _end_with(life)
    asked = {role: socket.socket(fileno=fd) for role, fd in zip(zygote_process.ROLES, descriptors, strict=True)}
    for role in zygote_process.ROLES:
        zygote_process.load(role)
        own = asked.pop(role)
        if not asked:  # the last one is served here
            _serve(role, own)
        elif os.fork() == 0:
            for other in asked.values():
                other.close()
            _serve(role, own)
        own.close()


def _end_with(life: int) -> None:
    """This process group dies of SIGIO when the other end of a pipe is closed, whatever is being imported."""
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([life], [], [], 0)[0]:
        os._exit(0)


def _serve(role: str, asked: socket.socket) -> NoReturn:
    """Fork a warden a request until nobody asks any more."""
    handler = zygote_process.warm_up(role)
    gc.collect()
    gc.freeze()  # a child's collector would touch, and so copy, every page of what was loaded here
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        request, descriptors, *_ = socket.recv_fds(asked, _REQUEST_BYTES, 2)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            asked.close()
            _live(json.loads(request), (descriptors[0], descriptors[1]), handler)
        for descriptor in descriptors:
            os.close(descriptor)


def _reap(*_: object) -> None:
    """Whoever asked sees the end of a zygote by a descriptor: it is done with."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _live(request: dict[str, dict[str, str] | str], descriptors: tuple[int, int], handler: str) -> NoReturn:
    """The life of a warden and, in its child, of a zygote."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        folder, env = request["folder"], request["env"]
        assert isinstance(folder, str) and isinstance(env, dict)
        os.chdir(folder)
        os.environ.update(env)
        os.nice(zygote_process.NICENESS)
        control, log = descriptors
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        speaking = socket.socket(fileno=control)
        speaking.sendall(f"{os.getpid()}\n".encode())
        warden.guarded(speaking, lambda around: zygote_process.serve(speaking, handler, around))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
