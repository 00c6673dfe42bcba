"""Attaches to its parent with ptrace to change what it thinks.

row: 20
ends: build_error
says: not permitted
"""

import ctypes
import os


def run(x):
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(16, os.getppid(), 0, 0) != 0:
        raise PermissionError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return x
