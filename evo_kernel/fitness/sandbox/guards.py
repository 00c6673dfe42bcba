"""Confine untrusted code: namespaces, Landlock, seccomp and resource limits, as far as the kernel supports them.

Each guard is independent and returns whether it is active. `confine` joins the names of the active ones; the
environment records them. If namespaces, Landlock and seccomp are all missing, the judge refuses to run unless the user
passes `--unconfined`. If no tmpfs can be mounted, the zygote measures what a child has written (`quota`).

Sources: landlock(7), capset(2), getrlimit(2), proc_pid_oom_score_adj(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.fitness.sandbox import namespaces
from evo_kernel.fitness.sandbox.namespaces import Namespaces
from evo_kernel.fitness.sandbox.seccomp import seccomp

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 38, 24
_CAPABILITIES = 64  # more than there are: the kernel refuses the numbers that it does not know
_CAPABILITY_VERSION = 0x20080522


@dataclass(frozen=True)
class SandboxLimits:
    """Resource limits of one confined child."""

    deadline_s: float = 30.0
    memory_bytes: int = 8 << 30  # address space beyond what the zygote already maps
    disk_bytes: int = 256 << 20  # of all files that it writes
    answer_bytes: int = 32 << 20
    open_files: int = 256
    may_fork: bool = False  # only compilers start another process: ptxas


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends for any reason."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def set_limits(limits: SandboxLimits) -> None:
    """Limit address space, CPU time, file size and open files; be the OOM killer's first choice."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    seconds = max(1, int(limits.deadline_s * 2))
    mapped = _mapped_bytes()
    for kind, value in (
        (resource.RLIMIT_AS, mapped + limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, max(limits.disk_bytes, limits.answer_bytes)),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _lower(kind, value)
    if limits.may_fork:
        _lower(resource.RLIMIT_NPROC, 512)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _mapped_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _drop_capabilities() -> None:
    """Drop all capabilities, those inside the process's own namespaces included: they allow remounting."""
    for number in range(_CAPABILITIES):
        _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    _LIBC.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24))


# --- Landlock -------------------------------------------------------------------------------------------------------

_READ = 0b1101  # execute, read file, read directory
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}


def landlock_abi() -> int:
    """Highest Landlock ABI of this kernel; 0 when there is none."""
    return max(0, _LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1))


def readable_roots() -> tuple[str, ...]:
    """Paths that a Python child must read: the interpreter, installed packages, system libraries, a few devices."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"}
    roots |= {os.path.join(own, name) for name in ("evo_kernel", "operators", "populations")}
    roots |= {path for path in sys.path if path and os.path.abspath(path) != own}
    roots |= {"/dev/null", "/dev/zero", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo"}
    roots |= {"/sys/devices/system/cpu", "/etc/localtime"}
    if assembler := os.environ.get("TRITON_PTXAS_PATH"):  # set in the compiler's zygote: judge.assembler
        roots.add(os.path.dirname(assembler))
    return tuple(sorted(root for root in roots if os.path.exists(root)))


def landlock(writable: Sequence[str], readable: Sequence[str]) -> bool:
    """Deny access to all files except `readable` (read, execute) and `writable` (all). False without kernel support."""
    abi = landlock_abi()
    if abi == 0:
        return False
    rights = _FS_RIGHTS_BY_ABI.get(abi, (1 << 16) - 1)
    attribute = struct.pack("Q", rights)
    attribute += struct.pack("Q", 0b11) if abi >= 4 else b""  # TCP bind and connect
    attribute += struct.pack("Q", 0b11) if abi >= 6 else b""  # abstract Unix sockets and signals of processes outside
    ruleset = _LIBC.syscall(_LANDLOCK_CREATE, attribute, len(attribute), 0)
    if ruleset < 0:
        return False
    for paths, access in ((readable, _READ), (writable, rights)):
        for path in paths:
            _allow_path(ruleset, path, access)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    done = _LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return done


def _allow_path(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        access &= 0b100000000000111 | (1 << 15)  # execute, write, read, truncate, ioctl: the rights that files have
    rule = struct.pack("=Qi", access, fd)
    _LIBC.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
    os.close(fd)


def confine(folder: str, work: str, limits: SandboxLimits, spaces: Namespaces) -> str:
    """Confine the calling process: it may then read `folder` and write in `work` only.

    Returns the active guards, e.g. `namespaces+landlock+seccomp+rlimits`.
    """
    confinement = ["namespaces"] if spaces.active else []
    if spaces.mounts:
        namespaces.private_mounts(work, limits.disk_bytes)
    else:
        confinement.append("quota")
    set_limits(limits)
    _drop_capabilities()
    if landlock([work], [*readable_roots(), folder]):
        confinement.append("landlock")
    if seccomp(limits.may_fork, spaces.active):
        confinement.append("seccomp")
    return "+".join([*confinement, "rlimits"])
