"""Credit: the reward of a strategy from the gains of its candidates.

All gains are differences of mean log time over the search cases, in one environment:
    gain(c) = log(t_parent ÷ t_child)              0 for a child that failed
Its own reward, paid once, when candidate c is first judged:
    value(c)  = gain(c) / effort(c)                where it gained
                max(gain(c), −FAILED)              where it did not; −FAILED for one that failed
    reward(c) = value(c) − usual(b)                b: bucket of the parent's share of light
              = −FAILED − max(usual(b), 0)         when c failed: always negative
    effort(c) = cost(c) ÷ mean cost so far, held within [1/4, 4]
    usual(b)  = running mean of value over children of parents in bucket b, whatever the strategy (each child
                weighs 1, forgotten at rate FORGET), as it was before c
cost(c) counts evaluations: those its proposal probed and those the judge charged, at least 1. A correct child that
is slower never costs more than one that failed: what it lost was never taken, and it may enable what comes next.
So an ancestor a at depth k = 1, 2, 3 above c is paid a share when c is its best so far:
    reward(a) = DISCOUNT^k · (G − max(best(a), 0))  G = log(t_parent(a) ÷ t_c), if G > max(best(a), 0)
where best(a) is the largest such G that a or a descendant within depth 3 has reached; so all shares together stay
below DISCOUNT · (best − own). Credit goes to a strategy by name if the plan witnessed it, else to "other".
Parents never measured in this environment give no gain, so their children earn nothing.
"""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

FAILED = 0.1
FORGET = 0.99
DISCOUNT = 0.5
DEPTH = 3
EFFORT_LIMITS = (0.25, 4.0)
LIGHT_EDGES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Edges of the buckets of share of light; one more bucket holds what is not known."""
UNKNOWN_LIGHT = len(LIGHT_EDGES) + 1


class Earned(NamedTuple):
    """A credit before it meets its names: see evo_kernel.types.Credit."""

    candidate: int
    reward: float
    log_gain: float
    depth: int


def light_bucket(share: float | None) -> int:
    if share is None or math.isnan(share):
        return UNKNOWN_LIGHT
    return sum(share >= edge for edge in LIGHT_EDGES)


class CreditLedger:
    """Running means and best gains of one environment. Not thread-safe: the population's lock guards it."""

    def __init__(self) -> None:
        self.best = array("d", [math.nan])  # best G by candidate
        self._usual = [0.0] * (UNKNOWN_LIGHT + 1)
        self._weight = [0.0] * (UNKNOWN_LIGHT + 1)
        self._cost_sum = self._cost_weight = 0.0

    def grow(self, candidate: int) -> None:
        missing = candidate + 1 - len(self.best)
        if missing > 0:
            self.best.extend((math.nan,) * missing)

    def judge(
        self, candidate: int, passed: bool, cost: float, parents: array[int], times: array[float], bucket: int
    ) -> list[Earned]:
        """The first verdict on a candidate that has a parent; `bucket` is the parent's.

        `parents` and `times` (mean log µs, NaN when not passed or not judged here) are indexed by candidate;
        `times` already holds the candidate's own.
        """
        parent = parents[candidate]
        parent_time = times[parent]
        if math.isnan(parent_time):  # the parent was never measured here
            return []
        self._cost_sum = FORGET * self._cost_sum + cost
        self._cost_weight = FORGET * self._cost_weight + 1.0
        effort = cost * self._cost_weight / self._cost_sum
        effort = min(max(effort, EFFORT_LIMITS[0]), EFFORT_LIMITS[1])
        gain = parent_time - times[candidate] if passed else 0.0
        value = (gain / effort if gain > 0.0 else max(gain, -FAILED)) if passed else -FAILED
        usual = self._usual[bucket]
        reward = value - (usual if passed else max(usual, 0.0))
        weight = self._weight[bucket] = FORGET * self._weight[bucket] + 1.0
        self._usual[bucket] += (value - usual) / weight
        earned = [Earned(candidate, reward, gain, 0)]
        if passed:
            self.best[candidate] = gain
            self._share(candidate, parents, times, earned)
        return earned

    def _share(self, candidate: int, parents: array[int], times: array[float], earned: list[Earned]) -> None:
        time = times[candidate]
        ancestor = parents[candidate]
        share = 1.0
        for depth in range(1, DEPTH + 1):
            above = parents[ancestor]
            if above <= 0:  # a root has no strategy to pay
                return
            share *= DISCOUNT
            total = times[above] - time
            before = self.best[ancestor]
            floor = before if before > 0.0 else 0.0  # NaN counts as 0
            if total > floor:
                self.best[ancestor] = total
                earned.append(Earned(ancestor, share * (total - floor), total, depth))
            ancestor = above

    def state(self) -> tuple[object, ...]:
        return (self.best.tobytes().hex(), self._usual, self._weight, self._cost_sum, self._cost_weight)
