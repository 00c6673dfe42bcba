"""What a trained policy sees of one decision (`Observation`), and that as arrays for the network (`encoded`)."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from evo_kernel.types import Strategy
from operators.macro.catalogue import CATALOGUE, FAMILIES
from operators.macro.features import MacroState, context

UNIT = 0.05  # log gain that a score of one stands for
VOCABULARY = 1024  # places that tokens are hashed to; 0 is padding
WORDS = 12  # tokens of an action's region and parameters, at most
PAST = 16  # actions of path and tried together, the latest
EARNED = 24  # actions whose earnings are shown, the latest
ACTION_NUMBERS = 7  # share of time, offered, on the path, tried here, earned, gain, failed
OFFERED, ON_PATH, TRIED, EARNT = 1, 2, 3, 4  # which of them says what an action is here
STRATEGIES = (*CATALOGUE, "other")

_TOKEN = re.compile(r"[A-Za-z]+|\d+|[^\w\s]")
_STRATEGY = {name: position for position, name in enumerate(STRATEGIES)}
_FAMILY = {name: position for position, name in enumerate(FAMILIES)}
_KERNEL = re.compile(r"\bkernel (\w+)|-> (\w+)")


@dataclass(frozen=True)
class ActionOutcome:
    """An action that was taken. `log_gain`: None where it failed or its outcome is not known here."""

    strategy: Strategy
    log_gain: float | None = None
    failed: bool = False


@dataclass(frozen=True)
class Observation:
    """One decision. `shares`: (kernel, share of the plan's time), where that is known."""

    context: tuple[float, ...]  # FEATURES, in order
    offered: tuple[Strategy, ...]
    path: tuple[ActionOutcome, ...] = ()  # from the root, oldest first
    tried: tuple[ActionOutcome, ...] = ()  # on this very source
    earned: tuple[ActionOutcome, ...] = ()  # mean log gain of actions so far in this run, on whatever source
    shares: tuple[tuple[str, float], ...] = ()
    state: MacroState | None = field(default=None, compare=False, repr=False)  # for models that read text


class Earnings:
    """What actions have earned so far in a run: a model that sees it adapts to the task without learning anew."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Strategy, float, int]] = {}

    def add(self, strategy: Strategy, log_gain: float) -> None:
        """`log_gain`: 0 for what failed. The latest is last."""
        _, total, count = self._sums.pop(strategy.key, (strategy, 0.0, 0))
        self._sums[strategy.key] = (strategy, total + log_gain, count + 1)

    @property
    def outcomes(self) -> tuple[ActionOutcome, ...]:
        latest = list(self._sums.values())[-EARNED:]
        return tuple(ActionOutcome(strategy, total / count) for strategy, total, count in latest)


def sight_of(state: MacroState, offered: tuple[Strategy, ...], earned: tuple[ActionOutcome, ...] = ()) -> Observation:
    """Of a decision, in a run or on a tree."""
    evaluation = state.parent.evaluation
    path = [ActionOutcome(strategy) for strategy in state.parent.strategies]
    path += [ActionOutcome(strategy) for strategy, outcome in state.trail if outcome == "kept"]
    tried = [ActionOutcome(t.strategy, t.log_gain, t.status is not None and t.status != "passed") for t in state.tried]
    plan = evaluation.features if evaluation else None
    shares = tuple((kernel.name, kernel.share) for kernel in plan.kernels) if plan else ()
    fresh = () if state.steps else tuple(tried)  # after a step the source is another
    return Observation(context(state), offered, tuple(path), fresh, earned, shares, state)


def encoded(sight: Observation) -> dict[str, np.ndarray]:
    """As arrays, with p past and n offered actions, the offered ones last: `context` float32 [FEATURES]; `names`
    (positions in STRATEGIES) and `families` int64 [p + n], `words` int64 [p + n, WORDS], `numbers` float32
    [p + n, ACTION_NUMBERS]."""
    past = [(one, EARNT) for one in sight.earned]
    past += ([(one, ON_PATH) for one in sight.path] + [(one, TRIED) for one in sight.tried])[-PAST:]
    every = [*past, *((ActionOutcome(strategy), OFFERED) for strategy in sight.offered)]
    strategies = [outcome.strategy for outcome, _ in every]
    numbers = np.zeros((len(every), ACTION_NUMBERS), dtype=np.float32)
    for row, (outcome, role) in zip(numbers, every, strict=True):
        row[0] = _share(sight.shares, outcome.strategy)
        row[role] = 1.0
        row[5] = max(-1.0, min(1.0, outcome.log_gain)) if outcome.log_gain is not None else 0.0
        row[6] = outcome.failed
    return {
        "context": np.asarray(sight.context, dtype=np.float32),
        "names": np.array([_STRATEGY.get(s.name, len(STRATEGIES) - 1) for s in strategies], dtype=np.int64),
        "families": np.array([_FAMILY.get(s.family, 0) for s in strategies], dtype=np.int64),
        "words": np.stack([words(_place(s)) for s in strategies]),
        "numbers": numbers,
    }


@lru_cache(maxsize=16384)
def words(text: str) -> np.ndarray:
    """Hashed tokens of an action's place, padded to WORDS."""
    found = [zlib.crc32(token.encode()) % (VOCABULARY - 1) + 1 for token in _TOKEN.findall(text)[:WORDS]]
    return np.array(found + [0] * (WORDS - len(found)), dtype=np.int64)


def _place(strategy: Strategy) -> str:
    return " ".join([strategy.region, *(f"{name} {value}" for name, value in strategy.parameters)])


def _share(shares: tuple[tuple[str, float], ...], strategy: Strategy) -> float:
    """Of the plan's time in the kernels that the region names; of all of it where none is named."""
    named = {first or second for first, second in _KERNEL.findall(strategy.region)}
    if not shares or not named:
        return 0.0
    return min(sum(share for kernel, share in shares if kernel in named), 1.0)
