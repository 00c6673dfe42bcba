"""Regret against an oracle that a hand can compute."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from evo_kernel.types import Credit, Decision, Strategy
from operators.learning.evaluation import Interval, credit_of, regret, table, walked, warmed
from operators.learning.replay import Walk
from operators.learning.tree import Tree
from operators.macro.bandit import BanditPolicy
from operators.macro.catalogue import STOP
from operators.macro.policies import UniformPolicy, draw
from tests.operators.learning.trees import EXP2, HINTS, HOIST, joined, small

STOPS = partial(walked, stop=True)


class Fixed:
    """Prefers strategies in an order; `share` of the probability goes to the first that is offered."""

    name = "fixed"

    def __init__(self, *order: Strategy, share: float = 1.0) -> None:
        self._order, self._share = order, share

    def choose(self, state, offered, rng) -> Decision:
        first = next(one for one in (*self._order, STOP, *offered) if one in offered)
        rest = (1 - self._share) / max(len(offered) - 1, 1)
        chances = np.array([self._share if one == first else rest for one in offered])
        return draw(self.name, offered, chances / chances.sum(), (1.0,) * 17, rng)

    def learn(self, credit: Credit) -> None: ...


@pytest.fixture(scope="module")
def tree() -> Tree:
    return joined(small(), small("held", "held-out", "loss"), small("too", "held-out", "elementwise", shift=1.0))


def test_regret_is_the_oracles_gain_less_the_best_on_the_way(tree: Tree) -> None:
    assert regret(tree, lambda _: Fixed(EXP2, HOIST)).seeds == pytest.approx([0.0] * 5)
    assert regret(tree, lambda _: Fixed(HINTS)).seeds == pytest.approx([0.2] * 5)
    assert regret(tree, lambda _: Fixed(HOIST, HINTS), steps=2).seeds == pytest.approx([0.2] * 5), "a failure is a step"
    stays = regret(tree, lambda _: Fixed(STOP), walk=STOPS)
    assert stays.seeds == pytest.approx([0.4] * 5) and stays.best == pytest.approx(0.4)
    assert set(stays.by_problem) == {"held", "too"}
    assert stays.reached.mean == pytest.approx(0.0)


def test_uniforms_regret_is_what_enumeration_says(tree: Tree) -> None:
    """P(reaching hoist after exp2): exp2 first (of exp2, hints, hoist, stop), or after a failed hoist; then hoist, or
    after a failed hint."""
    begun = 1 / 4 + 1 / 4 * 1 / 3  # exp2; or hoist fails and exp2 of what is left
    hinted = begun  # the same for hints, which gain 0.2
    through = 1 / 3 + 1 / 3 * 1 / 2  # hoist; or hints cannot be carried out, and hoist of what is left
    expected = 0.4 - (begun * through * 0.4 + hinted * 0.2)
    found = regret(tree, lambda _: UniformPolicy(), seeds=range(30), episodes=40, walk=STOPS)
    assert found.interval.low < expected < found.interval.high
    assert found.interval.high - found.interval.low < 0.05
    unstopped = regret(tree, lambda _: UniformPolicy(), seeds=range(30), episodes=40).interval
    assert unstopped.low < 0.4 - (0.5 * 0.4 + 0.5 * 0.2) < unstopped.high, "half go either way, and go on"


def test_a_bandit_learns_within_a_problem_and_before() -> None:
    tree = joined(small(), small("held", "held-out", "loss"))
    uniform, bandit, trained, again = (
        regret(tree, make, seeds=range(3), episodes=15, steps=1)
        for make in (
            lambda _: UniformPolicy(),
            lambda _: BanditPolicy(),
            warmed(lambda _: BanditPolicy(), tree, 10),
            lambda _: BanditPolicy(),
        )
    )
    assert bandit.less(uniform).mean < -0.02 and trained.less(uniform).mean < -0.02
    assert bandit == again, "the same seeds give the same regret"
    text = table([uniform, bandit])
    assert text.count("\n") == 3 and "1.00 [" in text and "bandit" in text


def test_intervals() -> None:
    assert Interval.of([1.0, 3.0]).high == pytest.approx(2.0 + 12.706)
    assert Interval.of([2.0] * 40).low == 2.0 and math.isinf(Interval.of([1.0]).high)


def test_failures_and_what_does_not_show_are_no_evidence_for_a_strategy() -> None:
    one = Walk(small(), small().roots()[0].id)
    decision = Fixed(HOIST).choose(one.macro_state, one.open_offers, np.random.default_rng(0))
    failed = credit_of(one.take(HOIST), decision)
    assert (failed.witnessed, failed.reward, failed.strategy) == (False, 0.0, "other")
    passed = credit_of(one.take(HINTS), decision)
    assert passed.witnessed and passed.reward == pytest.approx(0.2) and passed.strategy == "cache-hints"


def test_a_policy_is_told_of_every_step(tree: Tree) -> None:
    told: list[Credit] = []

    class Listening(UniformPolicy):
        def learn(self, credit: Credit) -> None:
            told.append(credit)

    one = walked(tree, tree.roots()[0].id, Listening(), np.random.default_rng(3))
    assert len(told) == len(one.taken)
