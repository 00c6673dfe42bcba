"""What is tried next, and how rows become a tree."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from evo_kernel.types import Strategy
from operators.learning import collecting
from operators.learning.collecting import Frontier
from operators.learning.tree import FAMILIES, HELD_OUT, evaluation_data, family_of, split_of, state_id, strategy_data
from tests.operators.learning.trees import CARD, ENVIRONMENT, EXP2, HINTS, HOIST, evaluation


def offers(*names: str) -> tuple[Strategy, ...]:
    return tuple(Strategy(name, "algorithm") for name in names)


def drained(frontier: Frontier) -> list[tuple[str, str]]:
    found = []
    while (job := frontier.next()) is not None:
        found.append((job[0], job[1].name))
    return found


def frontier(**more) -> Frontier:
    return Frontier(np.random.default_rng(0), **more)


def test_every_action_of_every_state_is_handed_out_once_the_roots_first() -> None:
    one = frontier()
    one.add("root", 2.0, 0, offers("a", "b", "c"))
    one.add("deep", 1.0, 3, offers("a", "b"))
    one.add("child", 3.0, 1, offers("a"))
    found = drained(one)
    assert {name for _, name in found[:3]} == {"a", "b", "c"} and {state for state, _ in found[:3]} == {"root"}
    assert sorted(found[3:]) == [("child", "a"), ("deep", "a"), ("deep", "b")]
    assert one.next() is None
    one.add("late", 3.0, 2, offers("z"))
    assert drained(one) == [("late", "z")]


def test_each_way_picks_its_state() -> None:
    def first(way: str) -> set[str]:
        found = set()
        for seed in range(10):
            one = Frontier(np.random.default_rng(seed), shares={way: 1.0})
            one.add("fast", 1.0, 5, offers("a"))
            one.add("shallow", 3.0, 1, offers("a"))
            one.add("shallow and slow", 4.0, 1, offers("a"))
            found.add(drained(one)[0][0])
        return found

    assert first("breadth") == {"shallow"} and first("greedy") == {"fast"}
    assert first("uniform") == {"fast", "shallow", "shallow and slow"}


def test_nothing_is_tried_beyond_the_horizon_and_states_come_nearer() -> None:
    one = frontier(horizon=2)
    one.add("far", 1.0, 2, offers("a"))
    assert one.next() is None
    one.add("far", 1.0, 1, offers("b"))
    assert one.depth("far") == 1 and drained(one) == [("far", "a")]


def test_families_hold_every_built_in_task_and_are_split_whole() -> None:
    from evo_kernel.tasks.loading import builtin_names

    listed = [task for tasks in FAMILIES.values() for task in tasks]
    assert sorted(listed) == sorted(builtin_names())
    held = [task for task in listed if split_of(family_of(task)) == "held-out"]
    assert len(held) >= 3 and len(HELD_OUT) >= 2 and all(family_of(task) in HELD_OUT for task in held)
    assert family_of("my_own") == "my_own" and split_of("my_own") == "train"


# -- rows to a tree --------------------------------------------------------------------------------------------------


def candidate(text: str, log_us: float, offered: tuple[Strategy, ...] = (), **more) -> dict:
    found = evaluation(text, log_us)
    return {
        "kind": "candidate", "sha": f"sha of {text}", "status": "passed", "reason": "", "text": text, "depth": 0,
        "log_us": log_us, "evaluation": evaluation_data(found), "offers": [strategy_data(one) for one in offered],
        "plans": [["c", text], ["c", "shared"]], "settings": 2,
    } | more  # fmt: skip


def edge(parent: str, strategy: Strategy, sha: str | None) -> dict:
    return {"kind": "edge", "parent": state_id("rows", parent), "strategy": strategy_data(strategy), "sha": sha}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        {
            "kind": "problem",
            "name": "rows",
            "task": "rows",
            "family": "row",
            "split": "train",
            "card": dataclasses.asdict(CARD),
        },
        {"kind": "environment", "key": ENVIRONMENT.key, "environment": asdict(ENVIRONMENT)},
        {"kind": "baselines", "case": "m8-n16", "us": {"eager": 100.0}},
        candidate("root", 2.0, (EXP2, HINTS, HOIST), root=True),
        candidate("a", 1.5, (HINTS,)),
        edge("root", EXP2, "sha of a"),
        candidate("b", 1.0),
        edge("root", HINTS, "sha of b"),
        edge("a", HINTS, "sha of b"),
        candidate("wrong", 0.0) | {"status": "wrong", "sha": "bad"},
        edge("root", HOIST, "bad"),
        candidate("nobody leads here", 0.1),
        edge("b", EXP2, None),
        edge("b", HOIST, "was in flight when the run was killed"),
        {"kind": "baselines", "case": "m8-n16", "us": {"torch.compile": 50.0}},
        {"kind": "slice", "seconds": 12.0},
    ]
    text = "".join(collecting.line(row) for row in rows)
    (tmp_path / "rows.jsonl").write_text(text + '{"kind": "candidate", "sha": "to')
    return tmp_path


def test_rows_become_a_tree(folder: Path) -> None:
    tree = collecting.assemble(folder, "the command")
    by_text = {one.text: one for one in tree.states.values()}
    assert set(by_text) == {"root", "a", "b"}
    assert {text: (one.depth, one.path) for text, one in by_text.items()} == {
        "root": (0, ()), "a": (1, (EXP2,)), "b": (1, (HINTS,)),
    }  # fmt: skip
    edges = tree.edges(by_text["root"].id)
    assert edges[EXP2.key].child == by_text["a"].id and edges[EXP2.key].log_gain == pytest.approx(0.5)
    assert (edges[HOIST.key].status, edges[HOIST.key].child) == ("wrong", None)
    assert set(tree.edges(by_text["b"].id)) == {EXP2.key} and tree.edges(by_text["b"].id)[EXP2.key].status is None
    assert tree.best_gain(by_text["root"].id) == pytest.approx(1.0, abs=1e-4)
    assert (tree.candidates, tree.settings, tree.plans, tree.command) == (5, 10, 6, "the command")


def test_scores_and_features_are_against_baselines_that_came_later(folder: Path) -> None:
    tree = collecting.assemble(folder)
    (root,) = tree.roots()
    assert root.evidence.measurements[0].baselines_us == {"eager": 100.0, "torch.compile": 50.0}
    assert root.evidence.score == pytest.approx(50.0 / np.exp(2.0), rel=1e-4)


def test_a_torn_line_is_left_out(folder: Path) -> None:
    path = folder / "rows.jsonl"
    assert not path.read_text().endswith("\n")
    found = collecting.read_rows(path)
    assert (len(found.candidates), found.seconds, found.slices) == (5, 12.0, 1)
