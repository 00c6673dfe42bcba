"""The tree of transitions: what is saved is what is loaded, and gains are those of its paths."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.errors import UserError
from operators.learning.tree import Tree, state_id
from tests.operators.learning.trees import EXP2, HINTS, HOIST, joined, small


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    tree = joined(small(), small("other", "held-out", "elementwise"))
    size = tree.save(tmp_path / "a.gz")
    back = Tree.load(tmp_path / "a.gz")
    assert size == (tmp_path / "a.gz").stat().st_size
    assert (back.problems, back.transitions, back.environments) == (tree.problems, tree.transitions, tree.environments)
    assert (back.plans, back.command) == (80, "joined")
    for name, one in tree.states.items():
        loaded = back.states[name]
        assert replace(loaded, evidence=one.evidence) == one
        assert loaded.evidence.knobs == one.evidence.knobs
        assert loaded.evidence.features == one.evidence.features
        assert loaded.evidence.log_us == pytest.approx(one.evidence.log_us, rel=1e-5)
    assert back.save(tmp_path / "b.gz") == size
    assert Tree.load(tmp_path / "b.gz").states == back.states


def test_equal_texts_are_stored_once(tmp_path: Path) -> None:
    tree = small()
    texts = {one.text for one in tree.states.values()}
    tree.save(tmp_path / "tree.gz")
    rows = [json.loads(line) for line in gzip.decompress((tmp_path / "tree.gz").read_bytes()).splitlines()]
    assert sorted(row["text"] for row in rows if row.get("kind") == "text") == sorted(texts)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nonsense", "no tree of transitions"),
        (bytes(2**28 + 1), "more than"),
        (b'{"format": "something", "version": 1}\n', "something"),
        (b'{"format": "evo-kernel transitions", "version": 99}\n', "version 99"),
        (b'{"format": "evo-kernel transitions", "version": 1, "plans": 0, "settings": 0, "candidates": 0, "command": ""}\n{"kind": "x"}\n', "kind 'x'"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "tree.gz").write_bytes(data if data == b"nonsense" else gzip.compress(data))
    with pytest.raises(UserError, match=said):
        Tree.load(tmp_path / "tree.gz")
    with pytest.raises(UserError, match="cannot be read"):
        Tree.load(tmp_path / "missing.gz")


def test_the_best_gain_may_go_through_a_loss() -> None:
    tree = small()
    (root,) = tree.roots("train")
    assert tree.roots("held-out") == ()
    assert [round(tree.best_gain(root.id, steps), 6) for steps in (0, 1, 2, 8)] == [0.0, 0.2, 0.4, 0.4]
    leaf = state_id("rows", "# rows exp2 hoist")
    assert tree.best_gain(leaf) == 0.0


def test_circles_end() -> None:
    tree = small()
    (root,) = tree.roots()
    best = tree.states[state_id("rows", "# rows exp2 hoist")]
    back = replace(tree.edges(root.id)[EXP2.key], parent=best.id, child=root.id, log_gain=best.log_us - root.log_us)
    tree = replace(tree, transitions={**tree.transitions, best.id: {EXP2.key: back}}, _best={})
    assert tree.best_gain(root.id, 8) == pytest.approx(0.4)


def test_a_policy_sees_the_source_its_evidence_and_the_way_here() -> None:
    tree = small()
    deep = state_id("rows", "# rows exp2 hoist")
    seen = tree.macro_state(deep)
    assert seen.source.text == "# rows exp2 hoist" and seen.parent.strategies == (EXP2, HOIST)
    assert seen.parent.evaluation is tree.states[deep].evidence and seen.task is tree.problems["rows"].card
    assert tree.macro_state(deep, (HINTS,)).parent.strategies == (HINTS,)


def test_splits_share_nothing() -> None:
    tree = joined(small(), small("other", "held-out", "elementwise"))
    held = tree.only(lambda one: one.split == "held-out")
    assert {one.task for one in held.states.values()} == {"other"} == set(held.problems)
    assert set(held.transitions) <= set(held.states) and len(held.states) == 4
