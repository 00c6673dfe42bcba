"""What a trained policy sees of one decision, and that as numbers: the one featurisation that every policy here shares.

    Sight            raw: source, context, what was done on the way and tried here, what is offered
    Seen             switches: what of it the model may see (stored with its checkpoint; off: an ablation)
    encoded(sight)   arrays for the network
    sentence(...)    an action in words, for language models

Tokens are words and signs of the source, hashed into VOCABULARY places: names that no training task used still have a
place, and `softmax_kernel` shares `kernel` with every other one.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from evo_kernel.types import PlanFeatures, Strategy
from operators.macro.catalogue import CATALOGUE, FAMILIES, STOP, description
from operators.macro.features import FEATURES, MacroState, context

UNIT = 0.05  # log gain that a score of one stands for
VOCABULARY = 1024  # places of hashed tokens; 0 is padding
TOKENS = 1024  # of a source, at most: the longest first kernel but two has 900
WORDS = 12  # tokens of an action's region and parameters, at most
PAST = 16  # actions of path and tried together, the latest
EARNED = 24  # actions whose earnings are shown, the latest
ACTION_NUMBERS = 7  # share of time, offered, on the path, tried here, earned, gain, failed
OFFERED, ON_PATH, TRIED, EARNT = 1, 2, 3, 4  # which of them says what an action is here
STRATEGIES = (*CATALOGUE, "other")
PLAN_FREE = frozenset({"bias", "log elements", "contraction", "depth"})
"""Features of a context that need neither a plan nor a measurement."""

_TOKEN = re.compile(r"[A-Za-z]+|\d+|[^\w\s]|\n")
_STRATEGY = {name: position for position, name in enumerate(STRATEGIES)}
_FAMILY = {name: position for position, name in enumerate(FAMILIES)}
_KERNEL = re.compile(r"\bkernel (\w+)|-> (\w+)")
_KEPT = np.array([name in PLAN_FREE for name in FEATURES], dtype=np.float32)


@dataclass(frozen=True)
class ActionOutcome:
    """An action that was taken. `log_gain`: None where it failed or its outcome is not known here."""

    strategy: Strategy
    log_gain: float | None = None
    failed: bool = False


@dataclass(frozen=True)
class Observation:
    """One decision. `shares`: (kernel, share of the plan's time), where that is known."""

    text: str
    context: tuple[float, ...]  # FEATURES, in order
    offered: tuple[Strategy, ...]
    path: tuple[ActionOutcome, ...] = ()  # from the root, oldest first
    tried: tuple[ActionOutcome, ...] = ()  # on this very source
    earned: tuple[ActionOutcome, ...] = ()  # mean log gain of actions so far in this run, on whatever source
    shares: tuple[tuple[str, float], ...] = ()


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


@dataclass(frozen=True)
class Seen:
    """What a model may see."""

    source: bool = True
    history: bool = True
    plan: bool = True

    def of(self, sight: Observation) -> Observation:
        """The sight without what is switched off."""
        seen = sight if self.source else replace(sight, text="")
        if not self.history:
            seen = replace(seen, path=(), tried=(), earned=(), context=_without(seen.context, "depth"))
        if not self.plan:
            kept = tuple(float(v) for v in np.asarray(seen.context, dtype=np.float32) * _KEPT)
            seen = replace(seen, context=kept, shares=())
        return seen


@dataclass(frozen=True)
class Encoded:
    """A sight as arrays: t tokens, p past and n offered actions, the offered ones last."""

    tokens: np.ndarray  # int64 [t]
    context: np.ndarray  # float32 [FEATURES]
    names: np.ndarray  # int64 [p + n]: positions in STRATEGIES
    families: np.ndarray  # int64 [p + n]
    words: np.ndarray  # int64 [p + n, WORDS]
    numbers: np.ndarray  # float32 [p + n, ACTION_NUMBERS]
    offers: int  # n


def sight_of(state: MacroState, offered: tuple[Strategy, ...], earned: tuple[ActionOutcome, ...] = ()) -> Observation:
    """Of a decision, in a run or on a tree."""
    evaluation = state.parent.evaluation
    path = [ActionOutcome(strategy) for strategy in state.parent.strategies]
    path += [ActionOutcome(strategy) for strategy, outcome in state.trail if outcome == "kept"]
    tried = [ActionOutcome(t.strategy, t.log_gain, t.status is not None and t.status != "passed") for t in state.tried]
    plan = evaluation.features if evaluation else None
    fresh = () if state.steps else tuple(tried)  # after a step the source is another
    return Observation(state.source.text, context(state), offered, tuple(path), fresh, earned, shares_of(plan))


def shares_of(plan: PlanFeatures | None) -> tuple[tuple[str, float], ...]:
    return tuple((kernel.name, kernel.share) for kernel in plan.kernels) if plan else ()


def encoded(sight: Observation) -> Encoded:
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
    return Encoded(
        tokens=tokens(sight.text),
        context=np.asarray(sight.context, dtype=np.float32),
        names=np.array([_STRATEGY.get(s.name, len(STRATEGIES) - 1) for s in strategies], dtype=np.int64),
        families=np.array([_FAMILY.get(s.family, 0) for s in strategies], dtype=np.int64),
        words=np.stack([words(_place(s)) for s in strategies]),
        numbers=numbers,
        offers=len(sight.offered),
    )


@lru_cache(maxsize=4096)
def tokens(text: str) -> np.ndarray:
    """Hashed tokens of a source, int64; at least one."""
    found = [_hashed(token) for token, _ in zip(_TOKEN.findall(text), range(TOKENS), strict=False)]
    return np.array(found or [0], dtype=np.int64)


@lru_cache(maxsize=16384)
def words(text: str) -> np.ndarray:
    """Hashed tokens of an action's place, padded to WORDS."""
    found = [_hashed(token) for token in _TOKEN.findall(text)[:WORDS]]
    return np.array(found + [0] * (WORDS - len(found)), dtype=np.int64)


def sentence(strategy: Strategy) -> str:
    """An action in words."""
    if strategy == STOP:
        return "stop: leave the kernel as it is"
    place = f" at {strategy.region}" if strategy.region else ""
    form = ", ".join(f"{name} {value}" for name, value in strategy.parameters)
    return f"{strategy.name}{place}{f' ({form})' if form else ''}: {description(strategy)}"


def described(sight: Observation, characters: int = 4000) -> str:
    """A decision in words: the prompt of a language model."""
    known = ", ".join(f"{name} {value:.2f}" for name, value in zip(FEATURES[1:], sight.context[1:], strict=True))
    lines = ["A Triton kernel is to be made faster, one step at a time.", "", sight.text[:characters], ""]
    lines += [f"Evidence: {known}."]
    lines += [
        f"Done: {_told(sight.path)}.",
        f"Tried on this source: {_told(sight.tried)}.",
        f"Earned so far: {_told(sight.earned)}.",
        "The best next step is ",
    ]
    return "\n".join(lines)


def _told(outcomes: Iterable[ActionOutcome]) -> str:
    told = []
    for one in outcomes:
        gain = f" ({math.expm1(one.log_gain):+.0%})" if one.log_gain is not None else ""
        told.append(one.strategy.name + (" (failed)" if one.failed else gain))
    return ", ".join(told) or "nothing"


def _hashed(token: str) -> int:
    return zlib.crc32(token.encode()) % (VOCABULARY - 1) + 1


def _place(strategy: Strategy) -> str:
    return " ".join([strategy.region, *(f"{name} {value}" for name, value in strategy.parameters)])


def _share(shares: tuple[tuple[str, float], ...], strategy: Strategy) -> float:
    """Of the plan's time in the kernels that the region names; of all of it where none is named."""
    named = {first or second for first, second in _KERNEL.findall(strategy.region)}
    if not shares or not named:
        return 0.0
    return min(sum(share for kernel, share in shares if kernel in named), 1.0)


def _without(seen: tuple[float, ...], name: str) -> tuple[float, ...]:
    at = FEATURES.index(name)
    return (*seen[:at], 0.0, *seen[at + 1 :])
