"""The walls around untrusted code: namespaces, Landlock, seccomp and resource limits, as far as the kernel has them.

Each guard is independent and says whether it took effect; `describe` joins those that did, for the environment row.
Without namespaces or Landlock, seccomp and the limits still stand; with none of the three there is no confinement,
and the judge refuses unless the user says `--unconfined`.

Sources: landlock(7), seccomp(2), user_namespaces(7), pid_namespaces(7), bpf_asm classic BPF encoding.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_SET_DUMPABLE = 1, 38, 22, 4
_CLONE_THREAD = 0x00010000


@dataclass(frozen=True)
class Limits:
    """What one confined child may use."""

    deadline_s: float = 30.0
    memory_bytes: int = 8 << 30  # address space beyond what the zygote already maps
    file_bytes: int = 256 << 20
    open_files: int = 256
    may_fork: bool = False  # compilers start ptxas; nobody else needs a process


def enter_namespaces() -> bool:
    """Leave the network, the host's process ids and IPC; the next fork is process 1 of the new id space.

    Returns False where the kernel or a container forbids user namespaces.
    """
    uid, gid = os.getuid(), os.getgid()
    if _LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC) != 0:
        return False
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    except OSError:
        return True  # in the namespaces all the same, as nobody
    return True


def cap_processes(count: int) -> None:
    """Bound the process ids of this id space where the kernel can (Linux 6.14): ends fork bombs run as root."""
    try:
        _write("/proc/sys/kernel/pid_max", str(max(301, count)))
    except OSError:
        return


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, however it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def set_limits(limits: Limits) -> None:
    """Resource limits: address space, CPU time, file size, open files, no core dumps."""
    seconds = max(1, int(limits.deadline_s * 2))
    mapped = _mapped_bytes()
    for kind, value in (
        (resource.RLIMIT_AS, mapped + limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
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


# --- Landlock -------------------------------------------------------------------------------------------------------

_READ = 0b1101  # execute, read file, read directory
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}


def landlock_abi() -> int:
    """Highest Landlock ABI of this kernel; 0 when there is none."""
    return max(0, _LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1))


def readable_roots() -> tuple[str, ...]:
    """What a Python child has to read: the interpreter, installed packages, system libraries, a few devices."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"}
    roots |= {os.path.join(own, name) for name in ("evo_kernel", "operators", "populations")}
    roots |= {path for path in sys.path if path and os.path.abspath(path) != own}
    roots |= {"/dev/null", "/dev/zero", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo"}
    roots |= {"/sys/devices/system/cpu", "/etc/localtime"}
    if assembler := os.environ.get("TRITON_PTXAS_PATH"):  # of the compiler's zygote: what judge.assembler names
        roots.add(os.path.dirname(assembler))
    return tuple(sorted(root for root in roots if os.path.exists(root)))


def landlock(writable: Sequence[str], readable: Sequence[str]) -> bool:
    """Deny every file but `readable` (read, execute) and `writable` (all). Returns False without kernel support."""
    abi = landlock_abi()
    if abi == 0:
        return False
    rights = _FS_RIGHTS_BY_ABI.get(abi, (1 << 16) - 1)
    attribute = struct.pack("Q", rights) if abi < 4 else struct.pack("QQ", rights, 0b11)  # TCP bind and connect
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
        access &= 0b100000000000111 | (1 << 15)  # execute, write, read, truncate, ioctl: what applies to files
    rule = struct.pack("=Qi", access, fd)
    _LIBC.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
    os.close(fd)


# --- seccomp --------------------------------------------------------------------------------------------------------

_SYSCALLS = {  # (x86_64, aarch64)
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "mount": (165, 40), "umount2": (166, 39),
    "setns": (308, 268), "unshare": (272, 97), "bpf": (321, 280), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "init_module": (175, 105), "finit_module": (313, 273), "reboot": (169, 142), "kexec_load": (246, 104),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "open_by_handle_at": (304, 265),
}  # fmt: skip
_FORKING = {"fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281)}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000


def _program(column: int, arch: int, may_fork: bool) -> list[tuple[int, int, int, int]]:
    """Classic BPF: kill foreign architectures, deny the listed calls, and without `may_fork` any new process."""
    denied = [numbers[column] for numbers in _SYSCALLS.values()]
    if not may_fork:
        denied += [numbers[column] for numbers in _FORKING.values() if numbers[column] is not None]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number in denied:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    if not may_fork:
        # clone3 hides its flags behind a pointer: answer "no such call", so that libc falls back to clone.
        program += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, 0x00050000 | errno.ENOSYS)]
        program += [(_EQUAL, 0, 3, _CLONE[column]), (_LOAD, 0, 0, 16)]
        program += [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _DENY)]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def seccomp(may_fork: bool) -> bool:
    """Deny sockets, tracing and, without `may_fork`, new processes. Returns False where it cannot be had."""
    known = _ARCHES.get(platform.machine())
    if known is None:
        return False
    code = b"".join(struct.pack("HBBI", *line) for line in _program(*known, may_fork))
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(text))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(program, len(program)), 0, 0) == 0


def confine(scratch: str, limits: Limits, in_namespaces: bool) -> str:
    """Put all walls up around the calling process; returns which stand, e.g. `namespaces+landlock+seccomp+rlimits`."""
    set_limits(limits)
    walls = ["namespaces"] if in_namespaces else []
    if landlock([scratch], readable_roots()):
        walls.append("landlock")
    if seccomp(limits.may_fork):
        walls.append("seccomp")
    return "+".join([*walls, "rlimits"])


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
