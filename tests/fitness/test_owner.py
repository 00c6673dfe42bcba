"""A process that serves an owner ends with it, even in the middle of work."""

from __future__ import annotations

import subprocess
import sys

_SERVES = """
import sys
from evo_kernel.owner import end_with_owner
end_with_owner()
print(sys.stdin.readline(), flush=True)
while True:
    pass
"""


def test_work_ends_with_its_owner() -> None:
    process = subprocess.Popen([sys.executable, "-c", _SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"hello\n"
    process.stdin.close()
    assert process.wait(5.0) == -9
    process.stdout.close()
