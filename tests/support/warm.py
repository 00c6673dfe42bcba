"""Processes that need no time to import: `command` does what `python -m MODULE ARGUMENTS` does, in a fork of a warm one.

What it starts is a doorman, an interpreter without packages. It hands its standard streams, and whatever else it was
passed, to a server that imports each module once; the server forks, and the child runs the module's `main`. The doorman
passes SIGINT and SIGTERM on and ends with the child's code; whatever else ends it kills the child, whose streams end
with it. The first command of a test process starts the server, which ends with the test process.

The child descends from the server, not from the doorman: a supervisor of the doorman does not end what it leaves.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback

_REQUEST_BYTES, _DESCRIPTORS = 1 << 17, 16
_SERVER: list[tuple[str, subprocess.Popen[bytes]]] = []  # one at most: where it listens; it ends with its stdin


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """What to start."""
    if not _SERVER:
        _SERVER.append(_started())
    return (sys.executable, "-I", "-S", __file__, _SERVER[0][0], module, *arguments)


def _started() -> tuple[str, subprocess.Popen[bytes]]:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("")  # a free name that is no file: a zero byte and a number
    listening.listen(64)  # who asks while the server imports waits
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.support.warm", str(listening.fileno())],
        pass_fds=[listening.fileno()], stdin=subprocess.PIPE, start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    name = listening.getsockname()[1:].decode()
    listening.close()
    return name, server


def _serve(listening: socket.socket) -> None:
    from evo_kernel.processes import leave

    gc.disable()
    gc.set_threshold(50_000)  # as the command line does
    children: dict[int, tuple[int, socket.socket]] = {}  # by a pidfd: who it is, and who is told how it ended
    while sys.stdin not in (ready := select.select([sys.stdin, listening, *children], [], [])[0]):
        for pidfd in children.keys() & set(ready):
            pid, connection = children.pop(pidfd)
            os.close(pidfd)
            with contextlib.suppress(OSError):  # the doorman was killed first
                connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            connection.close()
        if listening not in ready:
            continue
        connection, _ = listening.accept()
        data, passed, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _DESCRIPTORS)
        if not data:  # the doorman was killed before it asked
            connection.close()
            continue
        request = json.loads(data)
        main = importlib.import_module(request["arguments"].pop(0)).main
        gc.freeze()  # a child's garbage collector would write to, and so copy, every page loaded here
        if (pid := os.fork()) == 0:
            listening.close()
            for pidfd, (_, other) in children.items():
                os.close(pidfd)
                other.close()
            _become(request, passed, connection)
            code = 1
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code or 0
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            leave(code)
        children[os.pidfd_open(pid)] = pid, connection
        for descriptor in passed:
            os.close(descriptor)
    leave(0)


def _become(request: dict, passed: list[int], connection: socket.socket) -> None:
    """What the doorman is to whoever started it."""
    from evo_kernel.processes import end_with_owner

    gc.enable()
    os.setsid()
    above = max(request["descriptors"]) + 1  # out of the way of those that are to have these numbers
    held = [connection.detach(), *passed]
    owner, *moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in held]
    for descriptor in held:
        os.close(descriptor)
    for number, descriptor in zip(request["descriptors"], moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.argv[1:] = request["arguments"]
    end_with_owner(owner)
    os.write(owner, str(os.getpid()).encode())


def _ask(name: str, arguments: list[str]) -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect("\0" + name)
    with os.scandir("/proc/self/fd") as open_ones:  # it is open itself meanwhile, and not passed on
        passed = [int(one.name) for one in open_ones if os.get_inheritable(int(one.name))]
    request = {"arguments": arguments, "folder": os.getcwd(), "env": dict(os.environ), "descriptors": passed}
    socket.send_fds(server, [json.dumps(request).encode()], passed)
    for descriptor in passed:
        os.close(descriptor)
    child = int(server.recv(99))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    code = int(server.recv(99) or 1)
    sys.exit(code if code >= 0 else 128 - code)  # as a shell tells of a signal


if __name__ == "__main__" and sys.flags.isolated:
    _ask(sys.argv[1], sys.argv[2:])
elif __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
