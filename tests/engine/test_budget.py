import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evo_kernel.budget import Budget, Ledger, Spent


def test_what_was_spent_before_counts() -> None:
    ledger = Ledger(Budget(evaluations=10), Spent(evaluations=9))
    assert ledger.reserve() == ""
    ledger.settle(Spent(evaluations=1))
    assert ledger.reserve() == "the budget of 10 evaluations is spent"
    assert ledger.spent().evaluations == 10


@pytest.mark.parametrize("name", ["evaluations", "dollars", "tokens", "gpu_seconds"])
def test_every_amount_ends_a_run(name: str) -> None:
    ledger = Ledger(Budget(**{name: 2}))
    for _ in range(2):
        assert ledger.reserve() == ""
        ledger.settle(Spent(**{name: 1}))
    assert name.replace("_", " ") in ledger.reserve()
    assert ledger.left() == {name: 0}


def test_hours_pass_by_the_clock() -> None:
    now = [0.0]
    ledger = Ledger(Budget(hours=1.0), Spent(hours=0.5), clock=lambda: now[0])
    assert ledger.reserve() == ""
    now[0] = 1799.0
    assert ledger.reserve() == ""
    now[0] = 1800.0
    assert ledger.reserve() == "the budget of 30m is spent", "what this session was given"
    assert Ledger(Budget(hours=0.5), Spent(hours=0.6)).reserve() == "the budget of 30m is spent"


def test_an_attempt_waits_for_what_is_in_flight_to_turn_out_cheap() -> None:
    ledger = Ledger(Budget(evaluations=1))
    assert ledger.reserve() == ""
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(ledger.reserve()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    ledger.settle(Spent())  # a cache hit: free
    waiting.join(5)
    assert answers == [""]


def test_closing_frees_who_waits() -> None:
    ledger = Ledger(Budget(evaluations=1))
    ledger.reserve()
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(ledger.reserve()))
    waiting.start()
    ledger.close()
    waiting.join(5)
    assert answers == ["the run was stopped"]


@settings(max_examples=60, deadline=None)
@given(limit=st.integers(1, 60), width=st.integers(1, 32), cost=st.integers(1, 7))
def test_the_overshoot_is_at_most_what_one_attempt_costs_when_costs_are_alike(
    limit: int, width: int, cost: int
) -> None:
    ledger = Ledger(Budget(evaluations=limit))
    in_flight = 0
    while True:
        if ledger.reached():
            break
        if in_flight < width and ledger.fits():
            assert ledger.reserve() == ""
            in_flight += 1
        else:
            ledger.settle(Spent(evaluations=cost))
            in_flight -= 1
    for _ in range(in_flight):
        ledger.settle(Spent(evaluations=cost))
    # Only the first ones fly without anybody knowing what an attempt costs.
    assert limit <= ledger.spent().evaluations < limit + max(cost, min(width, limit) * cost)
    if cost == 1:
        assert ledger.spent().evaluations == limit
