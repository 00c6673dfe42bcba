"""Folders for what nobody is to keep: made in the system's folder for such, owned by this process, gone with it.

A process that is killed cannot clear up. So each folder holds a file that its maker keeps locked for as long as it
lives (the kernel lets go of the lock whatever ends it, and no process number is to be guessed from), and whoever makes
the next one removes those whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

PREFIX = "evo-kernel-"
OWNER = ".owner"
YOUNG_S = 60.0
"""A folder that was touched within so many seconds is left alone: its maker may be about to lock it."""
_swept = threading.Event()


class Scratch:
    """A folder of this process's own; use it as a context manager, or call `close`. Thread-safe."""

    def __init__(self, kind: str = "") -> None:
        """`kind`: for people who look at the folder. The first one of a process removes what dead ones left behind."""
        if not _swept.is_set():
            _swept.set()
            sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-" if kind else PREFIX))
        # Closed on exec: a child that outlives us must not keep the folder.
        self._owner = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):  # where there are no locks nobody else can take it either
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Remove the folder and all that is in it. Idempotent."""
        with self._lock:
            remove(self.path)
            if self._owner >= 0:
                os.close(self._owner)
                self._owner = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exc: object) -> None:
        self.close()


def remove(folder: Path) -> None:
    """Remove a folder and all that is in it, as far as that goes, however deep somebody has nested it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


def sweep(below: Path | None = None, young_s: float = YOUNG_S) -> int:
    """Remove what dead processes of this user left in `below` (the system's folder for such); how many there were."""
    removed = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(below or tempfile.gettempdir()):
            with contextlib.suppress(OSError):
                mine = entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)
                if mine and _abandoned(entry, time.time() - young_s):
                    removed += 1
    return removed


def _abandoned(entry: os.DirEntry[str], before: float) -> bool:
    """Remove a folder whose maker is dead. Raises OSError for one that has none, or is somebody's."""
    found = entry.stat(follow_symlinks=False)
    if found.st_uid != os.geteuid() or found.st_mtime > before:
        return False
    owner = os.open(Path(entry.path, OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its maker lives
        remove(Path(entry.path))
    finally:
        os.close(owner)
    return True
