"""The process between a judge and its zygote: when either ends, it ends the zygote and everything that came of it.

It imports next to nothing and runs no job. With namespaces the kernel does the work: the zygote is process 1 of one,
and takes all others with it. Without, whatever is in the session of this process is killed, which confined children
cannot leave (see seccomp.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from evo_kernel.fitness.sandbox import guards, namespaces
from evo_kernel.fitness.sandbox.namespaces import Namespaces

_ROUNDS, _PAUSE_S = 200, 0.01  # of killing a session: what is being forked meanwhile is found in the next


def guarded(control: socket.socket, zygote: Callable[[Namespaces], None]) -> NoReturn:
    """Run `zygote` in a child until it ends, the judge's end of `control` closes, or SIGTERM. For session leaders.

    The working folder is the zygote's own: it is tried as a mount point.
    """
    entered = namespaces.enter()
    pid = os.fork()
    if pid == 0:
        _zygote(zygote, entered)
    signal.signal(signal.SIGTERM, lambda *_: _end(pid, entered))
    waiting = select.poll()
    waiting.register(control, select.POLLRDHUP)
    waiting.register(os.pidfd_open(pid), select.POLLIN)
    waiting.poll()
    _end(pid, entered)


def _zygote(zygote: Callable[[Namespaces], None], entered: bool) -> NoReturn:
    status = 1
    try:
        # The parent has one thread, so that this is its own end and not a thread's.
        guards.die_with_parent()
        zygote(namespaces.inside(os.getcwd()) if entered else Namespaces())
        status = 0
    except BaseException:  # noqa: BLE001  whatever it was, the log tells it; the judge sees that the process is gone
        traceback.print_exc()
    finally:
        os._exit(status)


def _end(pid: int, entered: bool) -> NoReturn:
    """Returns to nobody: when this process ends, nothing of the zygote is left."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)  # of process 1 of a namespace: when all others in it are gone
    for _ in range(0 if entered else _ROUNDS):
        left = list(_session(os.getpid()))
        for one in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if not left:
            break
        time.sleep(_PAUSE_S)
    os._exit(0)


def _session(leader: int) -> Iterator[int]:
    """Living processes of a session, its leader left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != leader:
            with contextlib.suppress(OSError):
                state, _parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state not in "ZX":
                    yield int(entry.name)
