"""Processes that need no time to import: `command` does what `python -m MODULE ARGUMENTS` does, in a fork of a warm one.

What it starts is a doorman, an interpreter without packages. It hands its standard streams to a server that has
imported the module; the server forks, and the child runs the module's `main`. The doorman passes SIGINT and SIGTERM on
and ends as the child does; whatever else ends it kills the child, whose streams end with it. The first command of a
test process starts the server, which ends with the test process.
"""

from __future__ import annotations

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

_REQUEST_BYTES = 1 << 17
_SERVERS: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}  # by module: where it listens; it ends with its stdin


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """What to start."""
    if module not in _SERVERS:
        _SERVERS[module] = _started(module)
    return (sys.executable, "-I", "-S", __file__, _SERVERS[module][0], *arguments)


def _started(module: str) -> tuple[str, subprocess.Popen[bytes]]:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("")  # a free name that is no file: a zero byte and a number
    listening.listen(64)  # who asks while the server imports waits
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.support.warm", module, str(listening.fileno())],
        pass_fds=[listening.fileno()], stdin=subprocess.PIPE, start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    name = listening.getsockname()[1:].decode()
    listening.close()
    return name, server


def _serve(module: str, listening: socket.socket) -> None:
    gc.disable()
    main = importlib.import_module(module).main
    gc.freeze()  # a child's garbage collector would write to, and so copy, every page loaded here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        connection, _ = listening.accept()
        data, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if data and os.fork() == 0:
            listening.close()
            from evo_kernel.processes import leave

            _become(json.loads(data), streams, connection)
            code = 1
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code or 0
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            connection.send(str(code).encode())
            leave(code)
        connection.close()
        for stream in streams:
            os.close(stream)


def _become(request: dict, streams: list[int], connection: socket.socket) -> None:
    """What the doorman is to whoever started it."""
    from evo_kernel.processes import end_with_owner

    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.argv[1:] = request["arguments"]
    end_with_owner(connection.fileno())
    connection.send(str(os.getpid()).encode())


def _ask(name: str, arguments: list[str]) -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect("\0" + name)
    request = {"arguments": arguments, "folder": os.getcwd(), "env": dict(os.environ)}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    for stream in (0, 1, 2):
        os.close(stream)
    child, code = int(server.recv(99)), 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    while said := server.recv(99):
        code = int(said)
    sys.exit(code)


if __name__ == "__main__" and sys.flags.isolated:
    _ask(sys.argv[1], sys.argv[2:])
elif __name__ == "__main__":
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
