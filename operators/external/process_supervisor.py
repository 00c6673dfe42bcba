"""A small process that stands over an agent's command and ends with everything that it has started.

Run as `python -I process_supervisor.py DEADLINE_S GRACE_S FOLDER COMMAND`. It adopts whatever its descendants leave
behind (PR_SET_CHILD_SUBREAPER), so that a second fork or a session of its own hides nothing. It ends them all when the
command ends, at the deadline, and when its standard input ends: whoever started it was killed, or says so. What it
found goes to standard error as lines of JSON: {"pid": N} at the start, and at the end
{"ended": "exited" | "deadline" | "stopped", "code": N, "left": N}.

Standard library only; imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
LOOK_S = 0.05
_told: list[int] = []  # signals that told us to end
SWEEPS = 200  # rounds of killing, at most: a fork bomb is stopped before it is killed


def main() -> None:
    deadline_s, grace_s, folder, command = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: _told.append(number))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # of a terminal: our starter hears it too, and decides
    own, null = os.dup(2), os.open(os.devnull, os.O_RDWR)

    def begin() -> None:  # before the command can do anything, killing us included
        os.write(own, json.dumps({"pid": os.getpid()}).encode() + b"\n")
        _modest()

    child = subprocess.Popen(
        ["/bin/sh", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=begin,  # noqa: PLW1509 - there is one thread here
    )  # fmt: skip
    os.dup2(null, 1)  # the agent's output ends with the agent
    ended = _watch(child, time.monotonic() + deadline_s)
    if ended != "exited":
        _ask(child, grace_s)
    left = _sweep()
    found = {"ended": ended, "code": child.returncode, "left": left}
    os.write(own, json.dumps(found).encode() + b"\n")


def _modest() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch(child: subprocess.Popen[bytes], deadline: float) -> str:
    """Until the command ends, or must."""
    while True:
        if child.poll() is not None:
            return "exited"
        _reap(child)
        if time.monotonic() >= deadline:
            return "deadline"
        readable, _, _ = select.select([0], [], [], LOOK_S)
        if _told or (readable and not os.read(0, 1)):
            return "stopped"


def _ask(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the command's group, and a moment to end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < until:
        _reap(child)
        time.sleep(LOOK_S)


def _sweep() -> int:
    """Kill every descendant; how many there were."""
    seen: set[int] = set()
    for _ in range(SWEEPS):
        found = _descendants()
        seen |= found
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: what is stopped forks no more
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return len(seen)
        time.sleep(0.01)
    return len(seen)


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, edge = set(), {os.getpid()}
    while edge:
        edge = {pid for pid, parent in parents.items() if parent in edge} - found
        found |= edge
    return found


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Orphans that were handed to us; never the command itself, whose status its object collects."""
    with contextlib.suppress(OSError):
        while True:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is None or info.si_pid in (0, child.pid):
                return
            os.waitpid(info.si_pid, os.WNOHANG)


if __name__ == "__main__":
    main()
