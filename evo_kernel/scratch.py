"""Temporary folders that are removed when their process ends, even if it is killed.

Each folder holds a file that its owner keeps locked; the kernel releases the lock when the owner ends. The next process
that makes such a folder removes those whose lock is free.
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
"""A folder changed within so many seconds is not removed: its owner may be about to lock it."""
_swept = threading.Event()


class Scratch:
    """A temporary folder of this process; use it as a context manager, or call `close`. Thread-safe."""

    def __init__(self, kind: str = "") -> None:
        """`kind`: a part of its name. A process's first folder also removes those of ended processes."""
        if not _swept.is_set():
            _swept.set()
            sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-" if kind else PREFIX))
        # Closed on exec: a child that outlives us must not keep the folder.
        self._owner = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):  # if the file system has no locks, nobody else can take one either
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Remove the folder and its content. Idempotent."""
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
    """Remove a folder and its content as far as possible, however deeply nested."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


def sweep(young_s: float = YOUNG_S) -> int:
    """Remove the folders of this user's ended processes; their number."""
    removed = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            with contextlib.suppress(OSError):
                is_ours = entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)
                if is_ours and _abandoned(entry, time.time() - young_s):
                    removed += 1
    return removed


def _abandoned(entry: os.DirEntry[str], before: float) -> bool:
    """Remove a folder whose owner has ended. Raises OSError if it has no owner file or the owner is alive."""
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.geteuid() or status.st_mtime > before:
        return False
    owner = os.open(Path(entry.path, OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its owner is alive
        remove(Path(entry.path))
    finally:
        os.close(owner)
    return True
