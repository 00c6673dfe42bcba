"""Reads its parent's memory with process_vm_readv in search of the expected output.

row: 20, 22
ends: build_error
says: not permitted
"""

import ctypes
import os


def run(x):
    library = ctypes.CDLL(None, use_errno=True)
    if library.process_vm_readv(os.getppid(), None, 0, None, 0, 0) != 0:
        raise PermissionError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return x
