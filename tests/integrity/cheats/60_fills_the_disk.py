"""Writes ten gigabytes to its folder, in files that it deletes while it holds them open.

row: 60
ends: build_error, rejected
"""

import os


def run(x):
    held = []
    for number in range(160):
        held.append(open(f"file{number}", "wb"))
        os.unlink(f"file{number}")
        for _ in range(64):
            held[-1].write(bytes(1 << 20))
    return x
