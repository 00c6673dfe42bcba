"""How many samples make a time, and what the time says of a coarse clock."""

from __future__ import annotations

import numpy as np
import pytest

from evo_kernel.fitness.timing.estimates import (
    CLAIM,
    TIMING,
    clock_fault,
    next_batch,
    sets_needed,
    settled,
    spread,
    summarise,
)


def taken(rng, us, noise, against=None, settings=TIMING):
    """Samples until they are settled."""
    samples: list[float] = []
    while not settled(samples, settings, against):
        samples.append(float(us * np.exp(rng.normal(0, noise))))
    return samples


def test_quiet_samples_are_few_and_noisy_ones_many():
    rng = np.random.default_rng(1)
    assert len(taken(rng, 100, 0.001)) == TIMING.usual
    assert len(taken(rng, 100, 0.2)) == TIMING.many
    assert len(taken(rng, 100, 0.001, settings=CLAIM)) >= 25


def test_a_clear_question_needs_few_samples_and_a_close_one_more():
    rng = np.random.default_rng(2)
    clear = [len(taken(rng, 150, 0.02, against=100)) for _ in range(200)]
    close = [len(taken(rng, 101, 0.02, against=100)) for _ in range(200)]
    better = [len(taken(rng, 60, 0.02, against=100)) for _ in range(200)]
    assert max(clear) == TIMING.few and np.mean(close) > 2 * TIMING.few
    assert set(better) == {TIMING.usual}


def test_an_early_end_is_hardly_ever_wrong():
    """What is truly 1 % faster than the question must not be let go as slower."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(500):
        samples = taken(rng, 99, 0.01, against=100)
        wrong += len(samples) < TIMING.usual and summarise(samples).low_us > 100 * (1 + TIMING.margin)
    assert wrong <= 2


def test_short_kernels_are_sampled_more_and_told_apart_below_a_tick():
    rng = np.random.default_rng(4)

    def median(us):
        phases = rng.random(200) * 0.5
        ticks = [float(np.floor((us + phase) / 0.5) * 0.5) for phase in phases]
        return summarise(ticks).median_us

    assert median(5.1) < median(5.3) - 0.1
    assert next_batch(0, TIMING, 5.0) == TIMING.few * TIMING.short_factor
    assert not settled([5.0] * TIMING.few, TIMING)


def test_spread_keeps_distinct_samples_and_the_mean_of_equal_ones():
    assert spread([3.0, 1.0, 2.25], 0.5) == [1.0, 2.25, 3.0]
    tied = spread([5.0] * 4 + [5.5] * 4, 0.5)
    assert tied == sorted(tied) and np.mean(tied[:4]) == pytest.approx(5.0) and max(tied[:4]) < 5.25
    assert spread([5.0, 5.0, 5.032], 0.5)[0] > 4.98  # a finer clock shows itself


def test_a_summary_of_one_sample_and_of_none():
    one = summarise([7.0])
    assert (one.median_us, one.low_us, one.high_us, one.n) == (7.0, 7.0, 7.0, 1)
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


def test_slow_kernels_end_by_time():
    assert settled([1e6, 1.5e6, 1.2e6], TIMING)


def test_events_and_wall_clock_must_agree():
    assert clock_fault(10_000, 10_200) == ""
    assert clock_fault(100, 350) == ""  # a short batch: what the host needs to submit it
    assert "cannot be trusted" in clock_fault(10_000, 16_000)
    assert "cannot be trusted" in clock_fault(10_000, 5_000)


def test_sets_rotate_over_more_than_five_times_the_l2():
    l2 = 60 << 20
    for size in (1 << 20, 134 << 20, 1 << 30):
        sets = sets_needed(size, l2, 100 << 30)
        assert sets >= 2 and (sets * size > 5 * l2 or sets == TIMING.max_sets)
    assert sets_needed(10 << 30, l2, 40 << 30) == 1


def test_a_slow_kernel_is_claimed_from_a_few_samples():
    second = 1e6
    assert not settled([second] * 4, CLAIM) and settled([second] * 5, CLAIM)
    assert not settled([1000.0] * 49, CLAIM)  # 49 ms in all: there is time for more
    assert next_batch(0, CLAIM, expected_us=second) == 1 and next_batch(0, CLAIM, expected_us=1000.0) == 10
