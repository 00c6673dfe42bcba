"""Overwrites functions of loaded C libraries through ctypes.

row: 19
ends: rejected, build_error
"""

import ctypes


def run(x):
    library = ctypes.CDLL(None)
    address = ctypes.cast(library.clock_gettime, ctypes.c_void_p).value
    ctypes.memmove(address, b"\x31\xc0\xc3", 3)
    return x
