"""What paid in a population: counted once, told in a line a strategy."""

import dataclasses

from evo_kernel.types import Decision, Strategy
from operators.macro.catalogue import UNGUIDED, proposed
from operators.macro.policies import StrategyMemory
from tests.operators.support_search import credit

ONLINE = Strategy("online-row", "algorithm")


def earned(strategy, gain, candidate, witnessed=True, depth=0):
    decision = Decision("uniform", (strategy,), (1.0,), 0)
    given = credit(decision, gain, witnessed=witnessed, depth=depth)
    return dataclasses.replace(given, candidate=candidate, log_gain=gain)


def test_a_candidate_counts_once_and_descendants_do_not():
    memory = StrategyMemory()
    for _ in range(3):
        memory.learn(earned(ONLINE, 0.2, 7))
    memory.learn(earned(ONLINE, -0.1, 8, witnessed=False))
    memory.learn(earned(ONLINE, 9.0, 9, depth=1))
    memory.learn(earned(ONLINE, float("nan"), 10))
    assert memory.paid() == ["- online-row: 2 times, seen in the plan once, +5.1 % speed on average"]


def test_what_was_made_up_stays_in_its_population():
    own = proposed("row-pairs", "tiling", "Two rows a program.")
    memory = StrategyMemory()
    for number, strategy in enumerate((own, UNGUIDED)):
        memory.learn(earned(strategy, 0.3, number))
    assert memory.own(9) == [own]
    assert not memory.own(0) and len(memory.paid()) == 1
