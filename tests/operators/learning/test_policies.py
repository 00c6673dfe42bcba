"""The small transformer, what it learns from a tree with a law in it, its checkpoints, and the policy that uses it."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from evo_kernel.errors import UserError
from evo_kernel.types import Credit, Decision, Strategy
from operators.macro.catalogue import STOP
from tests.operators.learning.planted import FAILS, HEALTHY, SPILLED, planted

torch = pytest.importorskip("torch")

from benchmarks.regret import regret  # noqa: E402
from operators.learning import POLICY, TREE  # noqa: E402
from operators.learning.network import NetworkSettings, PolicyNetwork, load_policy, save_policy  # noqa: E402
from operators.learning.policy_features import EARNED, ActionOutcome, Earnings, Observation  # noqa: E402
from operators.learning.policy_training import (  # noqa: E402
    GAMMA,
    LAMBDA,
    Transition,
    credit,
    imitate,
    ppo,
)
from operators.learning.trained_policy import TrainedPolicy  # noqa: E402
from operators.learning.tree import Tree  # noqa: E402
from operators.learning.values import Decisions, Values, decision, learnable, parted, shortfall  # noqa: E402
from operators.macro.features import context  # noqa: E402
from operators.macro.policies import UniformPolicy  # noqa: E402

TINY = NetworkSettings(width=32, layers=1, heads=2, dropout=0.0)


@pytest.fixture(scope="module")
def tree():
    return planted(problems=8, steps=2, held_out=2)


@pytest.fixture(scope="module")
def imitator(tree):
    torch.manual_seed(0)
    model = PolicyNetwork(TINY)
    steps = imitate(model, tree.only(lambda one: one.split == "train"), np.random.default_rng(0), rate=3e-3, batch=16)
    losses = [loss for loss, _ in itertools.islice(steps, 120)]
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])
    return model.eval()


def roots(tree, split):
    return [decision(tree, root) for root in tree.roots(split)]


def favourite(model, sight: Observation) -> str:
    with torch.inference_mode():
        return sight.offered[int(model([sight])[0][0].argmax())].name


def laws(tree, model):
    """(what the model would do first, what the law of that problem says) of every held-out problem."""
    told = []
    for sight in roots(tree, "held-out"):
        law = SPILLED if sight.context[12] else HEALTHY
        told.append((favourite(model, sight), {name for name, gain in law.items() if gain >= 0.3}))
    return told


# -- the network -----------------------------------------------------------------------------------------------------


def test_a_decision_scores_the_same_alone_and_among_others(tree):
    torch.manual_seed(1)
    model = PolicyNetwork(TINY).eval()
    state = learnable(tree)[0]
    long, short = decision(tree, state), decision(tree, state, [0, 2, 3])
    short = dataclasses.replace(short, path=(ActionOutcome(STOP),))
    with torch.inference_mode():
        both, values = model([long, short])
        alone, value = model([short])
    count = len(short.offered)
    assert torch.allclose(both[1, :count], alone[0], atol=1e-5) and torch.allclose(values[1], value[0], atol=1e-5)
    assert torch.isinf(both[1, count:]).all() and len(long.offered) == both.shape[1]


# -- learning --------------------------------------------------------------------------------------------------------


def test_ppo_earns_more_than_it_did(tree):
    torch.manual_seed(0)
    steps = ppo(
        PolicyNetwork(TINY),
        tree.only(lambda one: one.split == "train"),
        np.random.default_rng(0),
        rate=3e-3,
        warm_up=128,
    )
    earned = [-loss for loss, _ in itertools.islice(steps, 24)]
    assert np.mean(earned[-6:]) > np.mean(earned[:6]) + 0.1


def test_advantages_end_with_the_walk():
    sight = Observation(context=(), offered=())
    row = [Transition(sight, 0, 0.0, 0.5, reward, over) for reward, over in ((0.25, False), (1.0, True), (0.0, False))]
    credit(row, following=2.0)
    last, end = GAMMA * 2.0 - 0.5, 1.0 - 0.5
    first = 0.25 + GAMMA * 0.5 - 0.5 + GAMMA * LAMBDA * end
    assert [one.advantage for one in row] == pytest.approx([first, end, last])


def test_values_look_ahead_and_discount(tree):
    values, root = Values(tree, discount=0.5), tree.roots("train")[0]
    edges = tree.edges(root.id)
    by_name = {edge.strategy.split("@")[0]: edge for edge in edges.values()}
    assert values.action(by_name["hoist"], 8) == pytest.approx(0.5 + 0.5 * 0.3)
    assert values.action(by_name["hoist"], 1) == pytest.approx(0.5)
    assert values.action(by_name["cache-hints"], 8) == pytest.approx(0.5 * 0.5)
    assert values.action(by_name[FAILS], 8) == -values.failure
    worth = values.offers(root, decision(tree, root))
    assert worth[-1] == -values.stop and len(worth) == len(edges) + 1


def test_imitation_carries_the_law_to_problems_that_it_never_saw(tree, imitator):
    assert all(first in wanted for first, wanted in laws(tree, imitator))
    untrained = PolicyNetwork(TINY).eval()
    assert shortfall(imitator, tree.only(lambda one: one.split == "held-out")) < 0.3 * shortfall(
        untrained, tree.only(lambda one: one.split == "held-out")
    )


def test_tasks_that_are_kept_back_and_held_out_are_not_learnt_from(tree):
    learnt, kept = parted(tree)
    assert {one.task for one in learnt.problems.values()} == {f"task{number}" for number in (0, 1, 2, 4, 5)}
    assert {one.task for one in kept.problems.values()} == {"task3"}
    assert all(state.task in learnt.problems for state in learnt.states.values())


def test_decisions_are_drawn_with_and_without_a_past(tree):
    drawn = Decisions(tree, np.random.default_rng(0))
    root = tree.roots("train")[0]
    sights = [drawn.at(root) for _ in range(40)]
    assert {bool(sight.tried) for sight in sights} == {bool(sight.earned) for sight in sights} == {True, False}
    for sight in sights:
        assert sight.offered[-1] == STOP and len(sight.earned) <= EARNED
        assert not {one.strategy.key for one in sight.tried} & {one.key for one in sight.offered}


# -- checkpoints and the policy --------------------------------------------------------------------------------------


def test_a_checkpoint_gives_the_same_scores(tree, imitator, tmp_path):
    size = save_policy(tmp_path / "p.pt", imitator, {"seconds": 1.5})
    model, about = load_policy(tmp_path / "p.pt")
    sights = roots(tree, "held-out")
    with torch.inference_mode():
        assert torch.equal(model(sights)[0], imitator(sights)[0])
    assert about == {"seconds": 1.5} and size == (tmp_path / "p.pt").stat().st_size < 20 * 2**20


BOMB = Path(tempfile.gettempdir()) / "evo-kernel-no-code-runs-from-a-checkpoint"


class Bomb:
    def __reduce__(self):
        return (Path.touch, (BOMB,))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"format": "x"},
        {"model": {}},
        {"settings": {"seen": {}}},
        {"bomb": Bomb()},
    ],
)
def test_other_files_are_refused_with_a_sentence(imitator, tmp_path, change):
    path = tmp_path / "p.pt"
    save_policy(path, imitator, {})
    torch.save(torch.load(path, weights_only=True) | change, path)
    with pytest.raises(UserError, match=r"train policy|update"):
        load_policy(path)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(UserError, match="train policy"):
        load_policy(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_policy(tmp_path / "absent.pt")
    assert not BOMB.exists()


def test_a_trained_policy_has_far_less_regret(tree, imitator):
    def found(make):
        return regret(tree, make, seeds=range(2), episodes=2).interval.mean

    assert found(lambda _: TrainedPolicy(imitator)) < 0.5 * found(lambda _: UniformPolicy())


def test_propensities_are_drawn_from_and_bounded(tree, imitator):
    policy, root = TrainedPolicy(imitator, explore=0.2), tree.roots("held-out")[0]
    offered = (*tree.offered(root.id), STOP)
    state = tree.macro_state(root.id)
    one, two = (policy.choose(state, offered, np.random.default_rng(3)) for _ in range(2))
    assert one == two and one.policy == "trained" and one.offered == offered
    assert sum(one.probabilities) == pytest.approx(1) and min(one.probabilities) >= 0.2 / len(offered) - 1e-9
    with pytest.raises(ValueError, match="explore"):
        TrainedPolicy(imitator, explore=2)


def test_it_sees_what_its_choices_earned(tree, imitator):
    seen: list[Observation] = []

    def watched(sights):
        seen.extend(sights)
        return imitator(sights)

    policy, root = TrainedPolicy(watched), tree.roots("held-out")[0]
    state, offered, rng = tree.macro_state(root.id), (*tree.offered(root.id), STOP), np.random.default_rng(0)
    chosen = policy.choose(state, offered, rng)
    for depth in (1, 0):  # a descendant's share is none of its own
        policy.learn(Credit(1, 1, "mtmc", "x", True, -1.0, -1.0, depth, chosen))
        policy.propensities(state, offered, rng)
    taken = offered[chosen.chosen]
    assert [one.earned for one in seen] == [(), (), (ActionOutcome(taken, -1.0),)]


def test_a_run_corrects_what_the_model_expects(tree, imitator):
    policy, root = TrainedPolicy(imitator), tree.roots("held-out")[0]
    state, offered = tree.macro_state(root.id), tree.offered(root.id)
    before = policy.propensities(state, offered, np.random.default_rng(0))
    likeliest = int(before.argmax())
    chances = np.eye(len(offered))[likeliest]
    decision = Decision("trained", offered, tuple(chances), likeliest, context(state))
    for number in range(12):
        policy.learn(Credit(1, number, "mtmc", "x", True, -1.0, -1.0, 0, decision))
    after = policy.propensities(state, offered, np.random.default_rng(0))
    assert before[likeliest] > 2 / len(offered) and after[likeliest] < before[likeliest] / 3


def test_earnings_are_means_of_the_latest_actions():
    earnings = Earnings()
    for number in range(EARNED + 1):
        earnings.add(Strategy(f"s{number}", "memory"), 0.1)
    earnings.add(Strategy("s1", "memory"), 0.3)
    found = earnings.outcomes
    assert len(found) == EARNED and found[-1] == ActionOutcome(Strategy("s1", "memory"), pytest.approx(0.2))
    assert "s0" not in {one.strategy.name for one in found}


def test_the_policy_that_comes_along_knows_tasks_that_it_never_saw():
    tree, (model, about) = Tree.load(TREE), load_policy(POLICY)
    assert about["tree"] == TREE.name and about["plans"] == tree.plans and POLICY.stat().st_size < 20e6

    def found(make):
        return regret(tree, make, seeds=range(1)).interval.mean

    assert found(lambda _: TrainedPolicy(model)) < 0.7 * found(lambda _: UniformPolicy())
