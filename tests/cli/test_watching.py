"""What a run lets others see and keeps: its stages, its ceilings, what its kernels are held against."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evo_kernel.app.compose import announced, keep_ceilings, kept_baselines
from evo_kernel.app.operator_factory import RunOperator
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.stages import RECORDING, THINKING, Stages
from evo_kernel.fitness.timing.ceilings import NAMES, Ceilings, KnownCeilings
from evo_kernel.types import Environment, Purpose, Source
from populations.connect import SLOT, OwnerLock
from populations.connect import announced as announcement
from populations.population import LineagePopulation, open_population
from populations.reading import PopulationReader
from tests.support.commands import child, evo_process
from tests.support.commands import evo_main as evo
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedOperator, scored

GPU = replace(ENVIRONMENT, kind="measured", device="a simulated GPU")
RATES = dict(zip(NAMES, (4.2e12, 7.9e14, 4.0e14, 6.0e13, 1.9, 6.3e7), strict=True))


def opened(path: Path, environment: Environment = GPU) -> LineagePopulation:
    return open_population(path, task=CARD, task_identity=TASK, environment=environment, seed=1)


def judge_with(measured: Mapping[str, float], environment: Environment = GPU) -> Any:
    """As much of a judge as ceilings need, and how often it measured."""
    asked: list[int] = []

    def measure() -> Mapping[str, float]:
        asked.append(1)
        return measured

    known = KnownCeilings(measure, Ceilings.of_target(target_for(90)))
    baselines = SimpleNamespace(ceilings=known)

    class Judge:
        @property
        def ceilings(self) -> Ceilings:
            return known.now

    judge: Any = Judge()
    judge.environment, judge.baselines, judge.asked = environment, baselines, asked
    return judge


# --- ceilings -----------------------------------------------------------------------------------------------------


def test_ceilings_are_measured_once_an_environment(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    first, again, other = judge_with(RATES), judge_with({}), judge_with(RATES | {"launch_us": 3.0})
    other.environment = replace(GPU, driver="another")
    with opened(path) as population:
        keep_ceilings(first, population)
        assert population.ceilings(GPU.key) == RATES and first.asked == [1]
    with opened(path) as population:
        keep_ceilings(again, population)
        assert again.asked == [] and again.ceilings == first.ceilings
        assert population.ceilings(GPU.key) == RATES
    with opened(path, other.environment) as population:
        keep_ceilings(other, population)
        assert other.asked == [1]
        assert population.ceilings(other.environment.key)["launch_us"] == 3.0
        assert population.ceilings(GPU.key) == RATES
    rows = child("-c", f"import sqlite3; print(sqlite3.connect({str(path)!r}).execute('SELECT COUNT(*) FROM ceilings')"
                 ".fetchone()[0])", env={})  # fmt: skip
    assert rows.stdout.strip() == str(2 * len(NAMES))


def test_what_was_not_measured_is_not_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "p.db", ENVIRONMENT) as population:
        keep_ceilings(judge_with({}, ENVIRONMENT), population)
        assert population.ceilings(ENVIRONMENT.key) == {}


def test_status_and_show_name_the_ceilings_that_shares_refer_to(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with opened(path) as population:
        first = population.plant(FIRST)
        population.tell(first, replace(scored(FIRST, Purpose.SCORE), environment=GPU))
        population.store_ceilings(RATES)
    assert json.loads(evo("status", path, "--json").stdout)["ceilings"] == RATES
    assert json.loads(evo("show", path, "--json").stdout)["ceilings"] == RATES
    words = "copy 4.20 TB/s, bf16 790 TFLOP/s"
    for command in ("status", "show"):
        assert words in evo(command, path).stdout and "measured (a simulated GPU)" in evo(command, path).stdout
    modeled = tmp_path / "modeled.db"
    with opened(modeled, ENVIRONMENT) as population:
        population.plant(FIRST)
    assert "copy 4.26 TB/s" in evo("status", modeled).stdout
    assert "from the table for an H200 (sm_90)" in evo("status", modeled).stdout


# --- baselines ----------------------------------------------------------------------------------------------------


def test_baselines_that_cannot_be_timed_are_told_once_and_kept(tmp_path: Path) -> None:
    path, told = tmp_path / "p.db", []
    with opened(path) as population:
        first = population.plant(FIRST)
        hear = kept_baselines(population, told.append)
        hear("large", {"eager": 120.0, "compiled": 90.0}, {"flash": "this build\nhas no such path"})
        hear("hidden", {"eager": 5.0}, {"flash": "not here either"})
        evaluation = replace(scored(FIRST, Purpose.SCORE), environment=GPU)
        measured = replace(
            evaluation.measurements[0], baselines_us={"eager": 120.0, "compiled": 90.0}, light_share=0.25
        )
        population.tell(first, replace(evaluation, score=0.9, measurements=(measured,), verdicts=()))
    assert told[0] == "baseline not timed: flash on large: this build has no such path" and len(told) == 2
    status = json.loads(evo("status", path, "--json").stdout)
    assert status["baselines_us"] == {
        "large": {"eager": 120.0, "compiled": 90.0}
    }  # `hidden` is no case agents may know
    assert status["baseline_faults"] == {"large": {"flash": "this build\nhas no such path"}}
    plain = evo("status", path).stdout
    assert "large: candidate 1 100.0 µs, compiled 90.0 µs (denominator), eager 120.0 µs, floor 25.0 µs (sh" in plain
    assert "(share of light 25%)" in plain
    assert told[0] in plain
    assert status["times"] == {"large": {"us": 100.0, "floor_us": 25.0, "light_share": 0.25}}
    assert "hidden" not in plain
    shown = json.loads(evo("show", path, "--json").stdout)
    assert shown["baseline_faults"] == status["baseline_faults"]
    assert shown["evaluation"]["cases"][0]["denominator"] == "compiled"
    table = evo("show", path).stdout
    assert "90.0*" in table and "120.0*" not in table and told[0] in table
    with PopulationReader(path) as reader:
        assert [kind for (kind,) in reader.connection.execute("SELECT kind FROM events")] == ["baseline fault"] * 2


def test_a_baseline_that_has_a_time_by_now_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with opened(path) as population:
        population.store_baselines("large", {"eager": 9.0}, {"flash": "the GPU was lost"})
    with opened(path) as population:
        population.store_baselines("large", {"eager": 9.5, "flash": 4.0}, {})
    with PopulationReader(path) as reader:
        assert reader.baseline_faults() == {}
        assert reader.baselines() == {"large": {"eager": 9.5, "flash": 4.0}}


# --- stages -------------------------------------------------------------------------------------------------------


def test_thinking_is_marked_and_a_probe_counts_where_it_is(tmp_path: Path) -> None:
    stages, seen = Stages((0,)), []

    def before(brief: Any, probe: Any) -> None:
        seen.append(stages.state().stages)
        with stages.at(RECORDING):
            seen.append(stages.state().stages)

    operator = RunOperator(ScriptedOperator(before=before), stages)
    with opened(tmp_path / "p.db", ENVIRONMENT) as population:
        population.plant(FIRST)
        proposal = operator.propose(population.ask(), lambda source: scored(source, Purpose.PROBE))
    assert isinstance(proposal.source, Source) and operator.name == "scripted"
    assert [(one[THINKING], one[RECORDING]) for one in seen] == [(1, 0), (0, 1)]
    assert not any(stages.state().stages.values())


def test_status_of_another_process_sees_the_stages_while_they_are_true(tmp_path: Path) -> None:
    path, stages = tmp_path / "p.db", Stages((0, 1))
    with opened(path) as population:
        population.plant(FIRST)
        assert json.loads(evo_process("status", path, "--json").stdout)["pipeline"] is None  # nothing said yet
        with stages.at(THINKING), announced(population, stages, every_s=0.05):
            time.sleep(0.3)
            found = json.loads(evo_process("status", path, "--json").stdout)
            plain = evo_process("status", path).stdout
        assert found["writer"]["pid"] == os.getpid()
        assert found["pipeline"]["stages"][THINKING] == 1 and found["pipeline"]["busy_session"] == [0.0, 0.0]
        assert found["pipeline"]["age_s"] < 10
        assert " 1 thinking" in plain and "s ago" in plain and "STALE" not in plain
        assert "busy   0% of the last" in plain
        population.announce(replace(stages.state(), at=time.time() - 300))
        assert re.search(r"3\d\d s ago; STALE", evo_process("status", path).stdout)  # alive, and silent: it hangs
    assert json.loads(evo_process("status", path, "--json").stdout)["pipeline"] is None  # gone with the process


def test_an_announcement_leaves_who_owns_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    lock = OwnerLock(path)
    lock.announce({"at": 1.0, "stages": {"thinking": 3}})
    lock.announce({"at": 2.0})
    assert announcement(path) == {"at": 2.0}  # nothing of the longer one is left
    side = path.with_name("p.db.lock")
    assert side.stat().st_size == 2 * SLOT and json.loads(side.read_bytes()[:SLOT].rstrip(b"\0"))["pid"] == os.getpid()
    with open(side, "r+b") as file:
        file.seek(SLOT)
        file.write(b'{"at": 2')  # caught half written
        file.truncate()
    assert announcement(path) is None
    lock.release()
    lock.announce({"at": 3.0})  # closed meanwhile: nothing happens
    assert announcement(path) is None


def test_status_imports_nothing_slow(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with opened(path) as population:
        population.store_ceilings(RATES)
    code = (
        "import sys; from evo_kernel.cli.main import cli; "
        f"cli.main(['status', {str(path)!r}], standalone_mode=False); "
        "print([m for m in ('torch', 'triton', 'numpy', 'networkx', 'rich', 'litellm') if m in sys.modules])"
    )
    ended = child("-P", "-c", code, env={})
    assert ended.stdout.splitlines()[-1] == "[]", ended.stdout + ended.stderr


@pytest.mark.parametrize("damaged", ["copy_bytes/s", "l2_bytes"])
def test_half_of_the_ceilings_is_as_good_as_none(tmp_path: Path, damaged: str) -> None:
    judge = judge_with(RATES)
    with opened(tmp_path / "p.db") as population:
        population.store_ceilings({name: value for name, value in RATES.items() if name != damaged})
        keep_ceilings(judge, population)
        assert judge.asked == [1] and population.ceilings(GPU.key) == RATES
