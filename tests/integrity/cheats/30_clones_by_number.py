"""Starts a process by the number of a system call of another interface (x32), which a list of numbers would not hold.

row: 30
ends: build_error
says: no process
"""

import ctypes

X32, FORK = 0x40000000, 57


def run(x):
    if ctypes.CDLL(None).syscall(X32 | FORK) < 0:
        raise OSError("no process")
    return x
