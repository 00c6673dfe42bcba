"""The on_event command: told what happens, bounded in time and number, and never a burden to the search."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from evo_kernel.app import notifications
from evo_kernel.app.notifications import Notifier
from evo_kernel.app.run_config import without_commands
from evo_kernel.budget import Budget, Ledger
from evo_kernel.config import Config
from evo_kernel.engine import Engine, Silence
from populations.population import open_population
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedJudge, ScriptedOperator


class Troubled(Silence):
    def __init__(self) -> None:
        self.said: list[str] = []

    def trouble(self, message: str) -> None:
        self.said.append(message)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_tells_bests_champions_and_its_end(tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    config = Config(on_event=f'[ -n "$EVO_KERNEL_EVENT" ] && cat >> {told}')
    observer = Troubled()
    with open_population(
        tmp_path / "p.db", task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1
    ) as population:
        population.plant(FIRST)
        with notifications.told(config, "toy", tmp_path / "p.db", observer) as (heard, tell_end):
            engine = Engine(
                population, ScriptedOperator(), ScriptedJudge(), Ledger(Budget(evaluations=6)), observer=heard
            )
            tell_end(engine.run())
    events = read(told)
    kinds = [event["event"] for event in events]
    assert kinds[0] == "best" and kinds[-1] == "end" and "champion" in kinds and observer.said == []
    assert events[-1]["cause"] == "budget" and events[-1]["score"] == max(event["score"] or 0 for event in events[:-1])
    assert {event["task"] for event in events} == {"toy"} and events[0]["environment"] == "modeled (sm_90)"


def test_without_a_command_the_observer_is_left_as_it_is(tmp_path: Path) -> None:
    observer = Troubled()
    with notifications.told(Config(), "toy", tmp_path / "p.db", observer) as (heard, _):
        assert heard is observer


@pytest.mark.parametrize(
    ("command", "deadline_s", "says"),
    [
        ("exit 3", 5.0, "ended with exit code 3"),
        ("no-such-command-here", 5.0, "ended with exit code 127"),
        ("sleep 60 & sleep 60", 0.2, "took longer than 0."),
    ],
)
def test_a_command_that_fails_is_complained_about_once(command: str, deadline_s: float, says: str) -> None:
    said: list[str] = []
    began = time.monotonic()
    with closing(Notifier(command, deadline_s, {}, said.append)) as notifier:
        for _ in range(3):
            notifier.tell("best")
    assert len(said) == 1 and said[0].startswith(f"the on_event command {says}")
    assert time.monotonic() - began < 5.0


def test_what_a_model_named_is_no_part_of_the_command(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with closing(Notifier(f"cat >> {told}", 5.0, {}, print)) as notifier:
        notifier.tell("best", strategy=f"$(touch {tmp_path}/owned); `touch {tmp_path}/owned`")
    assert not (tmp_path / "owned").exists() and "touch" in read(told)[0]["strategy"]


def test_no_command_travels_with_a_file() -> None:
    said: list[str] = []
    stored = {"width": 2, "on_event": "curl evil", "external": {"command": "sh evil.sh", "minutes": 5.0}}
    assert without_commands(stored, [], said.append) == {"width": 2, "external": {"minutes": 5.0}}
    assert "--set on_event='curl evil'" in said[0] and "--set external.command='sh evil.sh'" in said[1]
    without_commands(stored, ["on_event=mine", "external.command=mine"], said.append)
    assert len(said) == 2  # they were named again
