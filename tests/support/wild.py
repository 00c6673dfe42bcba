"""A zygote whose children misbehave as they are asked to. `python -P -m tests.support.wild KIND CONTROL_FD`.

KIND: `namespaces` (no system call is denied, so that namespaces alone have to hold) or `bare` (no namespaces at all).
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from evo_kernel.fitness.sandbox import guards, namespaces, preloaded, zygote_process
from evo_kernel.fitness.sandbox.guards import SandboxLimits
from evo_kernel.fitness.sandbox.zygote import Zygote

KINDS = ("namespaces", "bare")
_PRCTL = ctypes.CDLL(None).prctl


def warm_up() -> None:
    """Nothing is slow here."""


def handle(request: dict[str, Any], folder: str) -> dict[str, Any]:
    return {"said": _DEEDS[request["do"]](Path(folder)), "files": sorted(os.listdir(folder))}


def _hide(folder: Path) -> str:
    """Leave a grandchild in a session of its own, deaf to signals, that nobody's end ends; then sleep too."""
    for _ in range(2):
        if os.fork() == 0:
            for option, value in ((1, 0), (36, 1), (4, 0)):  # PDEATHSIG, CHILD_SUBREAPER, DUMPABLE
                _PRCTL(option, value, 0, 0, 0)
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            for leave in (os.setsid, lambda: os.setpgid(0, 0)):
                try:
                    leave()
                except OSError:
                    continue
    (folder / f"hidden{os.getpid()}").touch()
    time.sleep(600)
    return ""


def _hide_and_go(folder: Path) -> str:
    if os.fork() == 0:
        _hide(folder)
    time.sleep(0.3)
    return "gone"


def _fill_one(folder: Path) -> str:
    with (folder / "large").open("wb") as file:
        return _fill(lambda: file.write(bytes(1 << 20)), 10 << 10)


def _fill_many(folder: Path) -> str:
    return _fill(lambda: (folder / f"file{time.monotonic_ns()}").write_bytes(bytes(1 << 20)), 10 << 10)


def _fill_deleted(folder: Path) -> str:
    held = []

    def one() -> None:
        path = folder / "hidden"
        held.append(path.open("wb", buffering=0))
        path.unlink()
        for _ in range(16):
            held[-1].write(bytes(1 << 20))

    return _fill(one, 640)


def _many_files(folder: Path) -> str:
    return _fill(lambda: os.close(os.open(folder / str(time.monotonic_ns()), os.O_CREAT)), 1 << 20)


def _deep(folder: Path) -> str:
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(folder)
    return "deep"


def _print(folder: Path) -> str:
    for _ in range(10 << 10):
        os.write(1, bytes(1 << 20))
        os.write(2, bytes(1 << 20))
    return "printed"


def _elsewhere(folder: Path) -> str:
    places = (Path("/dev/shm"), Path("/tmp"), folder.parent)
    return _tried(lambda place: (place / "evo-kernel-wild").write_bytes(b"x"), places)


def _calls(folder: Path) -> str:
    """Which of the calls that a child has no business with it can make."""
    libc = ctypes.CDLL(None, use_errno=True)
    calls = {
        "setsid": libc.setsid, "pdeathsig": lambda: libc.prctl(1, 0, 0, 0, 0),
        "subreaper": lambda: libc.prctl(36, 1, 0, 0, 0), "memfd": lambda: libc.memfd_create(b"m", 0),
        "shmget": lambda: libc.shmget(0, 4096, 0o1600), "mlock": lambda: libc.mlockall(1),
        "kill": lambda: libc.kill(os.getppid() or 2, 0), "personality": lambda: libc.personality(0xFFFFFFFF),
        "unshare": lambda: libc.unshare(0x10000000), "clone": lambda: libc.syscall(56, 0x10000011, 0, 0, 0, 0),
        "x32": lambda: libc.syscall(0x40000000 | 41, 1, 1, 0), "prlimit": lambda: libc.prlimit(2, 7, None, None),
        "setuid": lambda: libc.setresuid(1, 1, 1),
    }  # fmt: skip
    return " ".join(name for name, call in calls.items() if call() >= 0)


def _processes(folder: Path) -> str:
    return " ".join(name for name in os.listdir("/proc") if name.isdecimal())


def _kill_group(folder: Path) -> str:
    os.kill(0, signal.SIGKILL)
    return "alive"


def _own(folder: Path) -> str:
    """What it must be able to do."""
    signal.raise_signal(signal.SIGUSR1) if signal.signal(signal.SIGUSR1, signal.SIG_IGN) else None
    os.kill(os.getpid(), 0)
    return (folder / "given.bin").read_text()


def _pages(folder: Path) -> str:
    """Whether new memory may come in huge pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("THP_enabled")).split()[1]


def _fill(write: Callable[[], object], times: int) -> str:
    for count in range(times):
        try:
            write()
        except OSError as error:
            return f"{os.strerror(error.errno or 0)} after {count}"
    return "no end"


def _tried(what: Callable[[Path], object], places: tuple[Path, ...]) -> str:
    done = []
    for place in places:
        try:
            what(place)
            done.append(str(place))
        except OSError:
            continue
    return " ".join(done)


_DEEDS: dict[str, Callable[[Path], str]] = {
    "hide": _hide, "hide and go": _hide_and_go, "fill one": _fill_one, "fill many": _fill_many,
    "fill deleted": _fill_deleted, "many files": _many_files, "deep": _deep, "print": _print,
    "elsewhere": _elsewhere, "kill group": _kill_group, "processes": _processes, "calls": _calls, "own": _own,
    "pages": _pages, "long answer": lambda folder: "x" * (256 << 20),
    "endless answer": lambda folder: "x" * (1 << 40), "nothing": lambda folder: "",
}  # fmt: skip


class Wild(Zygote):
    """The judge's side of it."""

    def __init__(self, kind: str, mark: str = "") -> None:
        super().__init__(kind, {"EVO_KERNEL_MARK": mark})
        self.mark = mark

    def spawn(self, ours: socket.socket, theirs: socket.socket, log: BinaryIO) -> subprocess.Popen[bytes]:
        """The usual server, with children that misbehave."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.wild", self.role, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root,
            env=preloaded.environment() | self.env, start_new_session=True,
        )  # fmt: skip

    def do(self, what: str, limits: SandboxLimits | None = None) -> Any:
        return self.run({"do": what}, limits or SandboxLimits(deadline_s=20.0), {"given.bin": b"given"})


def judge(kind: str, mark: str) -> None:
    """A judge whose child has hidden processes: tells its supervisor's number, and closes when its input ends."""
    zygote = Wild(kind, mark)
    limits = SandboxLimits(deadline_s=100.0, may_fork=True)
    threading.Thread(target=zygote.do, args=("hide", limits), daemon=True).start()
    while len(marked(mark)) < 6:  # supervisor, zygote, child and three that it left
        time.sleep(0.02)
    print(zygote.pid, flush=True)
    sys.stdin.read()
    zygote.close()


def marked(mark: str) -> list[int]:
    """Living processes that come of a zygote with this mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"EVO_KERNEL_MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def main() -> None:
    kind = sys.argv[1]
    if kind == "namespaces":
        guards.seccomp = lambda *_: True  # type: ignore[assignment]
    else:
        namespaces.enter = lambda: False
    zygote_process.ROLES[kind] = ("tests.support.wild", ("tests.support.wild",))
    control = socket.socket(fileno=int(sys.argv[2]))
    zygote_process.load(kind)
    zygote_process.supervise(
        control, lambda spaces: zygote_process.serve(control, zygote_process.warm_up(kind), spaces)
    )


if __name__ == "__main__":
    main()
