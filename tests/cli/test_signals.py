"""A search in a process of its own, and the signals that people send it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from populations.reading import PopulationReader

ROOT = Path(__file__).resolve().parents[2]


def start(path: Path, slow: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.searching", str(path), "--slow", str(slow)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"COLUMNS": "120"},
    )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("ready"):
            return child
    raise AssertionError(f"the search did not start: {child.wait()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_finishes_what_is_in_flight(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "scripted.db"
    child = start(path, slow=0.05)
    time.sleep(0.5)
    child.send_signal(number)
    out, _ = child.communicate(timeout=20)
    assert child.returncode == 130, out
    assert f"stopped by {number.name}" in out
    assert "Traceback" not in out
    with PopulationReader(path) as reader:
        status = reader.status()
    assert status.pending == 0 and status.abandoned == 0  # nothing in flight was thrown away
    assert status.writer is None
    assert f"asked {sum(status.evaluations.values())};" in out  # and nothing was counted twice


def test_a_second_signal_stops_now(tmp_path: Path) -> None:
    path = tmp_path / "scripted.db"
    child = start(path, slow=30.0)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert child.poll() is None  # it waits for what is in flight
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=15)
    assert time.monotonic() - began < 5
    assert child.returncode == 130, out
    assert "closed True" in out  # the judge's children were ended
    with PopulationReader(path) as reader:
        assert reader.status().pending == 1  # the first kernel, for the resume


def test_killed_at_once_loses_nothing_told(tmp_path: Path) -> None:
    path = tmp_path / "scripted.db"
    child = start(path, slow=0.002)
    time.sleep(0.7)
    child.kill()
    child.communicate(timeout=10)
    with PopulationReader(path) as reader:
        before = reader.status()
    assert before.candidates > 5
    child = start(path, slow=0.002)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=20)
    assert child.returncode == 130, out
    with PopulationReader(path) as reader:
        after = reader.status()
    assert after.sessions == 2
    assert after.pending == 0
    assert after.candidates > before.candidates
    asked = int(out.split("asked ")[1].split(";")[0])
    assert sum(after.evaluations.values()) == sum(before.evaluations.values()) + asked
