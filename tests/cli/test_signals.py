"""A search in a process of its own, and the signals that people send it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evo_kernel.app.compose import watched
from evo_kernel.app.operator_factory import RunOperator
from evo_kernel.budget import Budget, Ledger
from evo_kernel.engine import Engine, EngineSettings
from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.fitness.stages import Stages
from evo_kernel.types import Call, Evaluation, Purpose, Source
from populations.population import open_population
from populations.reading import PopulationReader
from tests.support import warm
from tests.support.scripted import (
    CARD,
    ENVIRONMENT,
    FIRST,
    TASK,
    Notebook,
    ScriptedJudge,
    ScriptedOperator,
    scored,
)


def start(path: Path, slow: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        warm.command("tests.support.searching", str(path), "--slow", str(slow)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"COLUMNS": "120"},
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
    assert f"{number.name}: finishing what is under way; once more stops it now" in out
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


def test_what_an_abort_cuts_off_is_no_failure(tmp_path: Path) -> None:
    """The judge's children die under it: neither shown nor counted nor told, and judged first by the next session."""
    asked, closed, heard = threading.Event(), threading.Event(), Notebook()

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if source == FIRST:
            return scored(source, purpose)
        asked.set()
        closed.wait(10)
        raise InfraError("the compile process was lost twice")

    path = tmp_path / "cut.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        population.plant(FIRST)
        judge, ledger = ScriptedJudge(answer), Ledger(Budget(evaluations=99))
        engine = Engine(population, ScriptedOperator(), judge, ledger, EngineSettings(width=2), heard)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(engine.run)
            assert asked.wait(10)
            engine.abort("stopped by SIGINT")
            closed.set()
            ended = running.result(timeout=10)
        time.sleep(0.3)  # the threads that were cut off come home
        assert dict(ended.statuses) == {"passed": 1}
        assert not [line for line in heard.lines if "infra" in line or "trouble" in line]
    with PopulationReader(path) as reader:
        assert reader.status().pending >= 1
        assert reader.status().verdicts == {"passed": 1}


def test_the_first_signal_ends_calls_of_models_and_the_second_the_judge() -> None:
    """A call may take a quarter of an hour: nobody waits for that."""
    stop, done = threading.Event(), list[str]()

    class Spy:
        def stop(self, why: str) -> None:
            done.append(f"stop, {why}")

        def abort(self, why: str) -> None:
            done.append(f"abort, {why}")

        def close(self) -> None:
            done.append("closed")

    spy: Any = Spy()
    with watched(spy, spy, stop):
        signal.raise_signal(signal.SIGINT)
        assert done == ["stop, stopped by SIGINT"] and stop.is_set()
        signal.raise_signal(signal.SIGTERM)
    assert done[1:] == ["abort, stopped by SIGTERM", "closed"]


def test_what_a_signal_cut_off_stays_open() -> None:
    def propose(brief: Any, probe: Any) -> Any:
        raise OperatorFailed("the model failed (stopped): the run was stopped", calls=(Call("m"),))

    stop, operator = threading.Event(), ScriptedOperator()
    operator.propose = propose
    cut: Any = RunOperator(operator, Stages(), stop=stop)
    with pytest.raises(OperatorFailed) as caught:
        cut.propose(None, None)
    assert not caught.value.paused
    stop.set()
    with pytest.raises(OperatorFailed) as caught:
        cut.propose(None, None)
    assert caught.value.paused and caught.value.calls
