"""Child processes: what they start ends with them, and what serves an owner ends with it, even in the middle of work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from evo_kernel import processes

SERVES = """
import sys
from evo_kernel.processes import end_with_owner
end_with_owner()
print(sys.stdin.readline(), flush=True)
while True:
    pass
"""
ESCAPES = "setsid sh -c 'echo $$ > pid; sleep 300' & while [ ! -s pid ]; do sleep 0.01; done"


def test_work_ends_with_its_owner() -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"hello\n"
    process.stdin.close()
    assert process.wait(5.0) == -9
    process.stdout.close()


@pytest.mark.parametrize(
    ("then", "grace_s", "how", "code"),
    [("exit 3", 0.0, "exited", 3), ("kill -9 $$", 0.0, "exited", 137), ("sleep 300", 0.0, "deadline", 143),
     ("trap 'exit 5' TERM; while true; do sleep 0.01; done", 5.0, "deadline", 5)],
)  # fmt: skip
def test_what_a_command_started_ends_with_it(tmp_path: Path, then: str, grace_s: float, how: str, code: int) -> None:
    said: list[bytes] = []
    ended = processes.run(
        ["/bin/sh", "-c", f"echo begun; {ESCAPES}; {then}"], 0.8, said.append, os.environ, tmp_path, grace_s=grace_s
    )
    assert ended.how == how and b"".join(said).startswith(b"begun") and (ended.code == code or grace_s == 0.0)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_command_that_is_missing_says_so() -> None:
    said: list[bytes] = []
    ended = processes.run(["/no/such/program"], 5.0, said.append, os.environ)
    assert (ended.how, ended.code) == ("exited", 127) and b"/no/such/program does not start" in b"".join(said)


def test_a_command_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    call = f"import os; from evo_kernel import processes; processes.run(['sh', '-c', {ESCAPES + '; sleep 300'!r}], 60, print, os.environ)"
    caller = subprocess.Popen([sys.executable, "-c", call], cwd=tmp_path)
    until = time.monotonic() + 20
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    caller.kill()
    caller.wait()
    pid = int((tmp_path / "pid").read_text())
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not psutil.pid_exists(pid)
