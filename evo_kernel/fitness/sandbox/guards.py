"""Confine untrusted code: namespaces, Landlock, seccomp and resource limits, as far as the kernel supports them.

Each guard is independent and returns whether it is active. `confine` joins the names of the active ones; the
environment records them. If namespaces, Landlock and seccomp are all missing, the judge refuses to run unless the user
passes `--unconfined`. If no tmpfs can be mounted, the zygote measures what a child has written (`quota`).

The seccomp filter (classic BPF) denies system calls and cannot be removed once installed: sockets; tracing and reading
other processes; namespaces and mounts; changing identity; leaving the session or the death signal; storage that no
limit counts (memfd, System V and POSIX queues and shared memory, locked pages); the kernel's large interfaces (bpf,
io_uring, perf, userfaultfd, keys); and, without `may_fork`, new processes.

Sources: landlock(7), capset(2), getrlimit(2), proc_pid_oom_score_adj(5), seccomp(2), bpf_asm classic BPF encoding, the
system call tables of x86_64 and aarch64.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from evo_kernel.fitness.sandbox import namespaces
from evo_kernel.fitness.sandbox.namespaces import Namespaces

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_SET_THP_DISABLE = 1, 38, 24, 41
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


def take_small_pages() -> None:
    """Take new memory in small pages; what is in huge ones stays there. A virtual machine may have returned its free
    huge pages to its host: each then costs milliseconds, and a child hardly uses one twice."""
    _LIBC.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


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


@cache
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
    if seccomp(limits.may_fork, 0 if spaces.active else os.getpid()):
        confinement.append("seccomp")
    return "+".join([*confinement, "rlimits"])


def prepare() -> None:
    """Do in a zygote, once, what `confine` would do in each child, for 2 ms of CPU time."""
    readable_roots()
    codecs.lookup("ascii")
    for may_fork in (False, True):
        _filter(may_fork, 0)


_PR_SET_SECCOMP = 22
_Line = tuple[int, int, int, int]  # code, jump if true, jump if false, operand

_DENIED: dict[str, tuple[int | None, int | None]] = {  # (x86_64, aarch64)
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    # sockets
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203),
    # sessions and identities
    "setsid": (112, 157), "setpgid": (109, 154), "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145),
    "setregid": (114, 143), "setresuid": (117, 147), "setresgid": (119, 149), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "setgroups": (116, 159), "capset": (126, 91), "personality": (135, 92),
    # namespaces, mounts, files by handle
    "setns": (308, 268), "unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "mknod": (133, None), "mknodat": (259, 33), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "quotactl": (179, 60), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    # storage that no limit counts
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "mlock": (149, 228), "mlock2": (325, 284), "mlockall": (151, 230),
    # large interfaces of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "syslog": (103, 116),
    "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
_FORKING = {"fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281)}
_CLONE, _CLONE3, _PRCTL, _PRLIMIT = (56, 220), (435, 435), (157, 167), (302, 261)
_KILL_CALL, _TGKILL = (62, 129), (234, 131)
_CLONE_THREAD = 0x00010000
_CLONE_REFUSED = 0x7E02A000  # the CLONE_NEW* flags, CLONE_PTRACE and CLONE_PARENT
_PRCTL_REFUSED = (1, 35, 36)  # PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_CHILD_SUBREAPER
_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000  # numbers of the x32 interface, which name the same calls again
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _DENY, _MISSING = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_KILL = 0x80000000
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; of the first argument its low half


def seccomp(may_fork: bool, own: int) -> bool:
    """Install the filter for the calling thread. Returns False if it is not supported.

    `own`: the only process that it may signal; 0: it has its own PID namespace, so it cannot name processes outside.
    """
    code = _filter(may_fork, own)
    if not code:
        return False
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(text))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(program, len(program)), 0, 0) == 0


@cache
def _filter(may_fork: bool, own: int) -> bytes:
    """The filter's code; empty where it is not known."""
    known = _ARCHES.get(platform.machine())
    return b"".join(struct.pack("HBBI", *line) for line in _program(*known, may_fork, own)) if known else b""


def _program(column: int, arch: int, may_fork: bool, own: int) -> list[_Line]:
    program = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    program += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _MISSING)]
    denied = _DENIED if may_fork else _DENIED | _FORKING
    for number in (numbers[column] for numbers in denied.values()):
        if number is not None:
            program += _rule(number, [])
    # clone3 hides its flags behind a pointer: answer "no such call", so that libc falls back to clone.
    program += _rule(_CLONE3[column], [(_RETURN, 0, 0, _MISSING)])
    threads_only = [] if may_fork else [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _DENY)]
    program += _rule(_CLONE[column], [(_ANY_BIT, 0, 1, _CLONE_REFUSED), (_RETURN, 0, 0, _DENY), *threads_only], True)
    for option in _PRCTL_REFUSED:
        program += _rule(_PRCTL[column], [(_EQUAL, 0, 1, option), (_RETURN, 0, 0, _DENY)], True, last=False)
    program += _rule(_PRLIMIT[column], [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _DENY)], True)
    for call in (_KILL_CALL, _TGKILL) if own else ():
        program += _rule(call[column], [(_EQUAL, 1, 0, own), (_RETURN, 0, 0, _DENY)], True)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _rule(number: int, checks: list[_Line], first_argument: bool = False, last: bool = True) -> list[_Line]:
    """The filter's lines for one system call. `checks` may test its first argument and return.

    A call that passes them is allowed if this is its `last` rule. Without checks it is denied.
    """
    body = [(_LOAD, 0, 0, _ARGUMENT)] * first_argument + (checks or [(_RETURN, 0, 0, _DENY)])
    body += [(_RETURN, 0, 0, _ALLOW)] if last else [(_LOAD, 0, 0, _NUMBER)]
    return [(_EQUAL, 0, len(body), number), *body]
