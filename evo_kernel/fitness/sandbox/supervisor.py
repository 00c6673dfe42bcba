"""Supervisor process between a judge and its zygote: when either ends, it kills the zygote and all its descendants.

It imports little and runs no job. With namespaces, the zygote is process 1 of one and the kernel kills the others.
Without them, the supervisor kills all processes of its session, which confined children cannot leave (seccomp.py).
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

_ROUNDS, _PAUSE_S = 200, 0.01  # of killing a session: the next round finds what was forked during this one


def supervise(control: socket.socket, zygote: Callable[[Namespaces], None]) -> NoReturn:
    """Run `zygote` in a child until it ends, the judge's end of `control` closes, or SIGTERM arrives.

    The caller must be a session leader. The working folder belongs to the zygote and is used as a trial mount point.
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
        # The death signal fires when the forking thread ends; the parent has only one.
        guards.die_with_parent()
        zygote(namespaces.inside(os.getcwd()) if entered else Namespaces())
        status = 0
    except BaseException:  # noqa: BLE001  the log holds the traceback; the judge sees that the process ended
        traceback.print_exc()
    finally:
        os._exit(status)


def _end(pid: int, entered: bool) -> NoReturn:
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
