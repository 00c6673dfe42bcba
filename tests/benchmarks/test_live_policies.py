"""Searches side by side at equal numbers of judged children: their order, that they go on, and what is told of them."""

import json
import math
import random
import sys
import threading
import time
from collections import deque

import pytest

from benchmarks import live_curves as curves
from benchmarks import live_policies as live
from evo_kernel.types import Proposal, Source
from operators.learning.evaluation import Interval
from populations.population import open_population
from tests.populations.samples import CARD, MODELED, TASK, passed
from tests.support.commands import ROOT

POLICIES = {"uniform": ("u",), "bandit": ("b",), "mine": ("m",)}


def made(path, log_times, first=(4.0, 3.0)):
    """A population whose first kernel was scored twice, untuned and tuned, and then children with these log times."""
    rng = random.Random(0)
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=0) as population:
        planted = population.plant(source(0))
        for log_us in first:
            population.tell(planted, passed(source(0), rng, log_us=log_us), False)
        children = []
        for number, log_us in enumerate(log_times, start=1):
            child = population.record(population.ask(), Proposal(source(number), "mtmc"))
            population.tell(child, passed(source(number), rng, log_us=log_us), False)
            children.append(child)
        # What looked fastest is measured again, after all others were judged.
        population.tell(children[0], passed(source(1), rng, log_us=2.9), False)


def source(number):
    return Source(f"kernel = {number}\n")


def row(task, policy, seed, **more):
    found = {"name": f"{task}-{policy}-{seed}", "task": task, "policy": policy, "seed": seed, "setup": "same"}
    return found | {"evaluations": 3, "seconds": 10.0, "setup_s": 2.0} | more


def search(task, policy, seed, *gains):
    return curves.Search(task, policy, seed, (0.0, *gains), len(gains), 1, 0.0, 1.0, 0.5, "modeled")


def test_any_first_part_of_the_jobs_is_balanced():
    jobs = live.jobs_of(["a", "b"], 2, POLICIES)
    assert [job.name for job in jobs[:4]] == ["a-uniform-0", "a-bandit-0", "a-mine-0", "b-uniform-0"]
    assert len({job.name for job in jobs}) == 12
    for end in range(len(jobs) + 1):
        counts = [sum(job.policy == name for job in jobs[:end]) for name in POLICIES]
        assert max(counts) - min(counts) <= 1


def test_what_ended_is_not_run_again_and_other_settings_are_refused():
    jobs, setup = live.jobs_of(["a"], 2, POLICIES), dict.fromkeys(POLICIES, "same")
    left = live.waiting(jobs, [row("a", "bandit", 0)], setup)
    assert [job.name for job in left] == ["a-uniform-0", "a-mine-0", "a-uniform-1", "a-bandit-1", "a-mine-1"]
    with pytest.raises(SystemExit, match="another --out"):
        live.waiting(jobs, [row("a", "bandit", 0, setup="other")], setup)


def test_no_search_is_begun_that_is_unlikely_to_end():
    work = live.Work(deque(live.jobs_of(["a", "b"], 1, {"uniform": ()})), {"a": [20.0, 40.0]})
    assert work.next(29.0) is None and len(work.jobs) == 2
    begun = work.next(31.0)
    assert begun is not None and begun.task == "a"
    assert work.next(29.0) is None  # b: by the mean of all
    work.over.set()
    assert work.next(1000.0) is None


def test_gains_are_over_the_tuned_first_kernel_and_by_the_latest_scores(tmp_path):
    made(tmp_path / "x.db", [1.0, 3.5, 2.5, 2.0])
    found = curves.read_search(tmp_path / "x.db", row("a", "bandit", 0), 3)
    assert found.gains == pytest.approx((0.0, 0.1, 0.1, 0.5))  # the first child's 1.0 was luck; a fourth is not counted
    assert found.final == pytest.approx(0.5) and found.area == pytest.approx(0.7 / 3)
    assert found.children == 3 and found.kind == "modeled"


def test_the_last_gain_counts_on_and_failures_gain_nothing():
    assert curves.best_so_far(1.0, [None, 0.5, 2.0], 5) == (0.0, 0.0, 0.5, 0.5, 0.5, 0.5)


def test_only_whole_comparisons_are_reported():
    searches = [search(task, name, seed, 0.1, 0.2) for task in "ab" for name in POLICIES for seed in range(2)]
    searches = [one for one in searches if (one.task, one.policy, one.seed) != ("b", "mine", 1)]
    found = curves.whole(searches, list(POLICIES))
    assert {task: [one.seed for one in group["mine"]] for task, group in found.items()} == {
        "a": [0, 1], "b": [0], curves.ALL: [0]
    }  # fmt: skip


def test_differences_are_paired_by_seed():
    group = {
        "uniform": [search("a", "uniform", seed, seed / 10) for seed in range(3)],
        "bandit": [search("a", "bandit", seed, seed / 10 + 0.5) for seed in range(3)],
        "mine": [search("a", "mine", seed, seed / 5) for seed in range(3)],
    }
    told = curves.figures(group)
    assert list(told["differences"]) == ["mine - bandit", "bandit - uniform"]
    certain = told["differences"]["bandit - uniform"]["final"]
    assert (certain.low, certain.mean, certain.high) == pytest.approx((0.5, 0.5, 0.5))
    differing, wanted = told["differences"]["mine - bandit"]["final"], Interval.of([-0.5, -0.4, -0.3])
    assert (differing.low, differing.high) == pytest.approx((wanted.low, wanted.high))
    assert math.exp(0.6) == pytest.approx(1.82, abs=0.01) and "| 1.82x |" in curves.table("a", told)


def test_searches_end_after_enough_children_and_the_command_goes_on(tmp_path, monkeypatch):
    """Real processes, engines and signals around a scripted judge."""
    begun = []

    def command(job, path, chosen):
        begun.append(job.name)
        return [sys.executable, "-m", "tests.support.searching", str(path)]

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(live, "command_of", command)
    words = ["--out", str(tmp_path), "--gpus", "2", "--tasks", "a", "--evaluations", "5", "--seconds", "60"]
    live.run_all(live.arguments().parse_args([*words, "--seeds", "1"]))
    (tmp_path / "a-uniform-1.db").write_text("left by an interruption")
    live.run_all(live.arguments().parse_args([*words, "--seeds", "2"]))
    assert sorted(begun) == ["a-bandit-0", "a-bandit-1", "a-uniform-0", "a-uniform-1"]
    rows = live.rows_of(tmp_path)
    assert len(rows) == 4 and all(one["children"] >= 5 and one["why"] == "enough" for one in rows)
    text = curves.report(tmp_path, rows)
    assert "### a, 2 seeds" in text and "bandit - uniform" in text
    assert len(json.loads((tmp_path / "live.json").read_text())["tasks"]["a"]["policies"]["bandit"]["curve"]) == 6
    assert (tmp_path / "live-a.svg").read_text().count('id="band ') == 2


def test_a_search_does_not_outlive_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "command_of", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    chosen = live.arguments().parse_args(["--out", str(tmp_path)])
    job, slot = live.Job("a", "bandit", 0, ()), live.slots_of(1)[0]
    began = time.monotonic()
    assert live.search(job, tmp_path / "a.db", slot, chosen, threading.Event(), 0.5).startswith("cut off")
    assert time.monotonic() - began < 20
