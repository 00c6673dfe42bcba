"""Forks twice into a session of its own that no parent's end ends, to work on when its judge is gone.

row: 30
ends: build_error
says: not permitted
"""

import ctypes
import os
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def run(x):
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
            time.sleep(3600)
        os._exit(0)
    return x
