"""What is tried next."""

from __future__ import annotations

import numpy as np

from evo_kernel.types import Strategy
from operators.learning.collecting import Frontier
from operators.learning.tree import FAMILIES, HELD_OUT, family_of, split_of


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
