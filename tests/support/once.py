"""What several processes of a test run need, and one of them makes, or each a part of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, *makes: Callable[[Path], None]) -> Path:
    """A folder that `makes` fill, each of them in one process of this run.

    A process that asks for it does what no other one has begun, then waits for the others, and tries again what failed.
    """
    shared = factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / name
    folder.mkdir(exist_ok=True)
    for waits in (fcntl.LOCK_NB, 0):
        for number, make in enumerate(makes):
            done = shared / f"{name}.{number}.done"
            with (shared / f"{name}.{number}.lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | waits)
                except BlockingIOError:
                    continue
                if not done.exists():
                    make(folder)
                    done.touch()
    return folder
