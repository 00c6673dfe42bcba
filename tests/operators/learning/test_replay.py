"""Replay: what a walk may do, and what it earns."""

from __future__ import annotations

import pytest

from evo_kernel.types import Status
from operators.learning.walk import TreeWalk
from tests.operators.learning.trees import EXP2, HINTS, HOIST, small


def walk(**more) -> TreeWalk:
    tree = small()
    return TreeWalk(tree, tree.roots()[0].id, **more)


def test_a_walk_may_lose_first_and_keeps_the_best() -> None:
    one = walk()
    assert (one.take(EXP2).log_gain, one.best_gain) == pytest.approx((-0.1, 0.0))
    assert one.macro_state.parent.strategies == (EXP2,)
    assert (one.take(HOIST).log_gain, one.best_gain) == pytest.approx((0.5, 0.4))
    assert one.offers == ()


def test_a_failure_is_rolled_back_and_closed_and_told() -> None:
    one = walk()
    root = one.state
    failed = one.take(HOIST)
    assert failed.child is None and one.state == root and failed.log_gain == 0.0
    assert one.offers == (EXP2, HINTS)
    (tried,) = one.macro_state.tried
    assert (tried.strategy, tried.status, tried.log_gain) == (HOIST, Status.WRONG, None)
    with pytest.raises(ValueError, match="hoist"):
        one.take(HOIST)


def test_what_the_tree_does_not_hold_is_not_open() -> None:
    one = walk()
    one.take(HINTS)  # a state whose only offer nobody tried
    assert one.offers == ()
    with pytest.raises(ValueError, match="not open"):
        one.take(EXP2)


def test_steps_end_at_the_horizon_failures_too() -> None:
    one = walk(horizon=2)
    one.take(HOIST)
    assert one.offers
    one.take(EXP2)
    assert one.steps == 2 and one.offers == ()
