"""Preloader: processes that import modules once and from which zygotes are forked in milliseconds.

Call `start` before torch is imported, so that both processes import in parallel. One preloader serves all zygotes of a
process. It runs as `python -P -m evo_kernel.fitness.sandbox.preloaded LIFE_FD REQUEST_FD...` and imports the modules of
each role in the order of `zygote_process.ROLES`. Before it imports more for the next role, it forks a process that
serves the role so far: a fork copies all page tables, so zygotes should map no more memory than they need. No process
has a second thread. A request holds the folder and environment of a zygote, with its control socket and log as
descriptors; the answer is the process id of a supervisor (zygote_process.py) in a new session. All end with their
judge.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
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
from evo_kernel.fitness.sandbox import zygote_process

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE")
_REQUEST_BYTES = 1 << 16


class ForkedZygote:
    """A forked zygote's supervisor, with `poll` and `wait` as in Popen. Not our child: a pidfd tells when it ends."""

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


class _Preloader:
    """The judge's side of the preloader. Thread-safe."""

    def __init__(self) -> None:
        pairs = {role: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for role in zygote_process.ROLES}
        lifetime, self._life = os.pipe2(os.O_CLOEXEC)  # never written; the preloader ends when we close it
        theirs = [lifetime, *(their.fileno() for _, their in pairs.values())]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "evo_kernel.fitness.sandbox.preloaded", *map(str, theirs)],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment(),
            cwd=tempfile.gettempdir(), start_new_session=True,
        )  # fmt: skip
        os.close(lifetime)
        for _, their in pairs.values():
            their.close()
        self._asking = {role: ours for role, (ours, _) in pairs.items()}

    def alive(self) -> bool:
        return self._process.poll() is None

    def request(self, role: str, request: Mapping[str, object], control: socket.socket, log: BinaryIO) -> bool:
        """Send a request; False if it could not be sent. If it is lost later, the other end of `control` closes."""
        try:
            socket.send_fds(self._asking[role], [json.dumps(request).encode()], [control.fileno(), log.fileno()])
        except OSError:
            return False
        return True

    def log_tail(self) -> str:
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
_alive: list[_Preloader] = []  # one at most


def start() -> None:
    """Start importing the zygotes' modules in another process; returns at once."""
    _started()


def _started() -> _Preloader:
    with _lock:
        if not _alive or not _alive[0].alive():
            close()
            _alive.append(_Preloader())
        return _alive[0]


@atexit.register
def close() -> None:
    """End the preloader; zygotes already forked go on. Idempotent."""
    while _alive:
        _alive.pop().close()


def fork_zygote(
    role: str, folder: Path, env: Mapping[str, str], ours: socket.socket, theirs: socket.socket, log: BinaryIO
) -> ForkedZygote:
    """Fork a zygote in `folder`, with `env` added to the usual environment; it listens to the other end of `ours`.

    Raises InfraError if the fork failed or `ours` was closed meanwhile.
    """
    preloader = _started()
    request = {"folder": str(folder), "env": dict(env)}
    if not preloader.request(role, request, theirs, log):
        preloader = _started()
        preloader.request(role, request, theirs, log)
    theirs.close()  # so that `ours` sees it when the process that holds it ends
    line = b""
    with contextlib.suppress(OSError):
        while not line.endswith(b"\n") and (read := ours.recv(1)):
            line += read
    if not line.endswith(b"\n"):
        raise InfraError(f"the {role} process did not start:\n{preloader.log_tail()}")
    return ForkedZygote(int(line))


def environment() -> dict[str, str]:
    """Environment variables of zygotes and their preloader: of ours, only those by which programs are found."""
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    env |= {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    env |= {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # see _use_huge_pages
    env |= {"USER": "nobody"}  # torch asks for a name, and the sandbox hides the file that has it
    package_root = str(Path(__file__).resolve().parents[3])
    # The parent's package folders without the working folder; `-P` keeps it out of the child too.
    named, here = os.environ.get("PYTHONPATH", "").split(os.pathsep), os.getcwd()
    paths = [path for path in sys.path if path and os.path.abspath(path) != here]
    paths = [path for path in paths if "site-packages" in path or path in named]
    return env | {"PYTHONPATH": os.pathsep.join([package_root, *paths])}


# --- the process itself ---------------------------------------------------------------------------------------------


def main() -> None:
    life, *descriptors = map(int, sys.argv[1:])
    _end_with(life)
    requests = {role: socket.socket(fileno=fd) for role, fd in zip(zygote_process.ROLES, descriptors, strict=True)}
    gc.disable()  # what imports make stays; looking through it again and again takes a seventh of their time
    for role in zygote_process.ROLES:
        zygote_process.load(role)
        gc.freeze()  # a child's garbage collector would write to, and so copy, every page loaded here
        _use_huge_pages()
        channel = requests.pop(role)
        if not requests:  # the last one is served here
            _serve(role, channel)
        elif os.fork() == 0:
            for other in requests.values():
                other.close()
            _serve(role, channel)
        channel.close()


def _end_with(life: int) -> None:
    """Let SIGIO kill this process group when the other end of a pipe is closed, even during an import."""
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([life], [], [], 0)[0]:
        os._exit(0)


def _serve(role: str, requests: socket.socket) -> NoReturn:
    """Fork a supervisor for each request until the socket closes."""
    handler = zygote_process.warm_up(role)
    sys.dont_write_bytecode = True  # in a child, which has no place for it
    gc.enable()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _run_zygote(json.loads(request), (descriptors[0], descriptors[1]), handler)
        for descriptor in descriptors:
            os.close(descriptor)


_HUGE_BYTES, _MADV_COLLAPSE = 2 << 20, 25  # madvise(2), Linux 6.1


def _use_huge_pages() -> None:
    """Move what lies in memory to huge pages, where the kernel has them: a fork then copies 75 page-table entries for
    150 MB, and an exit drops as many, instead of 38,000. The C library asks for them itself (GLIBC_TUNABLES); the
    interpreter's own allocator does not."""
    library = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _, _, inode, *_ = line.split()
        first, last = (int(address, 16) for address in span.split("-"))
        if mode == "rw-p" and inode == "0" and last - first >= 2 * _HUGE_BYTES:
            library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def _reap(*_: object) -> None:
    """Reap ended supervisors; whoever asked for them watches a pidfd."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run_zygote(request: dict[str, dict[str, str] | str], descriptors: tuple[int, int], handler: str) -> NoReturn:
    """Run a supervisor and, in its child, a zygote."""
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
        zygote_process.supervise(speaking, lambda spaces: zygote_process.serve(speaking, handler, spaces))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
