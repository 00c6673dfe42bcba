"""Makes files until there is no room for names.

row: 60
ends: build_error, rejected
"""


def run(x):
    for number in range(1_000_000):
        open(f"file{number}", "wb").close()
    return x
