"""Keeps gigabytes in files in memory that have no name and count for no limit of its own.

row: 60
ends: build_error
says: not permitted
"""

import os


def run(x):
    for number in range(200):
        fd = os.memfd_create(f"file{number}")
        for _ in range(64):
            os.write(fd, bytes(1 << 20))
    return x
