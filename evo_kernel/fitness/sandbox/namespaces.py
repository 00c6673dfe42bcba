"""Linux namespaces for confined processes: when process 1 of a PID namespace ends, the kernel kills all others in it.

A zygote is process 1 of a PID namespace, and each of its children is process 1 of a nested one. Therefore all
descendants of a child end with the child, with the zygote, and with the supervisor of the judge, even if they start a
session, are orphaned, or change their death signal. A child's file systems are read-only except for one tmpfs folder.

Sources: user_namespaces(7), pid_namespaces(7), mount_namespaces(7), mount_setattr(2), tmpfs(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWUSER, _NEWPID, _NEWNET, _NEWIPC, _NEWNS = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 16384, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000  # the number is the same on every architecture
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_FILES = 16384
"""A compilation of ten kernels leaves about a hundred files."""


@dataclass(frozen=True)
class Namespaces:
    """Namespaces of this process and its children. `pid`: the descriptor of its PID namespace, or -1."""

    pid: int = -1
    mounts: bool = False

    @property
    def active(self) -> bool:
        return self.pid >= 0

    def fork(self) -> int:
        """`os.fork`; the child is process 1 of a new PID namespace, if namespaces are active."""
        if not self.active:
            return os.fork()
        _checked(_LIBC.unshare(_NEWPID))
        try:
            return os.fork()
        finally:  # in the parent only: its next child must not join that namespace; the child cannot leave it
            _LIBC.setns(self.pid, _NEWPID)


def enter() -> bool:
    """Leave the host's network, process ids, mounts and IPC; the next fork is process 1 of the new PID namespace.

    Returns False if the kernel or a container forbids it.
    """
    uid, gid = os.getuid(), os.getgid()
    rest = _NEWPID | _NEWNET | _NEWIPC | _NEWNS
    if _LIBC.unshare(_NEWUSER | rest) != 0:
        return _LIBC.unshare(rest) == 0  # root needs no user namespace
    with contextlib.suppress(OSError):  # without a map the process is in the namespaces too, as user `nobody`
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    return True


def inside(folder: str) -> Namespaces:
    """The namespaces available to children. Call it in process 1 after `enter`; `folder` is a trial mount point."""
    mounts = _LIBC.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0 and memory_folder(folder, 1 << 20)
    if mounts:
        _LIBC.umount2(folder.encode(), 2)
    return Namespaces(os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC), mounts)


def memory_folder(folder: str, size: int) -> bool:
    """Mount a tmpfs of `size` bytes over a folder. Returns False if that is not allowed."""
    options = f"size={size},nr_inodes={_FILES},mode=0700".encode()
    return _LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options) == 0


def private_mounts(folder: str, size: int) -> None:
    """In a child: make every file system read-only except `folder`, an empty tmpfs. Raises OSError."""
    _checked(_LIBC.unshare(_NEWNS))
    # A /proc with its own processes only. A container that hides parts of /proc refuses; Landlock then does the same.
    _LIBC.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV, None)
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    # Linux before 5.12 lacks this call; there Landlock alone denies writing.
    _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, len(attributes))
    if not memory_folder(folder, size):
        raise OSError(ctypes.get_errno(), "cannot mount a tmpfs")


def cap_processes(count: int, file: str = "/proc/sys/kernel/pid_max", release: tuple[int, int] | None = None) -> None:
    """Bound the process ids of this id space where the kernel can: ends fork bombs run as root.

    Before Linux 6.14 the limit applies to the whole machine, so it is not changed there.
    """
    if (release or _release()) >= (6, 14):
        with contextlib.suppress(OSError):
            _write(file, str(max(301, count)))


def _release() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
