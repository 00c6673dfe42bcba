"""Policies: probabilities that hold, learning that beats chance, state that is made by `learn` alone."""

import dataclasses
import threading

import numpy as np
import pytest

from evo_kernel.types import Strategy, Tried
from operators.macro.bandit import BanditPolicy
from operators.macro.catalogue import CATALOGUE
from operators.macro.features import DESIGN_SIZE, FEATURES, MacroState, context, design
from operators.macro.policies import Policy, UniformPolicy, untried
from tests.operators.support_search import TASK, credit, relative, seed_of

NAMES = ("one-pass-row", "rows-per-program", "hoist", "drop-masks", "cache-hints", "split-k")
OFFERED = tuple(Strategy(name, CATALOGUE[name].family, "kernel a") for name in NAMES)
SOFTMAX, MATMUL = (
    MacroState(TASK, relative(1, source), source) for source in (seed_of("softmax"), seed_of("matmul"))
)  # fmt: skip
POLICIES = (UniformPolicy, BanditPolicy)


def live(policy, means, rounds, seed=1, state=SOFTMAX):
    """Rewards earned over `rounds` of a bandit with these means (by name) and noise 0.1."""
    rng, earned, credits = np.random.default_rng(seed), [], []
    for _ in range(rounds):
        decision = policy.choose(state, OFFERED, rng)
        reward = means[OFFERED[decision.chosen].name] + 0.1 * rng.standard_normal()
        credits.append(credit(decision, reward))
        policy.learn(credits[-1])
        earned.append(reward)
    return np.array(earned), credits


MEANS = dict.fromkeys(NAMES, -0.05) | {"hoist": 0.4}


@pytest.mark.parametrize("make", POLICIES)
def test_probabilities_sum_to_one_and_leave_nothing_out(make):
    policy = make()
    assert isinstance(policy, Policy)
    for seed in range(20):
        decision = policy.choose(SOFTMAX, OFFERED, np.random.default_rng(seed))
        assert sum(decision.probabilities) == pytest.approx(1.0)
        assert min(decision.probabilities) > 0
        assert decision.offered == OFFERED and len(decision.context) == len(FEATURES)


@pytest.mark.parametrize("make", POLICIES)
def test_propensities_match_how_often_each_offer_is_chosen(make):
    policy = make()
    live(policy, MEANS | {"drop-masks": 0.35}, 12)
    rng = np.random.default_rng(3)
    decisions = [policy.choose(SOFTMAX, OFFERED, rng) for _ in range(1500)]
    stated = np.mean([decision.probabilities for decision in decisions], axis=0)
    found = np.bincount([decision.chosen for decision in decisions], minlength=len(OFFERED)) / len(decisions)
    assert np.abs(stated - found).max() < 4 * 0.5 / np.sqrt(len(decisions))


def test_the_bandit_beats_uniform():
    learnt, _ = live(BanditPolicy(), MEANS, 200)
    chance, _ = live(UniformPolicy(), MEANS, 200)
    assert learnt[100:].mean() > 0.3 > chance[100:].mean() + 0.15


def test_a_fusion_that_saves_traffic_comes_first_until_it_does_not_pay():
    fusion = Strategy("fuse-producer", CATALOGUE["fuse-producer"].family, "kernel a -> b", (("buffer", "sum"),))
    offered = (*OFFERED, fusion)
    state = dataclasses.replace(SOFTMAX, expected_gains={fusion.key: 0.5})
    policy, rng = BanditPolicy(), np.random.default_rng(0)
    blind = policy.choose(SOFTMAX, offered, rng).probabilities[-1]
    told = policy.choose(state, offered, rng).probabilities[-1]
    assert blind < 0.25 and told > 2 * blind
    for _ in range(12):
        decision = policy.choose(state, offered, rng)
        decision = dataclasses.replace(decision, chosen=len(OFFERED))
        policy.learn(credit(decision, -0.2))
    assert policy.choose(state, offered, rng).probabilities[-1] < blind


def test_the_bandit_learns_what_pays_where():
    policy, rng = BanditPolicy(), np.random.default_rng(5)
    for turn in range(300):
        state = (SOFTMAX, MATMUL)[turn % 2]
        best = ("one-pass-row", "split-k")[turn % 2]
        decision = policy.choose(state, OFFERED, rng)
        policy.learn(credit(decision, 0.5 if OFFERED[decision.chosen].name == best else -0.1))
    for state, best in ((SOFTMAX, "one-pass-row"), (MATMUL, "split-k")):
        decision = policy.choose(state, OFFERED, rng)
        assert NAMES[int(np.argmax(decision.probabilities))] == best


def test_the_bandit_forgets():
    policy = BanditPolicy(discount=0.95)
    live(policy, MEANS, 150)
    earned, _ = live(policy, dict.fromkeys(NAMES, -0.05) | {"split-k": 0.4}, 300, seed=2)
    assert earned[-100:].mean() > 0.2


def test_long_histories_do_not_overflow():
    policy = BanditPolicy(discount=0.9)
    decision = policy.choose(SOFTMAX, OFFERED, np.random.default_rng(0))
    for _ in range(3000):
        policy.learn(credit(decision, 0.3))
    chances = policy.propensities(context(SOFTMAX), OFFERED, np.random.default_rng(1))
    assert np.isfinite(chances).all() and chances.argmax() == decision.chosen


def test_replay_of_the_credits_makes_the_same_policy():
    policy = BanditPolicy()
    _, credits = live(policy, MEANS, 60)
    again = BanditPolicy()
    for entry in credits:
        again.learn(entry)
    for seed in range(5):
        first, second = (p.choose(MATMUL, OFFERED, np.random.default_rng(seed)) for p in (policy, again))
        assert first == second


def chance_after(*credits_of):
    policy = BanditPolicy()
    decision = policy.choose(SOFTMAX, OFFERED, np.random.default_rng(0))
    for make in credits_of * 20:
        policy.learn(make(decision))
    chances = policy.propensities(decision.context, OFFERED, np.random.default_rng(1))
    return chances[decision.chosen]


def test_only_witnessed_gains_count_but_failures_always_do():
    untouched = chance_after()
    assert chance_after(lambda d: credit(d, 0.5)) > 0.8
    assert chance_after(lambda d: credit(d, 0.5, witnessed=False)) < untouched + 0.1
    assert chance_after(lambda d: credit(d, -0.5, witnessed=False)) < untouched / 2


def test_a_descendants_gain_adds_to_the_first_reward():
    own = chance_after(lambda d: credit(d, -0.05))
    both = chance_after(lambda d: credit(d, -0.05), lambda d: credit(d, 0.4, depth=1))
    assert both > 0.7 > own + 0.4


def test_what_cannot_be_learnt_from_is_passed_over():
    policy = BanditPolicy()
    decision = policy.choose(SOFTMAX, OFFERED, np.random.default_rng(0))
    before = policy.propensities(decision.context, OFFERED, np.random.default_rng(1))
    policy.learn(dataclasses.replace(credit(decision, 0.5), decision=None))
    policy.learn(credit(dataclasses.replace(decision, context=()), 0.5))
    policy.learn(credit(decision, float("nan")))
    assert (policy.propensities(decision.context, OFFERED, np.random.default_rng(1)) == before).all()


def test_many_regions_of_one_strategy_share_its_chance():
    regions = tuple(Strategy("hoist", "reordering", f"kernel a, loop {n}") for n in range(9))
    chances = BanditPolicy(explore=0.0).propensities(
        context(SOFTMAX), (*regions, OFFERED[0]), np.random.default_rng(0)
    )  # fmt: skip
    assert np.ptp(chances[:9]) < 1e-12
    assert 0.3 < chances[9] < 0.7


def test_threads_may_choose_and_learn_at_once():
    policy, failures = BanditPolicy(), []

    def work(seed):
        try:
            live(policy, MEANS, 40, seed)
        except BaseException as error:  # noqa: BLE001 (a thread's failure must reach the test)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    decision = policy.choose(SOFTMAX, OFFERED, np.random.default_rng(0))
    assert NAMES[int(np.argmax(decision.probabilities))] == "hoist"


@pytest.mark.parametrize(("discount", "explore"), [(0.0, 0.1), (1.1, 0.1), (0.9, -0.1), (0.9, 2.0)])
def test_settings_out_of_range_are_refused(discount, explore):
    with pytest.raises(ValueError, match="discount"):
        BanditPolicy(discount, explore)


def test_untried_leaves_exact_repeats_out_only():
    tried = (Tried(OFFERED[0], None, None), Tried(dataclasses.replace(OFFERED[1], region="kernel b"), None, None))
    assert untried(OFFERED, tried) == OFFERED[1:]


def test_features_have_a_fixed_length_and_stay_small():
    unjudged = dataclasses.replace(SOFTMAX.parent, evaluation=None)
    for state in (SOFTMAX, MATMUL, dataclasses.replace(SOFTMAX, parent=unjudged)):
        seen = context(state)
        assert len(seen) == len(FEATURES) and max(map(abs, seen)) <= 1.0
        for strategy in (*OFFERED, Strategy("unheard-of", "unheard-of")):
            positions, values = design(seen, strategy)
            assert len(set(positions)) == len(positions) == len(values)
            assert positions.min() >= 0 and positions.max() < DESIGN_SIZE
    assert context(MATMUL)[FEATURES.index("contraction")] == 1.0
    assert context(SOFTMAX)[FEATURES.index("contraction")] == 0.0
