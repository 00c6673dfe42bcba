"""What runs remember of a machine: used under the very same circumstances alone, and forgotten on request."""

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from evo_kernel import user_cache
from evo_kernel.cli.main import cli
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.doctor import diagnose_cache
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.timing import measurement_cache
from evo_kernel.fitness.timing.baseline_times import BaselineTimes
from evo_kernel.fitness.timing.ceilings import CEILINGS, Ceilings, KnownCeilings
from evo_kernel.fitness.timing.measurement_cache import MeasurementCache, cache_key
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Environment, Measurement

HERE = Environment("measured", "NVIDIA H200", "12080", "2.11", "3.6", True, 7, "seccomp", "12.9.86")
FOUND = cache_key(HERE, "GPU-1")
TABLE = Ceilings.of_target(target_for(90))


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_numbers_come_back_where_nothing_has_changed():
    MeasurementCache(FOUND).add("m1", {"eager": 2.0})
    MeasurementCache(FOUND).add("m2", {"eager": 3.0})
    assert MeasurementCache(dict(FOUND)).read() == {"m1": {"eager": 2.0}, "m2": {"eager": 3.0}}
    assert cache_key(replace(HERE, confinement="none"), "GPU-1") == FOUND  # which decides no time


@pytest.mark.parametrize(
    "other",
    [
        cache_key(HERE, "GPU-2"),
        cache_key(replace(HERE, device="NVIDIA H100"), "GPU-1"),
        cache_key(replace(HERE, driver="13000"), "GPU-1"),
        cache_key(replace(HERE, torch="2.12"), "GPU-1"),
        cache_key(replace(HERE, triton="3.7"), "GPU-1"),
        cache_key(replace(HERE, judge=8), "GPU-1"),
        FOUND | {"task": "another text"},
    ],
)
def test_numbers_of_other_circumstances_are_not_used(other):
    MeasurementCache(FOUND).add("m1", {"eager": 2.0})
    assert MeasurementCache(other).read() == {}
    (file,) = user_cache.folder().glob("*.json")
    file.rename(MeasurementCache(other).path)  # not by the name alone
    assert MeasurementCache(other).read() == {}


@pytest.mark.parametrize("text", ["", '{"found": {', "[]", '{"found": {}, "values": {"m1": {"eager": -1.0}}}', "\xff"])
def test_torn_files_are_ignored_and_written_anew(text):
    MeasurementCache(FOUND).add("m1", {"eager": 2.0})
    (file,) = user_cache.folder().glob("*.json")
    file.write_text(text, encoding="latin-1")
    assert MeasurementCache(FOUND).read() == {} and measurement_cache.listed() == []
    MeasurementCache(FOUND).add("m2", {"eager": 3.0})
    assert MeasurementCache(FOUND).read() == {"m2": {"eager": 3.0}}


def test_numbers_that_are_no_times_are_not_kept():
    for value in (0.0, -1.0, float("nan"), float("inf")):
        MeasurementCache(FOUND).add("m1", {"eager": value})
    assert MeasurementCache(FOUND).read() == {}


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    MeasurementCache(FOUND).add("m1", {"eager": 2.0})
    assert MeasurementCache(FOUND).read() == {} and measurement_cache.listed() == []


def test_doctor_tells_and_forgets():
    MeasurementCache(FOUND).add(CEILINGS, TABLE.as_data())
    MeasurementCache(FOUND | {"task": "1234", "name": "softmax"}).add("m1", {"eager": 2.0})
    assert "1 environment(s), baselines of 1 task(s) (softmax)" in diagnose_cache().detail
    told = CliRunner().invoke(cli, ["doctor", "--clear", "--json"])
    assert told.exit_code == 0 and json.loads(told.output)["removed"] == 2
    assert MeasurementCache(FOUND).read() == {} and "0 environment(s)" in diagnose_cache().detail


def test_ceilings_are_measured_once_a_card():
    measured = []

    def measure():
        measured.append(1)
        return TABLE.as_data()

    first = KnownCeilings(measure, TABLE, MeasurementCache(FOUND)).now
    assert KnownCeilings(measure, TABLE, MeasurementCache(FOUND)).now == first and len(measured) == 1
    assert KnownCeilings(measure, TABLE, MeasurementCache(cache_key(HERE, "GPU-2"))).now == first
    assert len(measured) == 2
    MeasurementCache(FOUND).add(CEILINGS, {"copy_bytes/s": 1.0})  # incomplete
    assert KnownCeilings(measure, TABLE, MeasurementCache(FOUND)).now == first and len(measured) == 3


def test_ceilings_that_a_kernel_beats_are_measured_again_once():
    low = replace(TABLE, copy_bytes_per_s=TABLE.copy_bytes_per_s / 2)
    measured = [low, TABLE, low]
    runner = Baselines()
    runner.ceilings = lambda: measured.pop(0).as_data()  # type: ignore[attr-defined]
    known = KnownCeilings(runner.ceilings, TABLE, MeasurementCache(FOUND))  # type: ignore[attr-defined]
    task = load("softmax")
    baselines = BaselineTimes(task, None)  # type: ignore[arg-type]
    baselines.start(known, True, FOUND)
    case = task.cases_of(CaseKind.SEARCH)[0]
    median_us = TABLE.light_us(task.flops(case), task.bytes(case)) / 0.9
    for _ in range(2):
        timed = Measurement(case.name, "plan", median_us, 0.1, 50, median_us, median_us)
        held = baselines.hold(runner, case, timed)  # type: ignore[arg-type]
        assert isinstance(held, Measurement) and held.light_share == pytest.approx(0.9) and len(measured) == 1
    assert KnownCeilings(dict, TABLE, MeasurementCache(FOUND)).now.copy_bytes_per_s == TABLE.copy_bytes_per_s


def test_a_kernel_that_needs_fewer_products_than_its_reference_is_held_against_bytes(tmp_path):
    text = "import torch\nCASES = {'check': [{'n': 32}], 'search': [{'n': 8192}]}\n"
    text += "def inputs(case, generator, device):\n"
    text += (
        "    return tuple(torch.randn(case['n'], case['n'], generator=generator, device=device) for _ in range(2))\n"
    )
    (tmp_path / "sums.py").write_text(text + "def reference(x, w):\n    return (x @ w).sum(1)\n")
    task = load(tmp_path / "sums.py")
    (case,) = task.cases_of(CaseKind.SEARCH)
    baselines = BaselineTimes(task, None)  # type: ignore[arg-type]
    baselines.start(KnownCeilings(dict, TABLE, None), False, None)
    light_us = TABLE.light_us(None, 4.0 * (2 * 8192**2 + 8192))

    known = Measurement(case.name, "plan", 1.0, 0.1, 50, 1.0, 1.0)
    baselines.know(replace(known, baselines_us={"torch.compile": 1.0}))

    def share(median_us: float) -> float | None:
        timed = replace(known, median_us=median_us)
        return baselines.hold(None, case, timed).light_share  # type: ignore[arg-type,union-attr]

    assert share(light_us / 0.9) == pytest.approx(0.9)
    assert share(TABLE.light_us(2.0 * 8192**3, None) / 0.8) == pytest.approx(0.8)


class Baselines:
    """A runner that times baselines, one of which may fail."""

    def __init__(self, fault: str = "") -> None:
        self.asked: list[str] = []
        self.fault = fault
        self.baseline_faults: dict[str, str] = {}

    def baselines(self, case):
        self.asked.append(case.name)
        if self.fault:
            self.baseline_faults[f"{case.name}: torch.compile"] = self.fault
        return {"eager": 5.0}


def _baselines(task, found=FOUND):
    made = BaselineTimes(task, None)  # type: ignore[arg-type]
    made.start(KnownCeilings(dict, TABLE), True, found)
    return made


@pytest.mark.parametrize(("name", "rate"), [("fp8_matmul", 2.0), ("int4_matmul", 1.0), ("matmul", 1.0)])
def test_light_multiplies_eight_bits_at_twice_the_rate(name, rate):
    task = load(name)
    case = max(task.cases_of(CaseKind.SEARCH), key=lambda case: task.flops(case) or 0.0)
    fastest_us = (task.flops(case) or 0.0) / TABLE.bf16_flops / rate * 1e6
    for us, held in ((fastest_us, Measurement), (fastest_us / 1.3, Checked)):
        timed = Measurement(case.name, "plan", us, 0.1, 50, us, us)
        runner: Any = Baselines()
        assert isinstance(_baselines(task).hold(runner, case, timed), held)


def test_baselines_are_timed_once_a_task_but_for_claims():
    task = load("softmax")
    (case, *_), (claimed, *_) = task.cases_of(CaseKind.SEARCH), task.cases_of(CaseKind.CONFIRM)
    told = []
    for _ in range(2):
        runner, baselines = Baselines(), _baselines(task)
        baselines.on_baselines = lambda *heard: told.append(heard)
        assert baselines.baselines_of(runner, case) == {"eager": 5.0}
        baselines.baselines_of(runner, claimed)
    assert runner.asked == [claimed.name] and len(told) == 4
    runner = Baselines()
    _baselines(replace(task, text=task.text + "\n")).baselines_of(runner, case)
    assert runner.asked == [case.name]


def test_baselines_of_which_one_failed_are_timed_again():
    task = load("softmax")
    case = task.cases_of(CaseKind.SEARCH)[0]
    for _ in range(2):
        runner = Baselines("out of memory")
        _baselines(task).baselines_of(runner, case)
        assert runner.asked == [case.name]
