"""Zygotes in milliseconds: a warm process for each role forks them, so that tests do not import torch again and again.

A zygote that comes of it runs the same code in a process group of its own, as one that was started does; only its
imports were made before. One nursery serves all judges of a test process that start their zygotes with the same
environment. `python -P -m tests.support.nursery ROLE CONTROL_FD` is the nursery itself: it answers each request (the
folder of the zygote, with its control socket and its log as file descriptors) with a process id.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

from evo_kernel.fitness.confined import server, warden, zygote

ROOT = Path(__file__).resolve().parents[2]


class Nurseries:
    """Those of one test process, by role and environment. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def spawn(self, born: zygote.Zygote, control: socket.socket, log: BinaryIO) -> Born:
        """In place of `Zygote._spawn`."""
        env = born._env | {"PYTHONPATH": os.pathsep.join([str(ROOT), *zygote._python_path()])}
        env.pop("TMPDIR", None)  # its own folder, set when it is born
        with self._lock:
            _, asking = self._nursery(born.role, env)
            folder = str(born._scratch.path).encode()
            socket.send_fds(asking, [folder], [control.fileno(), log.fileno()])
            return Born(int(asking.recv(64)))

    def close(self) -> None:
        for process, asking in self._started.values():
            asking.close()
            process.wait()

    def _nursery(self, role: str, env: dict[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        key = json.dumps([role, env], sort_keys=True)
        if key not in self._started:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-P", "-m", "tests.support.nursery", role, str(theirs.fileno())]
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=env, cwd=tempfile.gettempdir(), start_new_session=True
            )
            theirs.close()
            self._started[key] = (process, ours)
        return self._started[key]


class Born:
    """What a Zygote asks of its process. It is no child of ours, so its end is seen by a descriptor."""

    def __init__(self, pid: int) -> None:
        self.pid, self._ended = pid, os.pidfd_open(pid)

    @property
    def returncode(self) -> int | None:
        return self.poll()

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


def main() -> None:
    role, asked = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    os.nice(server.NICENESS)
    handler = server._prepare(role)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever asked sees the end of a zygote, nobody has to reap it
    while True:
        folder, descriptors, *_ = socket.recv_fds(asked, 4096, 2)
        if not folder:
            return
        control, log = descriptors
        pid = os.fork()
        if pid == 0:
            asked.close()
            _live(folder.decode(), control, log, handler)
        for descriptor in descriptors:
            os.close(descriptor)
        asked.send(str(pid).encode())


def _live(folder: str, control: int, log: int, handler: Any) -> None:
    """The life of a zygote, from where `server.main` has its imports."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(folder)
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        speaking = socket.socket(fileno=control)
        warden.guarded(speaking, lambda around: server.serve(speaking, handler, around))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
