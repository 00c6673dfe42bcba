"""The tuner: which knob settings to try for a source: steps from the best so far, and what Optuna's TPE sampler draws.

Knobs are sizes and counts in order, so both work on places in that order: what is near to a good value is tried sooner.
Settings are compared with the source's own by the judge; a knob change is never a strategy. Deterministic for a seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import optuna

from evo_kernel.fitness.tuning.knobs import Knob, is_tile
from evo_kernel.types import NOTICEABLE, Knobs, Source

BATCH = 4  # settings drawn before any of them is told

MAX_TILE, MAX_WORK = 128 * 256, 128 * 256 * 64
"""Elements of the two, and of the three, largest tile sizes together. Beyond them the accumulators of a program do not
fit into the registers of an SM, and the compiler spends minutes on what then spills."""
MAX_TILE_A_THREAD = 128
"""Elements of the two largest tile sizes together a thread, which has 255 registers: half of them for an accumulator.
More takes the compiler long, since all of it is unrolled, and then spills."""
MAX_WORK_A_THREAD = 8192
"""Multiply-adds of one step of a contraction a thread: twice as many in IEEE float32 compile for over ten seconds."""
NEAR, NEAR_SHARE, NEAR_MISSES = 3, 0.8, 5
"""The first settings of a space, and this share of all, are a step from the best so far: a dozen settings find most of
what there is that way, a sampler over the whole space half of it. Not while these were known so many times in a row."""
_DEFAULT_WARPS = 4
_MISSES = 30
"""Draws in a row that are known or too large, after which a space is taken for exhausted."""


def too_large(setting: Knobs, fixed: Sequence[int] = ()) -> bool:
    """Whether several tile sizes of one setting are large together; one large row block alone is fine.

    `fixed`: tile sizes that no knob sets, such as the width of an attention head.
    """
    chosen = [v for name, v in setting if is_tile(name)]
    if len(chosen) < 2:
        return False
    tiles = sorted([*chosen, *fixed], reverse=True)
    threads = 32 * max((v for name, v in setting if "WARPS" in name), default=_DEFAULT_WARPS)
    tile = tiles[0] * tiles[1]
    work = math.prod(tiles[:3])
    return tile > min(MAX_TILE, MAX_TILE_A_THREAD * threads) or work > min(MAX_WORK, MAX_WORK_A_THREAD * threads)


@dataclass(frozen=True)
class Space:
    """Knobs that are tuned together, because one kernel takes them."""

    knobs: tuple[Knob, ...]
    weight: float = 1.0  # of the time that depends on them, as far as it is known beforehand
    fixed: tuple[int, ...] = ()  # tile sizes of the kernel that no knob sets


@dataclass
class _Open:
    """A setting that is out: what it changes in which space, and what the others had gained when it was drawn."""

    state: _State | None  # None: the best of every space together
    trial: optuna.Trial | None
    values: dict[str, int]  # of all knobs
    others_gain: float


@dataclass
class _State:
    space: Space
    study: optuna.Study
    rng: np.random.Generator
    weight: float
    drawn: int = 0
    misses: int = 0
    gain: float = 0.0  # in log time over the source's own values
    best: dict[str, int] = field(default_factory=dict)
    tried: set[Knobs] = field(default_factory=set)


class Search:
    """Proposes settings for one source: a space at a time, the more often the more of the time depends on it.

    A setting changes one space and has what was best so far in the others; when several have got better since a setting
    was measured, they are tried together. For one thread.
    """

    def __init__(self, seed: int, source: Source, spaces: Sequence[Space], count: int, own_cost: float = 0.0) -> None:
        """`count`: settings other than the source's own, at most, and one more where several spaces got better at last;
        `own_cost`: log time of the source's own."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._count, self._own_cost = count, own_cost
        self._own = {knob.name: knob.value for space in spaces for knob in space.knobs}
        first = seed + int(source.sha256[:8], 16)
        self._states = [_state(space, (first + number) % (1 << 31)) for number, space in enumerate(spaces)]
        self._out: dict[Knobs, _Open] = {}
        self._seen: set[Knobs] = {()}
        self._measured = own_cost, dict(self._own)

    def batches(self) -> Iterator[list[Knobs]]:
        """Distinct settings other than the source's own, BATCH at a time, so that they compile side by side.

        `tell` each of a batch before the next is taken. Only what differs from the source's own is named.
        """
        while len(self._seen) <= self._count:
            batch = self._together()
            while len(batch) < BATCH and len(self._seen) <= self._count and (state := self._next()) is not None:
                setting = self._draw(state)
                if setting is not None:
                    batch.append(setting)
            if not batch:
                return
            yield batch
        if together := self._together():
            yield together

    def tell(self, setting: Knobs, cost: float | None) -> None:
        """Log time of a setting, or None when it did not build or run."""
        one = self._out.pop(setting, None)
        if one is None:
            return
        if cost is not None and cost < self._measured[0]:
            self._measured = cost, one.values
        if one.state is None or one.trial is None:
            if cost is None or cost > self._measured[0]:
                self._fall_back()
        elif cost is None:
            one.state.study.tell(one.trial, state=optuna.trial.TrialState.FAIL)
        else:
            alone = cost - self._own_cost + one.others_gain
            one.state.study.tell(one.trial, alone)
            if abs(alone) < math.log(NOTICEABLE):
                one.state.weight /= 2
            if -alone > one.state.gain:
                one.state.gain = -alone
                one.state.best = {name: one.values[name] for name in one.state.best}

    def _together(self) -> list[Knobs]:
        values = {name: value for state in self._states for name, value in state.best.items()}
        setting = self._named(values)
        if setting in self._seen:
            return []
        self._seen.add(setting)
        self._out[setting] = _Open(None, None, values, 0.0)
        return [setting]

    def _fall_back(self) -> None:
        """Gains that did not add up are forgotten where the best that was measured does without them."""
        for state in self._states:
            best = {name: self._measured[1][name] for name in state.best}
            if best != state.best:
                state.best, state.gain = best, 0.0

    def _next(self) -> _State | None:
        """By D'Hondt's rule: the space with the largest weight for each of its settings."""
        able = [state for state in self._states if state.misses < _MISSES]
        return max(able, key=lambda state: state.weight / (state.drawn + 1), default=None)

    def _draw(self, state: _State) -> Knobs | None:
        """One more setting, or None when what was drawn is known or too large."""
        if state.misses < NEAR_MISSES and (state.drawn < NEAR or state.rng.random() < NEAR_SHARE):
            state.study.enqueue_trial(_near(state.space.knobs, state.best, state.rng))
        trial = state.study.ask()
        drawn = {knob.name: knob.choices[trial.suggest_int(knob.name, *_places(knob))] for knob in state.space.knobs}
        values = {name: value for other in self._states for name, value in other.best.items()} | drawn
        setting = self._named(values)
        own = tuple(sorted(drawn.items()))
        if own in state.tried or setting in self._seen or too_large(own, state.space.fixed):
            state.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            state.misses += 1
            return None
        state.misses, state.drawn = 0, state.drawn + 1
        state.tried.add(own)
        self._seen.add(setting)
        others_gain = sum(other.gain for other in self._states if other is not state)
        self._out[setting] = _Open(state, trial, values, others_gain)
        return setting

    def _named(self, values: Mapping[str, int]) -> Knobs:
        return tuple(sorted((name, value) for name, value in values.items() if value != self._own[name]))


def _state(space: Space, seed: int) -> _State:
    own = {knob.name: knob.value for knob in space.knobs}
    return _State(space, _study(space, seed), np.random.default_rng(seed), space.weight, best=own,
                  tried={tuple(sorted(own.items()))})  # fmt: skip


def _study(space: Space, seed: int) -> optuna.Study:
    """That of a space, which knows the source's own setting: its gain over itself is 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=NEAR, multivariate=True, group=False, constant_liar=True
        )
    study = optuna.create_study(direction="minimize", sampler=sampler)
    places: dict[str, optuna.distributions.BaseDistribution] = {
        knob.name: optuna.distributions.IntDistribution(*_places(knob)) for knob in space.knobs
    }
    own = {knob.name: knob.choices.index(knob.value) for knob in space.knobs}
    study.add_trial(optuna.trial.create_trial(params=own, distributions=places, value=0.0))
    return study


def _places(knob: Knob) -> tuple[int, int]:
    return 0, len(knob.choices) - 1


def _near(knobs: Sequence[Knob], values: Mapping[str, int], rng: np.random.Generator) -> dict[str, int]:
    """Places of a setting with one knob moved by a step, or two."""
    places = {knob.name: knob.choices.index(values[knob.name]) for knob in knobs}
    moved = rng.choice(len(knobs), size=min(len(knobs), int(rng.integers(1, 3))), replace=False)
    for knob in (knobs[number] for number in moved):
        steps = [step for step in (-1, 1) if 0 <= places[knob.name] + step < len(knob.choices)]
        places[knob.name] += int(rng.choice(steps))
    return places
