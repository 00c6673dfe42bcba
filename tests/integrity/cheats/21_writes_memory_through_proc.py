"""Opens /proc/self/mem to overwrite the recorder's own code.

row: 21
ends: build_error
says: /proc/self/mem
"""


def run(x):
    with open("/proc/self/mem", "r+b") as memory:
        memory.write(b"\0")
    return x
