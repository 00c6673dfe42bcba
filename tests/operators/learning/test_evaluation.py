"""Regret against an oracle that a hand can compute."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.regret import Interval, credit_of, main, regret, table, walked
from evo_kernel.types import Credit, Decision, Strategy
from operators.learning.network import PolicyNetwork, save_policy
from operators.learning.tree import Tree
from operators.learning.walk import TreeWalk
from operators.macro.bandit import BanditPolicy
from operators.macro.policies import UniformPolicy, draw
from tests.operators.learning.planted import planted
from tests.operators.learning.trees import EXP2, HINTS, HOIST, joined, small
from tests.support.chat_server import Answer, ChatServer


class Fixed:
    """Prefers strategies in an order; `share` of the probability goes to the first that is offered."""

    name = "fixed"

    def __init__(self, *order: Strategy, share: float = 1.0) -> None:
        self._order, self._share = order, share

    def choose(self, state, offered, rng) -> Decision:
        first = next(one for one in (*self._order, *offered) if one in offered)
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
    found = regret(tree, lambda _: Fixed(HINTS))
    assert found.best == pytest.approx(0.4) and found.reached.mean == pytest.approx(0.2)
    assert set(found.by_seed[0]) == {"held", "too"}


def test_uniforms_regret_is_what_enumeration_says(tree: Tree) -> None:
    """Half of the walks take exp2 first, with or without a failed hoist before it, and then go on to hoist; the others
    take hints, where nothing is known."""
    found = regret(tree, lambda _: UniformPolicy(), seeds=range(30), episodes=40).interval
    assert found.low < 0.4 - (0.5 * 0.4 + 0.5 * 0.2) < found.high
    assert found.high - found.low < 0.05


def test_a_bandit_learns_within_a_problem() -> None:
    tree = joined(small(), small("held", "held-out", "loss"))
    uniform, bandit, again = (
        regret(tree, make, "p", seeds=range(3), episodes=15, steps=1)
        for make in (
            lambda _: UniformPolicy(),
            lambda _: BanditPolicy(),
            lambda _: BanditPolicy(),
        )
    )
    assert bandit.less(uniform).mean < -0.02
    assert bandit == again, "the same seeds give the same regret"
    text = table([uniform, bandit])
    assert text.count("\n") == 3 and "1.00 [" in text and "| p |" in text


def test_intervals() -> None:
    assert Interval.of([1.0, 3.0]).high == pytest.approx(2.0 + 12.706, abs=1e-3)
    assert Interval.of([2.0] * 40).low == 2.0 and math.isinf(Interval.of([1.0]).high)


def test_failures_and_what_does_not_show_are_no_evidence_for_a_strategy() -> None:
    one = TreeWalk(small(), small().roots()[0].id)

    def taken(strategy: Strategy) -> Credit:
        decision = Fixed(strategy).choose(one.macro_state, one.offers, np.random.default_rng(0))
        return credit_of(one.take(strategy), decision)

    failed = taken(HOIST)
    assert (failed.witnessed, failed.reward, failed.strategy) == (False, 0.0, "other")
    passed = taken(HINTS)
    assert passed.witnessed and passed.reward == pytest.approx(0.2) and passed.strategy == "cache-hints"


def test_a_policy_is_told_of_every_step(tree: Tree) -> None:
    told: list[Credit] = []

    class Listening(UniformPolicy):
        def learn(self, credit: Credit) -> None:
            told.append(credit)

    one = walked(tree, tree.roots()[0].id, Listening(), np.random.default_rng(3))
    assert len(told) == one.steps


def test_the_benchmark_holds_policies_against_uniform_choice_and_the_bandit(tmp_path) -> None:
    planted(problems=4, steps=1, held_out=2).save(tmp_path / "tree.gz")
    save_policy(tmp_path / "p.pt", PolicyNetwork(), {})
    words = ["--tree", tmp_path / "tree.gz", "--policy", tmp_path / "p.pt", "--seeds", 2, "--episodes", 1]
    good = Answer(json.dumps({"why": "it is", "choice": 1, "confidence": 0.8}))
    told = [good, good, good, Answer("I would rather not say.")]  # 2 seeds of 2 problems of a step
    with ChatServer(told) as server:
        ended = CliRunner().invoke(main, list(map(str, [*words, "--model", "some", "--base-url", server.url])))
    said = ended.stdout
    assert ended.stderr.count("an even choice") == 1
    assert "held-out problems of tree.gz: 2; times: modeled for an H200 (sm_90)" in said
    rows = [line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["uniform", "bandit", "p", "some"]
    assert rows[3][3] == "0.0000 [0.0000, 0.0000]", "the bandit beside itself"
