"""Growing a tree: a real judge on the CPU, a small task, interrupted and taken up again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evo_kernel.app.train.collector import Grower, Want
from evo_kernel.app.train.problems import problem_names, problem_of_a_tree, problem_task, rows_of
from evo_kernel.errors import UserError
from evo_kernel.types import CaseKind
from operators.learning import collecting
from operators.learning.tree import Tree
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
WANT = Want("cpu", tune_plans=1, threads=2, unconfined=True)


def grow(grower: Grower, candidates: int) -> None:
    """Until there are so many, with others in flight."""
    end = time.monotonic() + 120.0
    while len(grower.rows.candidates) < candidates and time.monotonic() < end:
        assert grower.grow(time.monotonic() + 0.5), "there is more to do than that"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(task, rows) after a slice that was ended in the middle of its work, and its file torn."""
    made = tmp_path_factory.mktemp("grown")
    task, folder = made / "small.py", made / "tree.gz.rows"
    task.write_text(TASK)
    folder.mkdir()
    problem = f"{task}@wide"
    grower = Grower(problem, WANT, rows_of(folder, problem), {})
    grow(grower, 2)
    grower.close(6.0)
    with rows_of(folder, problem).open("a") as file:
        file.write('{"kind": "candi')
    return task, folder


@pytest.fixture(scope="module")
def taken_up(grown: tuple[Path, Path]) -> tuple[collecting.CollectedRows, collecting.CollectedRows, Path]:
    """Rows before and after a second slice."""
    task, folder = grown
    problem = f"{task}@wide"
    before = collecting.read_rows(rows_of(folder, problem))
    grower = Grower(problem, WANT, rows_of(folder, problem), before.baselines)
    grow(grower, len(before.candidates) + 2)
    assert grower.drain(time.monotonic() + 60.0) and not grower.trouble
    grower.close(5.0)
    return before, collecting.read_rows(rows_of(folder, problem)), folder


def test_a_second_slice_goes_on_where_the_first_was_cut_off(taken_up) -> None:
    before, after, _ = taken_up
    assert before.candidates
    assert len(after.candidates) > len(before.candidates)
    for sha, row in before.candidates.items():
        assert after.candidates[sha] == row, "nothing is judged twice"
    shas = [row["sha"] for row in after.candidates.values()]
    assert len(shas) == len(set(shas)) and sum(bool(row.get("root")) for row in after.candidates.values()) == 1
    assert after.slices == 2 and after.seconds == 11.0


def test_the_rows_pack_into_a_tree(taken_up) -> None:
    _, rows, folder = taken_up
    out = folder.with_name("tree.gz")
    ended = evo("train", "collect", "--out", out, "--seconds", "0")
    assert ended.exit_code == 0, ended.output
    tree = Tree.load(out)
    (root,) = tree.roots("train")
    assert (root.task, root.family) == ("small@wide", "small")
    assert [m.case for m in root.evidence.measurements] == ["wide"], "narrowed to one case"
    assert tree.candidates == len(rows.candidates) and tree.settings == rows.settings > tree.candidates
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
    (rows,) = folder.glob("*.jsonl")
    text = rows.read_text().replace('"modeled"', '"measured"').replace('"key":"', '"key":"0')
    (tmp_path / rows.name).write_text(text.replace('"environment":"', '"environment":"0'))
    with pytest.raises(UserError, match="another --out"):
        Grower(f"{folder.parent / 'small.py'}@wide", WANT, tmp_path / rows.name, {})


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
