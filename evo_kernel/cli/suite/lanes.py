"""Lanes of a suite: searches side by side, each with a GPU and cores of its own, and the processes that do the work."""

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from evo_kernel.errors import UserError
from evo_kernel.fitness.gpus import usable_cores

GPU_NEXT = "gpu next"
"""What a search that loads is told when it has the GPU next."""
KEPT = 1 << 20
"""Bytes of what a process says that are kept, the last ones."""
INTERRUPTED_S = 60.0
"""What is under way when a suite is interrupted may take so long to end; then it is killed, and resumed next time."""


@dataclass(frozen=True)
class Lane:
    """One of several searches side by side."""

    gpu: str = ""  # as CUDA_VISIBLE_DEVICES names it; empty: whatever the machine has
    cores: tuple[int, ...] = ()  # empty: all

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        named = {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {}
        return dict(os.environ) | named | dict(more)


def lanes_of(gpus: str | None, device: str) -> list[Lane]:
    """As many as `--gpus` says, the machine's cores divided among them. Raises UserError."""
    if gpus is None:
        return [Lane()]
    import torch

    from evo_kernel.fitness.runners.choose import gpu_count

    present = torch.cuda.device_count() if device != "cpu" and torch.version.cuda is not None else 0
    if device == "cuda" and not present:
        raise UserError("no CUDA GPU is visible here. Use --device cpu; `evo-kernel doctor` says more.")
    usable = usable_cores()
    if present:
        count = gpu_count(gpus, present)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        named = (visible.split(",") if visible else [str(number) for number in range(present)])[:count]
    else:  # a search keeps about two cores busy
        count = max(1, usable // 2) if gpus == "all" else int(gpus) if gpus.isdecimal() else 0
        if not 1 <= count <= usable:
            raise UserError(f"--gpus {gpus}: without a GPU, give a number from 1 to {usable} (cores), or all")
        named = [""] * count
    cores, each = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [], usable // count
    return [
        Lane(name, tuple(cores[number * len(cores) // count :][: max(1, each)])) for number, name in enumerate(named)
    ]


class Halt:
    """How far a suite is to be stopped: not, after what is under way, or at once. Set by a signal's handler."""

    def __init__(self) -> None:
        self.asked = threading.Event()  # start nothing new, and end what is under way as its ^C does
        self.now = threading.Event()  # kill


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str
    late: bool = False  # asked to end for its time was over, or killed
    after_s: float = 0.0


class Child:
    """A process that is loading, and does one thing when it is ordered to. Its group dies with it, and it with us."""

    def __init__(self, lane: Lane, words: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-P", "-m", "evo_kernel.cli.suite.child", ",".join(map(str, lane.cores)), *words]
        self.words = tuple(words)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env=lane.environment(more or {}),
        )  # fmt: skip
        self._out, self._err = (_Tail(stream) for stream in (self._process.stdout, self._process.stderr))

    def tell(self, what: Any) -> None:
        """One line for it to read."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed already, and says why
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    def order(
        self,
        what: Any,
        deadline_s: float,
        halt: Halt,
        polite_s: float | None = None,
        interrupted_s: float = INTERRUPTED_S,
    ) -> Ended:
        """Have it done; wait for the end. At `polite_s` it is asked to end as by ^C, at the deadline it is killed."""
        self.tell(what)
        began = time.monotonic()
        end, polite = began + deadline_s, began + (deadline_s if polite_s is None else polite_s)
        told = halted = False
        while not self._exited():
            now = time.monotonic()
            if halt.asked.is_set() and not halted:
                halted, end, polite = True, min(end, now + interrupted_s), now
            if not told and now >= polite:
                self._process.send_signal(signal.SIGINT)
                told = True
            if halt.now.is_set() or now >= end:
                break
            time.sleep(0.05)
        self.close()
        took = time.monotonic() - began
        late = not halted and (told or took >= deadline_s)
        return Ended(self._process.returncode, self._out.text(), self._err.text(), late, took)

    def close(self) -> None:
        """Kill it and all that it started, if there is anything left of them."""
        kill_tree(self._process.pid)
        self._process.wait()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _exited(self) -> bool:
        """Whether it has ended; it is not reaped yet, so that its group's number is nobody else's."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_tree(root: int) -> None:
    """Kill what a process has started, in whatever session, then its group and itself.

    A judge's process ends by itself when its search does, but not while it waits for a kernel: the next search would
    share the GPU with it.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    for pid in reversed(found[1:]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)


class _Tail:
    """Reads a stream to its end in a thread, and keeps the last of it."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._kept: deque[bytes] = deque()
        self._bytes = 0
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := os.read(stream.fileno(), 1 << 16):
                self._kept.append(chunk)
                self._bytes += len(chunk)
                while self._bytes - len(self._kept[0]) >= KEPT:
                    self._bytes -= len(self._kept.popleft())

    def text(self) -> str:
        self._thread.join(5.0)  # a process that left the group may hold the pipe
        return b"".join(list(self._kept)).decode(errors="replace")
