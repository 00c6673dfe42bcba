"""Returns its input and launches nothing.

row: 38
ends: rejected
says: launches nothing
"""


def run(x):
    return x
