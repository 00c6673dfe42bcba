"""Namespaces of the processes that serve confined jobs: the kernel ends every process in one together with its first.

A zygote is process 1 of a process-id namespace, and each of its children is process 1 of one inside. Whatever a child
does (a session of its own, orphans, other death signals), its descendants end with it, with the zygote, and with the
process that watches the judge. Children also get file systems that are read-only, but for a folder in memory.

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
    """What this process and its children stand in. `pid`: the descriptor of its process-id namespace; none: -1."""

    pid: int = -1
    mounts: bool = False

    @property
    def stand(self) -> bool:
        return self.pid >= 0

    def fork(self) -> int:
        """`os.fork`, where the child is process 1 of a new process-id namespace, if namespaces stand."""
        if not self.stand:
            return os.fork()
        _checked(_LIBC.unshare(_NEWPID))
        try:
            return os.fork()
        finally:  # of the parent: its next child may not join that namespace. The child is in it for good
            _LIBC.setns(self.pid, _NEWPID)


def enter() -> bool:
    """Leave the network, the host's process ids, mounts and IPC; the next fork is process 1 of the new id space.

    Returns False where the kernel or a container forbids it.
    """
    uid, gid = os.getuid(), os.getgid()
    rest = _NEWPID | _NEWNET | _NEWIPC | _NEWNS
    if _LIBC.unshare(_NEWUSER | rest) != 0:
        return _LIBC.unshare(rest) == 0  # root, where user namespaces alone are forbidden
    with contextlib.suppress(OSError):  # else in the namespaces all the same, as nobody
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    return True


def inside(folder: str) -> Namespaces:
    """For process 1 of what `enter` made: what can be had for its children. `folder` is tried as a mount point."""
    mounts = _LIBC.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0 and memory_folder(folder, 1 << 20)
    if mounts:
        _LIBC.umount2(folder.encode(), 2)
    return Namespaces(os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC), mounts)


def memory_folder(folder: str, size: int) -> bool:
    """Mount a file system in memory of `size` bytes over a folder; False where that is not allowed."""
    options = f"size={size},nr_inodes={_FILES},mode=0700".encode()
    return _LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options) == 0


def private_mounts(folder: str, size: int) -> None:
    """For a child: nothing can be written but in `folder`, which is empty and in memory. Raises OSError."""
    _checked(_LIBC.unshare(_NEWNS))
    # Its own processes alone. Refused where a container hides parts of /proc: Landlock then does the same.
    _LIBC.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV, None)
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    # Before Linux 5.12 there is no such call, and Landlock alone denies writing.
    _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, len(attributes))
    if not memory_folder(folder, size):
        raise OSError(ctypes.get_errno(), "no file system in memory can be mounted")


def cap_processes(count: int, file: str = "/proc/sys/kernel/pid_max", release: tuple[int, int] | None = None) -> None:
    """Bound the process ids of this id space where the kernel can: ends fork bombs run as root.

    Before Linux 6.14 the file is the whole machine's, and stays as it is.
    """
    if (release or _release()) >= (6, 14):
        with contextlib.suppress(OSError):
            _write(file, str(max(301, count)))


def _release() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


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
