"""One run of an agent's command: a deadline, an end for all that it started, and output that is kept but bounded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

KEEPER = Path(__file__).with_name("process_supervisor.py")
TERM_S = 3.0
"""Between SIGTERM and SIGKILL, at a deadline."""
LATE_S = 30.0
"""Beyond the deadline, before the keeper itself counts as lost."""
LOOK_S = 0.1
CHUNK = 1 << 16


@dataclass(frozen=True)
class CommandEnd:
    """How it ended."""

    how: str  # exited | deadline | stopped | lost
    code: int | None  # of the command; negative: the signal that ended it
    left: int  # processes that it had left behind, and that were ended
    log_tail: str
    wall_s: float


def run(
    command: str,
    folder: Path,
    log: Path,
    environment: Mapping[str, str],
    deadline_s: float,
    enough: Callable[[], bool],
    log_bytes: int,
) -> CommandEnd:
    """Run `command` in `folder` by /bin/sh until it ends, the deadline, or `enough`. Raises OSError."""
    began = time.monotonic()
    words = [sys.executable, "-I", str(KEEPER), str(deadline_s), str(TERM_S), str(folder), command]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environment),
        start_new_session=True,
    ) as keeper:  # fmt: skip
        assert keeper.stdin is not None and keeper.stdout is not None and keeper.stderr is not None
        output = _Log(log, log_bytes)
        reading = threading.Thread(target=output.take, args=(keeper.stdout,), daemon=True)
        said: list[bytes] = []
        hearing = threading.Thread(target=said.extend, args=(keeper.stderr,), daemon=True)
        reading.start()
        hearing.start()
        until = began + deadline_s + TERM_S + LATE_S
        while keeper.poll() is None and time.monotonic() < until and not enough():
            time.sleep(LOOK_S)
        keeper.stdin.close()  # it ends everything now
        try:
            keeper.wait(TERM_S + LATE_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
        hearing.join(LATE_S)
        found = _heard(said)
        reading.join(LATE_S)
        tail = output.close()
    return CommandEnd(found["ended"], found["code"], found["left"], tail, time.monotonic() - began)


def _heard(said: list[bytes]) -> dict[str, Any]:
    """What the keeper found. Where it was killed, by the agent or by the machine, the command's group is ended here."""
    found: dict[str, Any] = {"ended": "lost", "code": None, "left": 0}
    with contextlib.suppress(ValueError):
        for line in said:
            found |= json.loads(line)
    if found["ended"] == "lost" and "pid" in found:
        with contextlib.suppress(OSError):
            os.killpg(found["pid"], signal.SIGKILL)
    return found


def environment_for(folder: Path, pass_env: Mapping[str, str]) -> dict[str, str]:
    """A clean one: what is needed to find programs, a home and a scratch folder of its own, what was asked for."""
    home, scratch = folder / ".home", folder / ".tmp"
    for place in (home, scratch):
        place.mkdir(mode=0o700, exist_ok=True)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "EVO_KERNEL_WORKSPACE": str(folder),
        **pass_env,
    }


class _Log:
    """The first half and the last half of what fits. What a full disk does not take is lost; the agent works on."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._half = path, max(limit // 2, 1)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by close()
        self._head, self._seen = self._half, 0
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._lock = threading.Lock()

    def take(self, stream: IO[bytes]) -> None:
        while chunk := os.read(stream.fileno(), CHUNK):
            with self._lock:
                if self._file.closed:
                    return
                self._seen += len(chunk)
                first, rest = chunk[: self._head], chunk[self._head :]
                self._head -= len(first)
                with contextlib.suppress(OSError):
                    self._file.write(first)
                if rest:
                    self._tail.append(rest)
                    self._kept += len(rest)
                    while self._kept - len(self._tail[0]) >= self._half:
                        self._kept -= len(self._tail.popleft())

    def close(self) -> str:
        """The last words, to tell somebody."""
        with self._lock:
            tail = b"".join(self._tail)[-self._half :]
            left_out = self._seen - (self._half - self._head) - len(tail)
            with contextlib.suppress(OSError):
                if left_out > 0:
                    self._file.write(f"\n[… {left_out} bytes left out …]\n".encode())
                self._file.write(tail)
            self._file.close()
        with open(self._path, "rb") as file:
            file.seek(max(os.path.getsize(self._path) - 600, 0))
            return file.read(600).decode("utf-8", "replace").strip()
