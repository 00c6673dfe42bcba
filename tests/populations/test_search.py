"""Archive, islands, selection and credit: the rules, each on its own."""

from __future__ import annotations

import math
import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populations.archive import Archive, Cell, Contender, Islands, PopulationSettings, combine
from populations.credit import DISCOUNT, FAILED, UNKNOWN_LIGHT, CreditLedger, light_bucket
from populations.parent_selection import SELECTORS, Mix, lexicase, thompson, uniform

NAN = math.nan
OFFERS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.floats(0.0, 5.0)), max_size=60)


def fill(archive: Archive, times: dict[str, list[float]], variance: float = 0.0) -> dict[int, float]:
    """Offer a contender for every time; returns log times by candidate."""
    found = {}
    for cell, values in times.items():
        for value in values:
            number = len(found) + 1
            archive.offer(cell, Contender(number, number, f"plan {number}", value, variance), True)
            found[number] = value
    return found


@given(OFFERS)
def test_a_cell_keeps_its_fastest_kernels_once_each(offers):
    archive = Archive(contenders=3)
    seen: dict[str, dict[int, float]] = {}
    for number, (cell, source, time) in enumerate(offers, start=1):
        first = seen.setdefault(cell, {}).setdefault(source, time)  # a source has one time here
        archive.offer(cell, Contender(number, source, f"{cell} {source}", first, 0.0), False)
    for cell, kept in archive.cells.items():
        fastest = sorted(seen[cell].values())[:3]
        assert sorted(contender.mean for contender in kept.contenders) == fastest
        assert len({contender.source for contender in kept.contenders}) == len(kept.contenders)
    if seen:
        assert archive.best().mean == min(min(times.values()) for times in seen.values())


def test_the_same_kernel_under_another_text_takes_one_place():
    archive = Archive(4)
    assert archive.offer("c", Contender(1, 1, "plan", 2.0, 0.01), True)
    assert not archive.offer("c", Contender(2, 2, "plan", 1.0, 0.01), True)  # lucky second measurement of the same plan
    (kept,) = archive.cells["c"].contenders
    assert (kept.candidate, kept.mean, kept.variance) == (1, pytest.approx(1.5), pytest.approx(0.005))
    archive.offer("c", Contender(3, 3, "plan", 0.0, 0.01), False)  # reused numbers say nothing twice
    assert kept.mean == pytest.approx(1.5)


def test_a_candidate_that_was_tuned_since_has_the_time_of_its_new_knobs() -> None:
    archive = Archive(4)
    archive.offer("c", Contender(1, 1, "as it was written", 2.0, 1e-4), True)
    assert archive.offer("c", Contender(2, 2, "child", 1.8, 1e-4), True)
    assert archive.offer("c", Contender(1, 1, "tuned", 1.5, 1e-4), True)
    (cell,) = archive.cells.values()
    assert (cell.elite.candidate, cell.elite.mean) == (1, 1.5)
    archive.offer("c", Contender(1, 1, "tuned", 1.52, 1e-4), True)
    assert cell.elite.mean == pytest.approx(1.51), "the same knobs again: both count"


def test_posteriors_combine_by_precision():
    assert combine(1.0, 0.04, 2.0, 0.01) == (pytest.approx(1.8), pytest.approx(0.008))
    assert combine(1.0, 0.04, 2.0, 0.0) == (2.0, 0.0)  # modeled: no noise


def test_the_best_of_equal_kernels_does_not_take_the_elites_place():
    """A hundred kernels of one speed: the luckiest looks faster, and an elite that changed with it would mean noise."""
    rng, changes = random.Random(3), 0
    archive = Archive(4)
    for number in range(1, 101):
        changes += archive.offer("c", Contender(number, number, f"plan {number}", rng.gauss(0.0, 0.01), 1e-4), True)
    assert changes <= 3  # the first, and hardly another
    cell = archive.cells["c"]
    again = cell.unsettled()
    assert again is not None and again.variance == max(cell.elite.variance, cell.contenders[1].variance)
    assert not archive.offer("c", Contender(101, 101, "plan 101", cell.elite.mean - 0.01, 1e-4), True)
    assert archive.offer("c", Contender(102, 102, "plan 102", cell.elite.mean - 0.05, 1e-4), True)
    assert cell.unsettled() is None


def test_without_noise_whatever_is_faster_is_the_elite():
    archive = Archive(4)
    assert archive.offer("c", Contender(1, 1, "a", 1.0, 0.0), True) and archive.offer(
        "c", Contender(2, 2, "b", 0.999999, 0.0), True
    )


def test_a_remeasured_elite_can_lose_its_place():
    archive = Archive(4)
    fill(archive, {"c": [1.0, 1.1]}, variance=0.01)
    assert not archive.offer("c", Contender(1, 1, "plan 1", 1.9, 0.01), True)
    assert archive.cells["c"].elite.candidate == 2
    archive.remove(2)
    assert archive.cells["c"].elite.candidate == 1
    archive.remove(1)
    assert archive.best() is None


def test_a_cell_that_gives_nothing_sinks():
    fresh, tired = Cell(), Cell()
    for _ in range(30):
        tired.tried(0.0)
    assert tired.gain_posterior()[0] < fresh.gain_posterior()[0] / 5
    assert tired.gain_posterior()[1] < fresh.gain_posterior()[1] / 5
    assert tired.gain_posterior()[1] > 0


def test_thompson_prefers_the_fast_and_still_tries_the_rest():
    archive, rng = Archive(4), np.random.default_rng(1)
    fill(archive, {"fast": [1.0], "close": [1.1], "slow": [3.0]})
    picks = [thompson(archive, lambda _: {}, rng).candidate for _ in range(600)]
    counts = [picks.count(number) for number in (1, 2, 3)]
    assert counts[0] > counts[1] > 20
    assert counts[2] == 0


def test_thompson_leaves_a_cell_that_stopped_giving():
    archive, rng = Archive(4), np.random.default_rng(2)
    fill(archive, {"spent": [1.0], "fresh": [1.05]})
    for _ in range(40):
        archive.cells["spent"].tried(0.0)
    picks = [thompson(archive, lambda _: {}, rng).candidate for _ in range(400)]
    assert picks.count(2) > 160


def test_lexicase_keeps_specialists():
    archive, rng = Archive(4), np.random.default_rng(3)
    fill(archive, {"a": [2.0], "b": [2.1], "c": [2.2]})
    cases = {1: {"x": 1.0, "y": 3.0}, 2: {"x": 3.0, "y": 1.2}, 3: {"x": 2.9, "y": 2.9}}
    picks = [lexicase(archive, cases.__getitem__, rng).candidate for _ in range(200)]
    assert min(picks.count(1), picks.count(2)) > 40
    assert picks.count(3) < 20


def test_lexicase_without_times_still_chooses():
    archive = Archive(4)
    fill(archive, {"a": [2.0, 2.5]})
    assert lexicase(archive, lambda _: {}, np.random.default_rng(4)).candidate in (1, 2)


def test_uniform_gives_unlike_kernels_equal_chances():
    archive, rng = Archive(8), np.random.default_rng(5)
    fill(archive, {"crowded": [1.0, 1.1, 1.2, 1.3], "lonely": [9.0]})
    picks = [uniform(archive, lambda _: {}, rng).candidate for _ in range(400)]
    assert 150 < picks.count(5) < 250


def test_the_mix_follows_its_weights():
    archive, rng = Archive(4), np.random.default_rng(6)
    fill(archive, {"a": [1.0]})
    mix = Mix({"thompson": 3.0, "uniform": 1.0, "lexicase": 0.0})
    names = [mix.select(archive, lambda _: {}, rng)[1] for _ in range(400)]
    assert 260 < names.count("thompson") < 340
    assert "lexicase" not in names
    with pytest.raises(ValueError, match="choose among lexicase, thompson, uniform"):
        Mix({"tompson": 1.0})
    assert set(PopulationSettings().selectors) == set(SELECTORS)


def test_islands_open_late_with_unlike_kernels_and_send_their_best():
    islands = Islands(PopulationSettings(islands=3, open_islands_after=10, migrate_every=5))
    for number in range(1, 10):
        islands.place(2, "abc"[number % 3], Contender(number, number, str(number), 10.0 - number, 0.0), True)
        assert islands.tick() == ()
    assert len(islands.archives) == 1
    placed = islands.tick()
    assert len(islands.archives) == 3
    assert {placement.island for placement in placed} == {1, 2}
    dealt = [set(archive.cells) for archive in islands.archives[1:]]
    assert not dealt[0] & dealt[1]
    islands.place(2, "new", Contender(99, 99, "99", -5.0, 0.0), True)
    moved = [placement for _ in range(5) for placement in islands.tick()]
    assert (99, 0, "new") in moved
    assert islands.best().candidate == 99
    islands.remove(99)
    assert islands.best().candidate == 9


def chain(times: list[float]) -> tuple[array, array]:
    """Candidate 1 is a root, n + 1 the child of n."""
    return array("i", [0, *range(len(times))]), array("d", [NAN, *times])


def test_enabling_moves_lose_first_and_are_paid_later():
    parents, times = chain([3.0, 3.2, 2.0])  # a step back that made a step forward possible
    ledger = CreditLedger()
    ledger.grow(3)
    (lost,) = ledger.judge(2, True, 1.0, parents, times, 0)
    assert lost.reward == pytest.approx(-FAILED)
    assert lost.log_gain == pytest.approx(-0.2)
    own, share = ledger.judge(3, True, 1.0, parents, times, 0)
    assert (own.candidate, own.log_gain) == (3, pytest.approx(1.2))
    assert (share.candidate, share.depth) == (2, 1)
    assert share.reward == pytest.approx(DISCOUNT * 1.0)  # log(t_1 ÷ t_3)
    assert share.reward + lost.reward > 0


@given(st.lists(st.floats(-2, 2, allow_subnormal=False), min_size=2, max_size=12))
def test_shares_stay_below_the_best_descendants_gain(times):
    parents, column = chain(times)
    ledger = CreditLedger()
    ledger.grow(len(times))
    paid: dict[int, float] = {}
    for number in range(2, len(times) + 1):
        for one in ledger.judge(number, True, 1.0, parents, column, 0):
            assert 0 <= one.depth <= 3
            if one.depth:
                assert one.reward > 0
                paid[one.candidate] = paid.get(one.candidate, 0.0) + one.reward
    for candidate, total in paid.items():
        reachable = [column[candidate - 1] - column[n] for n in range(candidate, min(candidate + 4, len(times) + 1))]
        assert total <= DISCOUNT * (max(reachable) - max(reachable[0], 0.0)) + 1e-9


@given(st.lists(st.tuples(st.booleans(), st.floats(-3, 3), st.integers(1, 40)), min_size=1, max_size=30))
def test_failing_is_never_rewarded_and_never_better_than_slower(children):
    parents = array("i", [0, 0] + [1] * len(children))
    times = array("d", [NAN, 0.0, *(-gain if passed else NAN for passed, gain, _ in children)])
    ledger = CreditLedger()
    ledger.grow(len(parents) - 1)
    for number, (passed, gain, cost) in enumerate(children, start=2):
        (one,) = ledger.judge(number, passed, float(cost), parents, times, 2)
        assert one.log_gain == pytest.approx(gain if passed else 0.0)
        if not passed:
            assert one.reward <= -FAILED


def test_the_same_gain_is_worth_less_when_it_cost_more_or_was_easy():
    parents = array("i", [0, 0] + [1] * 40)
    times = array("d", [NAN, 0.0] + [-0.5] * 40)
    ledger = CreditLedger()
    ledger.grow(41)
    rewards = [ledger.judge(number, True, 10.0, parents, times, 0)[0].reward for number in range(2, 30)]
    assert rewards[0] == pytest.approx(0.5)
    assert abs(rewards[-1]) < 1e-6  # what everybody gains here is no merit
    dear = ledger.judge(30, True, 40.0, parents, times, 0)[0].reward
    cheap = ledger.judge(31, True, 2.0, parents, times, 0)[0].reward
    assert dear < -0.3 < 0.3 < cheap
    assert ledger.judge(32, True, 10.0, parents, times, 1)[0].reward > 0.3  # another bucket of light


def test_a_parent_without_a_time_earns_nothing():
    parents, times = chain([NAN, 1.0])
    assert CreditLedger().judge(2, True, 1.0, parents, times, 0) == []


def test_light_buckets():
    assert [light_bucket(share) for share in (None, NAN, 0.0, 0.1, 0.99)] == [UNKNOWN_LIGHT, UNKNOWN_LIGHT, 0, 2, 6]


def test_settings_say_what_is_wrong():
    with pytest.raises(ValueError, match="islands"):
        PopulationSettings(islands=0)
    with pytest.raises(ValueError, match="selectors"):
        PopulationSettings(selectors={"uniform": 0.0})
    chosen = PopulationSettings(islands=5)
    assert PopulationSettings.from_data(chosen.as_data() | {"gone": 1}) == chosen
