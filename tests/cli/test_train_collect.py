"""Growing a tree: a real judge on the CPU, a small task, interrupted and taken up again."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evo_kernel.app.train.collector import Grower, judging
from evo_kernel.app.train.packing import grown_in, joined
from evo_kernel.app.train.problems import population_of, problem_names, problem_of_a_tree, problem_task
from evo_kernel.errors import UserError
from evo_kernel.types import CaseKind, Evaluation, Proposal, Recorded, Source, Status, Strategy
from operators.learning.tree import Tree
from populations.population import open_population
from populations.reading import PopulationReader
from tests.operators.learning.trees import CARD, ENVIRONMENT, EXP2, HINTS, HOIST, evaluation
from tests.support.commands import evo

TASK = '''"""Softmax of small rows."""

import torch

CASES = {
    "check": [{"m": 3, "n": 129}],
    "search": {"wide": {"m": 64, "n": 1000}, "tall": {"m": 512, "n": 64}},
}


def inputs(case, generator, device):
    return (torch.randn(case["m"], case["n"], generator=generator, device=device),)


def reference(x):
    return torch.softmax(x, -1)
'''
CONFIG = judging("cpu", tune_plans=1, seed=0, unconfined=True)


def grow(grower: Grower, candidates: int) -> None:
    """Until so many have a verdict, with others in flight."""
    end = time.monotonic() + 120.0
    while grower.population.counters().passed < candidates and time.monotonic() < end:
        assert grower.grow(time.monotonic() + 0.5), "there is more to do than that"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(task, populations) after a slice that was ended in the middle of its work."""
    made = tmp_path_factory.mktemp("grown")
    task, folder = made / "small.py", made / "tree.gz.populations"
    task.write_text(TASK)
    folder.mkdir()
    problem = f"{task}@wide"
    grower = Grower(problem, CONFIG, 2, population_of(folder, problem))
    grow(grower, 2)
    grower.close()
    return task, folder


@pytest.fixture(scope="module")
def taken_up(grown: tuple[Path, Path]) -> tuple[dict[int, Evaluation], dict[int, Evaluation], Path]:
    """Verdicts by candidate before and after a second slice."""
    task, folder = grown
    path = population_of(folder, f"{task}@wide")
    before = verdicts(path)
    grower = Grower(f"{task}@wide", CONFIG, 2, path)
    grow(grower, len(before) + 2)
    assert grower.drain(time.monotonic() + 60.0) and not grower.trouble
    grower.close()
    return before, verdicts(path), folder


def verdicts(path: Path) -> dict[int, Evaluation]:
    with PopulationReader(path) as reader:
        found = {n: reader.candidate(n).evaluations for n in range(1, reader.last_candidate() + 1)}
    return {number: told[0] for number, told in found.items() if len(told) == 1}


def test_a_second_slice_goes_on_where_the_first_was_cut_off(taken_up) -> None:
    before, after, folder = taken_up
    assert before
    assert len(after) > len(before)
    for number, found in before.items():
        assert after[number] == found, "nothing is judged twice"
    (path,) = folder.glob("*.db")
    with PopulationReader(path) as reader:
        assert len(after) == reader.last_candidate(), "what was cut off is judged, too"
        assert len(reader.sessions()) == 2 and reader.state().lineage.roots == [1]
        asked = [(view.parent, view.proposal.strategy) for n in after if (view := reader.candidate(n)).parent]
    assert len(asked) == len(set(asked)), "nothing is tried twice"


def test_the_populations_pack_into_a_tree(taken_up) -> None:
    _, judged, folder = taken_up
    out = folder.with_name("tree.gz")
    ended = evo("train", "collect", "--out", out, "--seconds", "0")
    assert ended.exit_code == 0, ended.output
    tree = Tree.load(out)
    (root,) = tree.roots("train")
    assert (root.task, root.family) == ("small@wide", "small")
    assert [m.case for m in root.evidence.measurements] == ["wide"], "narrowed to one case"
    settings = {(found.source, knobs) for found in judged.values() for _, knobs, _ in found.plans}
    assert tree.candidates == len({found.source for found in judged.values()})
    assert tree.settings == len(settings) > tree.candidates
    assert f"{tree.settings:,} knob settings" in ended.output and "small@wide" in ended.output
    edges = tree.edges(root.id)
    assert edges and set(edges) <= {one.key for one in root.offers}
    passed = [edge for edge in edges.values() if edge.child]
    assert passed and any(edge.witnessed for edge in passed)
    for edge in passed:
        child = tree.states[str(edge.child)]
        assert edge.log_gain == pytest.approx(root.log_us - child.log_us, abs=1e-4) and child.depth == 1
        assert child.text != root.text and child.evidence.features is not None


def test_another_environment_is_refused(taken_up, tmp_path: Path) -> None:
    _, _, folder = taken_up
    (path,) = folder.glob("*.db")
    shutil.copy(path, tmp_path)
    with PopulationReader(path) as reader:
        elsewhere = replace(reader.sessions()[0].environment, kind="measured")
    with contextlib.closing(sqlite3.connect(tmp_path / path.name)) as connection, connection:
        connection.execute("UPDATE environments SET kind = 'measured', key = ?", (elsewhere.key,))
    for _ in range(2):
        with pytest.raises(UserError, match="another --out"):
            Grower(f"{folder.parent / 'small.py'}@wide", CONFIG, 2, tmp_path / path.name)


# -- populations to a tree -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_population(
        tmp_path / "rows.db", task=CARD, task_identity="rows", environment=ENVIRONMENT, seed=0
    ) as population:
        population.store_baselines("m8-n16", {"eager": 100.0}, {})

        def told(parent: int, strategy: Strategy, text: str, log_us: float, status: Status = Status.PASSED) -> None:
            proposal = Proposal(Source(text), "collect", strategy)
            judged(population.record(population.ask(parent=parent), proposal), log_us, status)

        def judged(recorded: Recorded, log_us: float, status: Status = Status.PASSED) -> None:
            text = recorded.proposal.source.text
            plans = (("c", (), text), ("c", (("BLOCK", 64),), "shared"))
            found = replace(evaluation(text, log_us), plans=plans)
            failed = replace(found, status=status, reason="it differs", measurements=(), score=None)
            population.tell(recorded, found if status is Status.PASSED else failed)

        judged(population.plant(Source("root")), 2.0)
        told(1, EXP2, "a", 1.5)
        told(2, HINTS, "b", 1.0)
        told(1, HINTS, "b", 1.0)
        told(1, HOIST, "bad", 0.0, Status.WRONG)
        population.record(population.ask(parent=3), Proposal(Source("in flight"), "collect", HOIST))
        population.store_baselines("m8-n16", {"torch.compile": 50.0}, {})
    return tmp_path


def test_candidates_become_a_tree(folder: Path) -> None:
    tree = joined(grown_in(folder, ()), "the command")
    by_text = {one.text: one for one in tree.states.values()}
    assert set(by_text) == {"root", "a", "b"}
    assert {text: (one.depth, one.path) for text, one in by_text.items()} == {
        "root": (0, ()), "a": (1, (EXP2,)), "b": (1, (HINTS,)),
    }  # fmt: skip
    edges = tree.edges(by_text["root"].id)
    assert edges[EXP2.key].child == by_text["a"].id and edges[EXP2.key].log_gain == pytest.approx(0.5)
    assert (edges[HOIST.key].status, edges[HOIST.key].child) == ("wrong", None)
    assert set(tree.edges(by_text["a"].id)) == {HINTS.key} and not tree.edges(by_text["b"].id)
    assert tree.best_gain(by_text["root"].id) == pytest.approx(1.0, abs=1e-4)
    assert (tree.candidates, tree.settings, tree.plans, tree.command) == (4, 8, 5, "the command")


def test_scores_and_features_are_against_baselines_that_came_later(folder: Path) -> None:
    (part,) = grown_in(folder, ())
    (root,) = part.tree.roots()
    assert root.evidence.measurements[0].baselines_us == {"eager": 100.0, "torch.compile": 50.0}
    assert root.evidence.score == pytest.approx(50.0 / np.exp(2.0), rel=1e-4)


def test_nothing_to_pack_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing was judged"):
        evo("train", "collect", "--out", tmp_path / "tree.gz", "--seconds", "0")


def test_problems_of_a_task(grown) -> None:
    task = str(grown[0])
    assert problem_names(task, narrowed=True) == [task, f"{task}@wide", f"{task}@tall"]
    assert problem_names(task, narrowed=False) == [task]
    assert problem_names("attention_backward", narrowed=True)[0] == "attention_backward"
    one = problem_task(f"{task}@tall")
    assert [case.name for case in one.cases_of(CaseKind.SEARCH)] == ["tall"] and one.name == "small@tall"
    assert one.cases_of(CaseKind.CHECK) == problem_task(task).cases_of(CaseKind.CHECK)


def test_benchmarks_problems_are_refused(tmp_path: Path) -> None:
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    (level / "1_Twice.py").write_text(
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n\n\n"
        "def get_inputs():\n    return [torch.rand(64, 128)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    with pytest.raises(UserError, match="benchmark's problem"):
        problem_of_a_tree(f"kernelbench:{tmp_path}/level1/1")
