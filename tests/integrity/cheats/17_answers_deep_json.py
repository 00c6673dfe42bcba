"""Answers with lists in lists, a million deep.

row: 17
ends: rejected
says: malformed
"""

import os


def run(x):
    os.write(3, b'{"records": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
    os._exit(0)
