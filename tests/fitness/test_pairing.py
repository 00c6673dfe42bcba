"""Paired comparison, by simulation: how often it errs, and what it can tell apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evo_kernel.fitness.timing.estimates import PAIRING, PairSettings, PairVerdict, compare, interval, run_pairs

QUICK = PairSettings(resamples=1000)


def simulated(rng, gain, noise=0.005, drift=0.0, outliers=0.0):
    """A machine whose kernels all get slower by `drift` over 100 pairs; the challenger is `gain` faster."""
    clock = [0]

    def one(us):
        clock[0] += 1
        spike = 1.3 if rng.random() < outliers else 1.0
        return us * (1 + drift * clock[0] / 200) * math.exp(rng.normal(0, noise)) * spike

    def take(first):
        pairs = []
        for challenger_first in first:
            if challenger_first:
                right = one(100.0 / gain)
                left = one(100.0)
            else:
                left = one(100.0)
                right = one(100.0 / gain)
            pairs.append((left, right))
        return pairs

    return take


def verdicts(runs, gain, settings=QUICK, **more):
    rng = np.random.default_rng(5)
    return [run_pairs(simulated(rng, gain, **more), rng, settings).verdict for _ in range(runs)]


@pytest.mark.parametrize("more", [{}, {"drift": 0.01}, {"drift": 0.05}, {"outliers": 0.05}, {"noise": 0.03}])
def test_the_same_kernel_is_hardly_ever_faster(more):
    found = verdicts(300, 1.0, **more)
    assert sum(v in (PairVerdict.FASTER, PairVerdict.SLOWER) for v in found) <= 3


def test_a_gain_at_the_threshold_is_rarely_claimed():
    assert sum(v is PairVerdict.FASTER for v in verdicts(400, PAIRING.threshold)) <= 8


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_three_percent_are_found(drift):
    assert sum(v is PairVerdict.FASTER for v in verdicts(200, 1.03, drift=drift)) >= 198
    assert sum(v is PairVerdict.SLOWER for v in verdicts(200, 1 / 1.03, drift=drift)) >= 198


def test_clear_answers_are_early_and_noise_is_named():
    rng = np.random.default_rng(1)
    found = run_pairs(simulated(rng, 1.2), rng, QUICK)
    assert found.verdict is PairVerdict.FASTER and found.pairs == QUICK.look_every
    assert found.low < found.ratio < found.high and found.ratio == pytest.approx(1.2, rel=0.01)
    noisy = run_pairs(simulated(rng, 1.0, noise=0.2), rng, QUICK)
    assert noisy.verdict is PairVerdict.NOISY and noisy.pairs == QUICK.pairs
    equal = run_pairs(simulated(rng, 1.0), rng, QUICK)
    assert equal.verdict is PairVerdict.EQUAL


def test_the_order_in_a_pair_is_random_and_drift_falls_on_both():
    rng = np.random.default_rng(2)
    asked = []

    def take(first):
        asked.extend(first)
        return [(1.0 + rng.normal(0, 0.03), 1.0 + rng.normal(0, 0.03)) for _ in first]

    run_pairs(take, rng, QUICK)
    assert 0.2 < sum(asked) / len(asked) < 0.8


def test_undecided_before_the_first_look():
    found = compare([0.5] * (PAIRING.look_every - 1))
    assert found.verdict is None and found.pairs == PAIRING.look_every - 1
    assert "undecided" in found.line()


def test_the_interval_covers_and_repeats():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        low, high = interval(rng.normal(0.02, 0.005, 100), 0.99, 1000, 0)
        hits += low <= 0.02 <= high
    assert hits >= 292
    values = rng.normal(0, 1, 50)
    assert interval(values, 0.9, 500, 4) == interval(values, 0.9, 500, 4)
