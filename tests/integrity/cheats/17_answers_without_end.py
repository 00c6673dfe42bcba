"""Answers with 256 MB in place of a recording, so that whoever reads it as a whole runs out of memory.

row: 17
ends: rejected
says: more than
"""

import os


def run(x):
    for _ in range(128):
        os.write(3, b"[" * (1 << 21))
    os._exit(0)
