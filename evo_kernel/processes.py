"""Child processes: bounded in time and output, ended with all that they started, and with whoever owns them.

`run` starts this file as a supervisor between the caller and a command. It adopts whatever the command's processes
leave behind (PR_SET_CHILD_SUBREAPER), so that a second fork or a session of its own hides nothing. It ends them all
when the command ends, and when its standard input ends: its caller says so, or was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

LATE_S = 30.0
"""A supervisor that is told to end may take so long, beyond the command's grace."""
_LOOK_S = 0.05
_CHUNK = 1 << 16
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    how: str  # exited | deadline | stopped | lost: its supervisor was killed
    code: int  # its exit code, as a shell tells it: 128 and more are signals


def run(
    command: Sequence[str],
    deadline_s: float,
    output: Callable[[bytes], None],
    env: Mapping[str, str],
    cwd: Path | None = None,
    enough: Callable[[], bool] = lambda: False,
    grace_s: float = 0.0,
    passed: int | None = None,
) -> Ended:
    """Run a command under a supervisor until it ends, the deadline, or `enough`; nothing that it starts outlives that.

    `output` takes what it prints on either stream, in a thread. `grace_s` lie between SIGTERM and SIGKILL. `passed`: a
    descriptor for the command, closed here. A command that cannot be started says so in its output and ends with 127.
    Raises OSError.
    """
    until, how = time.monotonic() + deadline_s, "exited"
    try:
        started = subprocess.Popen(
            [sys.executable, "-I", __file__, str(grace_s), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=dict(env), cwd=cwd, start_new_session=True, pass_fds=() if passed is None else (passed,),
        )  # fmt: skip
    finally:
        if passed is not None:
            os.close(passed)
    with started as supervisor:
        assert supervisor.stdin is not None and supervisor.stdout is not None
        reading = threading.Thread(target=_read, args=(supervisor.stdout, output), daemon=True)
        reading.start()
        while how == "exited" and _waited(supervisor, _LOOK_S) is None:
            how = "stopped" if enough() else "deadline" if time.monotonic() >= until else how
        supervisor.stdin.close()
        code = _waited(supervisor, grace_s + LATE_S)
        if code is None or code < 0:  # killed, by the command or by the machine; or it hangs
            how = "lost" if how == "exited" else how
            with contextlib.suppress(ProcessLookupError):
                os.killpg(supervisor.pid, signal.SIGKILL)
        reading.join(LATE_S)
    return Ended(how, supervisor.returncode)


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def _read(stream: IO[bytes], output: Callable[[bytes], None]) -> None:
    with contextlib.suppress(ValueError):  # closed meanwhile: somebody survived a lost supervisor, and prints
        while chunk := os.read(stream.fileno(), _CHUNK):
            output(chunk)


class BoundedOutput:
    """Writes the first half and, at the end, the last half of what fits into a file. What a full disk does not take is
    lost without a word: whoever prints goes on."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._half = file, max(limit // 2, 1)
        self._room, self._tail = self._half, bytearray()
        self.seen = 0  # bytes

    def take(self, chunk: bytes) -> None:
        self.seen += len(chunk)
        first, rest = chunk[: self._room], chunk[self._room :]
        self._room -= len(first)
        with contextlib.suppress(OSError):
            self._file.write(first)
        self._tail += rest
        del self._tail[: -self._half]

    def finish(self) -> None:
        left_out = self.seen - (self._half - self._room) - len(self._tail)
        with contextlib.suppress(OSError):
            if left_out:
                self._file.write(f"\n[… {left_out} bytes left out …]\n".encode())
            self._file.write(self._tail)


# ---- whole trees ----------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """What a descendant of this process leaves behind becomes this process's child, and not init's."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kill all that this process has started, in whatever session, the youngest first."""
    import psutil  # here: what runs beside the clock, or behind walls, imports this module and ends no trees

    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: what is stopped forks no more
        for one in reversed(psutil.Process().children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                one.send_signal(number)


def end_descendants(within_s: float) -> None:
    """Kill and reap all that this process has started or adopted. What the driver holds takes a while to end."""
    until = time.monotonic() + within_s
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < until:
            kill_descendants()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)


# ---- processes that serve an owner ----------------------------------------------------------------------------------


def end_with_owner(fd: int = 0) -> None:
    """Kill this process as soon as nobody holds the other end of `fd`, its requests, any more, whatever it is doing.

    Not PR_SET_PDEATHSIG: it fires when the thread ends that started this process.
    """
    # Daemon: a process that ends by itself does not wait for it.
    threading.Thread(target=_watch_owner, args=(fd,), daemon=True, name="owner").start()


def _watch_owner(fd: int) -> None:
    waiting = select.poll()
    waiting.register(fd, 0)  # no event but the end
    waiting.poll()
    os.kill(os.getpid(), signal.SIGKILL)


_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # mallopt(3)


def keep_memory() -> None:
    """From now on freed memory stays with this process. Of threads too: those that have none of their own yet.

    For processes that soon end: the C library maps every large block anew and gives it back at once, and to have its
    pages zeroed again and again costs a CPU more than most of what is computed on them.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        for name, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1)):
            library.mallopt(name, value)


def leave(code: int) -> NoReturn:
    """End this process as the interpreter does, but take no modules apart: PyTorch's take half a second of a core."""
    sys.stdout.flush()
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class CutOff(SystemExit):
    """The end of a process that has given up threads which still run: `leave_at_once` ends it."""


def leave_at_once(code: int) -> NoReturn:
    """End this process and wait for no thread. Beside threads that run, torch aborts when the interpreter unwinds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# ---- the supervisor -------------------------------------------------------------------------------------------------


def _supervise(grace_s: float, command: Sequence[str]) -> int:
    """The exit code of a command, once all that it has started is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # for its group, which is ours too
        signal.signal(number, lambda *_: None)  # a handler of ours ends with exec; what is ignored would stay so
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    adopt_orphans()
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
            close_fds=False,  # what was passed is for the command; all else is closed by exec
        )  # fmt: skip
    except OSError as error:
        os.write(1, f"{command[0]} does not start: {error.strerror}\n".encode())
        return 127
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the command's output ends with the command
    code = _code_of(child.pid, lambda: bool(select.select([0], [], [], 0.0)[0]))
    if code is None:
        os.killpg(0, signal.SIGTERM)
        until = time.monotonic() + grace_s
        code = _code_of(child.pid, lambda: time.monotonic() >= until)
    end_descendants(LATE_S)
    return 128 + signal.SIGKILL if code is None else code if code >= 0 else 128 - code


def _code_of(pid: int, over: Callable[[], bool]) -> int | None:
    """The exit status of a child, orphans reaped on the way; None where it is `over` before."""
    while True:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == pid:
                return os.waitstatus_to_exitcode(found[1])
        if over():
            return None
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    sys.exit(_supervise(float(sys.argv[1]), sys.argv[2:]))
