"""Replay: what a walk may do, what it earns, and what a live judge adds."""

from __future__ import annotations

import numpy as np
import pytest

from evo_kernel.types import Status, Strategy
from operators.learning.replay import Overlay, UnseenTransition, Walk, rollout
from operators.learning.reward import RewardSettings, reward_of
from operators.learning.tree import Edge, State, Tree, state_id
from operators.macro.catalogue import STOP
from tests.operators.learning.trees import EXP2, HINTS, HOIST, small, state


def walk(tree: Tree | None = None, **more) -> Walk:
    tree = tree or small()
    return Walk(tree, tree.roots()[0].id, **more)


@pytest.mark.parametrize(
    ("status", "log_gain", "step", "parts"),
    [
        (Status.BUILD_ERROR, 0.0, 0, (-1.0, 0.0, 0.0)),
        (None, 0.0, 0, (-1.0, 0.0, 0.0)),
        (Status.WRONG, 0.0, 3, (0.1, -0.5, 0.0)),
        (Status.PASSED, -0.2, 0, (0.1, 0.5, 0.0)),
        (Status.PASSED, 0.005, 0, (0.1, 0.5, 0.0)),
        (Status.PASSED, 0.3, 0, (0.1, 0.5, 1.0)),
        (Status.PASSED, 0.3, 2, (0.1, 0.5, 0.81)),
    ],
)
def test_the_parts_of_the_reward_are_mtmcs(status, log_gain, step, parts) -> None:
    found = reward_of(RewardSettings(), status, log_gain, step=step)
    assert (found.compile, found.execute, found.gain) == pytest.approx(parts)
    assert found.total == pytest.approx(sum(parts))


def test_as_log_gains_rewards_add_up_to_the_gain_of_the_end() -> None:
    one = walk(reward=RewardSettings.log_gain())
    one.take(EXP2)
    one.take(HOIST)
    assert one.return_ == pytest.approx(one.gain) == pytest.approx(0.4)


def test_a_walk_may_lose_first_and_keeps_the_best() -> None:
    one = walk()
    assert one.take(EXP2).moved and (one.gain, one.best_gain) == pytest.approx((-0.1, 0.0))
    assert one.macro_state.parent.strategies == (EXP2,)
    one.take(HOIST)
    assert (one.gain, one.best_gain) == pytest.approx((0.4, 0.4))
    assert one.open_offers == (STOP,) and not one.over
    one.take(STOP)
    assert one.over
    with pytest.raises(ValueError, match="over"):
        one.take(STOP)


def test_a_failure_is_rolled_back_and_masked_and_told() -> None:
    one = walk()
    root = one.state
    failed = one.take(HOIST)
    assert not failed.moved and one.state == root and failed.reward.total == pytest.approx(-0.4)
    assert one.open_offers == (EXP2, HINTS, STOP)
    (tried,) = one.macro_state.tried
    assert (tried.strategy, tried.status, tried.log_gain) == (HOIST, Status.WRONG, None)
    with pytest.raises(UnseenTransition, match="hoist"):
        one.take(HOIST)


def test_what_the_tree_does_not_hold_is_masked() -> None:
    one = walk()
    one.take(HINTS)  # a state whose only offer nobody tried
    assert one.offers == (EXP2, STOP) and one.mask.tolist() == [False, True]
    with pytest.raises(UnseenTransition, match="does not hold"):
        one.step(0)
    with pytest.raises(UnseenTransition, match="number 7"):
        one.step(7)


def test_steps_end_at_the_horizon_failures_too() -> None:
    one = walk(horizon=2)
    one.take(HOIST)
    one.take(HINTS)
    assert one.over and not one.stopped


class _Judge:
    """Finds a child for exp2 after cache-hints, and counts."""

    def __init__(self, tree: Tree) -> None:
        self.asked: list[tuple[str, str]] = []
        self.problem = next(iter(tree.problems.values()))

    def transition(self, parent: State, strategy: Strategy) -> tuple[Edge, State | None]:
        self.asked.append((parent.id, strategy.key))
        child = state(self.problem, "# found live", 1.0, (*parent.path, strategy), (HOIST,))
        return Edge(parent.id, strategy.key, Status.PASSED, True, child.id, parent.log_us - child.log_us), child


def test_a_live_judge_is_asked_once_for_what_the_tree_does_not_hold() -> None:
    tree = small()
    judge = _Judge(tree)
    overlay = Overlay(judge)
    for _ in range(2):
        one = walk(tree, overlay=overlay)
        one.take(HINTS)
        assert one.mask.tolist() == [True, True]
        one.take(EXP2)
        assert one.gain == pytest.approx(1.0) and one.offers == (HOIST, STOP)
        assert one.macro_state.source.text == "# found live"
    assert judge.asked == [(state_id("rows", "# rows hints"), EXP2.key)]


def test_rollout_asks_only_about_what_may_be_taken() -> None:
    rng = np.random.default_rng(0)
    seen = []

    def choose(macro, offered):
        seen.append(offered)
        return offered[int(rng.integers(len(offered)))]

    for _ in range(20):
        assert rollout(walk(), choose).over
    assert all(offered[-1] == STOP for offered in seen)
