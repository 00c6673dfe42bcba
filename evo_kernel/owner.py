"""Processes that serve one owner through a pipe end with it, whatever they are doing: an owner may be killed too."""

from __future__ import annotations

import os
import select
import signal
import threading


def end_with_owner(fd: int = 0) -> None:
    """Kill this process as soon as nobody holds the other end of `fd`, its requests, any more.

    Not PR_SET_PDEATHSIG: it fires when the thread ends that started this process.
    """
    # Daemon: a process that ends by itself does not wait for it.
    threading.Thread(target=_watch, args=(fd,), daemon=True, name="owner").start()


def _watch(fd: int) -> None:
    waiting = select.poll()
    waiting.register(fd, 0)  # no event but the end
    waiting.poll()
    os.kill(os.getpid(), signal.SIGKILL)
