"""Finds the knobs of a source, and proposes settings: steps from the best so far.

A knob is a module-level integer constant that a launch uses (`BLOCK_M = 64`), or the choice among a kernel's autotune
configurations (`kernel.config`). Everything else is structure, which strategies change. Knobs are ordered (sizes,
counts), so a step is one place in that order. The judge compares settings with the source's own. Deterministic for a
seed.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evo_kernel.fitness.record.recorder import Configurations
from evo_kernel.knobs import constants
from evo_kernel.syntax import parse_module
from evo_kernel.types import NOTICEABLE, Knobs, Source

BATCH = 4  # settings drawn before any result is known

MAX_TILE, MAX_WORK = 128 * 256, 128 * 256 * 64
"""Elements of the two, and of the three, largest tile sizes together.

Above that a program's accumulators exceed an SM's registers, and compiling the resulting spills takes minutes.
"""
MAX_TILE_A_THREAD = 128
"""Elements of the two largest tile sizes together, per thread. A thread has 255 registers: half for an accumulator.

More is unrolled, compiles slowly and spills.
"""
MAX_WORK_A_THREAD = 8192
"""Multiply-adds per thread in one step of a contraction.

Twice as many in IEEE float32 take over ten seconds to compile.
"""
NEAR_MISSES = 5
"""Known or too large steps from the best in a row, after which settings are drawn from the whole space."""
_DEFAULT_WARPS = 4
_MISSES = 30
"""Consecutive draws that are known or too large, after which a space counts as exhausted."""


def too_large(setting: Knobs, fixed: Sequence[int] = ()) -> bool:
    """Whether several tile sizes of one setting are large together; a single large row block is allowed.

    `fixed`: tile sizes that no knob sets, such as the head size of attention.
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
    """Knobs that are tuned together because one kernel takes them."""

    knobs: tuple[Knob, ...]
    weight: float = 1.0  # expected share of the time that depends on them
    fixed: tuple[int, ...] = ()  # tile sizes of the kernel that no knob sets
    multiplies: bool = False  # the kernel multiplies matrices: larger tiles need less traffic for each product


@dataclass
class _Open:
    """A proposed setting without a result: what it changes in which space, and the other spaces' gains at that time."""

    state: _State | None  # None: combines the best of all spaces
    values: dict[str, int]  # of all knobs
    others_gain: float
    step: str = ""  # the knob, if it is the one that is moved from the source's own setting, to explore it
    suggested: bool = False


@dataclass
class _State:
    space: Space
    rng: np.random.Generator
    weight: float
    drawn: int = 0
    misses: int = 0
    gain: float = 0.0  # in log time relative to the source's own values
    best: dict[str, int] = field(default_factory=dict)
    tried: set[Knobs] = field(default_factory=set)
    steps: list[Knob] = field(default_factory=list)  # tile sizes whose next larger one is still to be tried alone
    gained: dict[str, float] = field(default_factory=dict)  # log time of those that were faster, by knob


class Search:
    """Proposes settings for one source, one space at a time, in proportion to the spaces' weights.

    A setting changes one space and uses the best known values of the others. When several spaces have improved since a
    setting was measured, the improvements are tried together. For one thread.
    """

    def __init__(self, seed: int, source: Source, spaces: Sequence[Space], count: int, own_cost: float = 0.0) -> None:
        """`count`: maximal number of settings besides the source's own, plus one if several spaces improved last;
        `own_cost`: log time of the source's own setting."""
        self._count, self._own_cost = count, own_cost
        self._own = {knob.name: knob.value for space in spaces for knob in space.knobs}
        first = seed + int(source.sha256[:8], 16)
        self._states = [_state(space, (first + number) % (1 << 31)) for number, space in enumerate(spaces)]
        self._out: dict[Knobs, _Open] = {}
        self._seen: set[Knobs] = {()}
        self._suggested: set[Knobs] = {()}
        self._waiting: list[Knobs] = []  # suggested, for the next batch
        self._measured = own_cost, dict(self._own)

    def batches(self) -> Iterator[list[Knobs]]:
        """Distinct settings other than the source's own, BATCH at a time, so that they compile in parallel.

        Call `tell` for each of a batch before the next. A setting names only knobs that differ from the source's.
        """
        while self._waiting or len(self._seen) <= self._count:
            batch, self._waiting = [*self._waiting, *self._together()], []
            while len(batch) < BATCH and len(self._seen) <= self._count and (state := self._next()) is not None:
                setting = self._draw(state)
                if setting is not None:
                    batch.append(setting)
            if not batch:
                return
            yield batch
        if together := self._together():
            yield together

    def suggest(self, setting: Knobs) -> None:
        """Try a setting with the next batch, once: it was faster for a source with the same values of these knobs."""
        if setting in self._suggested or len(self._seen) > self._count:
            return
        self._suggested.add(setting)
        wanted, values = dict(setting), {name: value for state in self._states for name, value in state.best.items()}
        for knob in (knob for state in self._states for knob in state.space.knobs):
            if wanted.get(knob.name) in knob.choices:
                values[knob.name] = wanted[knob.name]
        named, fits = self._named(values), True
        for state in self._states:
            own = tuple(sorted((name, values[name]) for name in state.best))
            fits = fits and not too_large(own, state.space.fixed)
        if fits and named not in self._seen:
            self._seen.add(named)
            self._out[named] = _Open(None, values, 0.0, suggested=True)
            self._waiting.append(named)

    def tell(self, setting: Knobs, cost: float | None) -> None:
        """Report the log time of a setting, or None if it did not build or run."""
        proposed = self._out.pop(setting, None)
        if proposed is None:
            return
        if cost is not None and cost < self._measured[0]:
            self._measured = cost, proposed.values
        if proposed.state is None:
            faster = cost is not None and cost <= self._measured[0]
            if cost is not None and faster and proposed.suggested:
                self._take(proposed.values, self._own_cost - cost)
            elif not faster and not proposed.suggested:
                self._fall_back()
        elif cost is not None:
            alone = cost - self._own_cost + proposed.others_gain
            if abs(alone) < math.log(NOTICEABLE):
                proposed.state.weight /= 2
            elif proposed.step and alone < 0:
                proposed.state.gained[proposed.step] = alone
            if -alone > proposed.state.gain:
                proposed.state.gain = -alone
                proposed.state.best = {name: proposed.values[name] for name in proposed.state.best}

    def _together(self) -> list[Knobs]:
        values = {name: value for state in self._states for name, value in state.best.items()}
        setting = self._named(values)
        if setting in self._seen:
            return []
        self._seen.add(setting)
        self._out[setting] = _Open(None, values, 0.0)
        return [setting]

    def _take(self, values: Mapping[str, int], gain: float) -> None:
        """Go on from a suggested setting. `gain`: of all spaces together, in log time."""
        changed = [s for s in self._states if any(values[name] != value for name, value in s.best.items())]
        gain -= sum(state.gain for state in self._states if state not in changed)
        for state in changed:
            state.best = {name: values[name] for name in state.best}
            state.gain, state.steps = gain / len(changed), []

    def _fall_back(self) -> None:
        """Drop gains that did not add up, if a setting without them is the best measured."""
        for state in self._states:
            best = {name: self._measured[1][name] for name in state.best}
            if best != state.best:
                state.best, state.gain = best, 0.0

    def _next(self) -> _State | None:
        """The next space by D'Hondt's method: the largest weight per setting."""
        able = [state for state in self._states if state.misses < _MISSES]
        return max(able, key=lambda state: state.weight / (state.drawn + 1), default=None)

    def _draw(self, state: _State) -> Knobs | None:
        """One more setting, or None if the draw is known or too large."""
        step, knobs = "", state.space.knobs
        if state.steps:
            knob = state.steps.pop(0)
            step = knob.name
            drawn = {knob.name: knob.value for knob in knobs} | {step: _larger(knob)}
        elif len(state.gained) > 1:
            drawn = {knob.name: knob.value for knob in knobs} | _together_larger(state)
            state.gained.clear()
        elif state.misses < NEAR_MISSES:
            drawn = _near(knobs, state.best, state.rng)
        else:
            drawn = {knob.name: int(state.rng.choice(knob.choices)) for knob in knobs}
        values = {name: value for other in self._states for name, value in other.best.items()} | drawn
        setting = self._named(values)
        own = tuple(sorted(drawn.items()))
        if own in state.tried or setting in self._seen or too_large(own, state.space.fixed):
            state.misses += 1
            return None
        state.misses, state.drawn = 0, state.drawn + 1
        state.tried.add(own)
        self._seen.add(setting)
        others_gain = sum(other.gain for other in self._states if other is not state)
        self._out[setting] = _Open(state, values, others_gain, step)
        return setting

    def _named(self, values: Mapping[str, int]) -> Knobs:
        return tuple(sorted((name, value) for name, value in values.items() if value != self._own[name]))


def _state(space: Space, seed: int) -> _State:
    """Where matrices are multiplied, tile sizes are explored first: the next larger one of each, alone, then those that
    were faster together (Hooke and Jeeves, "Direct search" solution of numerical and statistical problems, 1961)."""
    own = {knob.name: knob.value for knob in space.knobs}
    steps = [knob for knob in space.knobs if space.multiplies and is_tile(knob.name) and knob.value < knob.choices[-1]]
    return _State(
        space, np.random.default_rng(seed), space.weight, best=own, tried={tuple(sorted(own.items()))}, steps=steps
    )


def _larger(knob: Knob) -> int:
    return knob.choices[knob.choices.index(knob.value) + 1]


def _together_larger(state: _State) -> dict[str, int]:
    """The larger tile sizes that were faster alone, the best first, as far as they are not too large together."""
    own = {knob.name: knob.value for knob in state.space.knobs}
    larger: dict[str, int] = {}
    for knob in sorted(state.space.knobs, key=lambda knob: state.gained.get(knob.name, 0.0)):
        if knob.name in state.gained:
            more = larger | {knob.name: _larger(knob)}
            larger = larger if too_large(tuple((own | more).items()), state.space.fixed) else more
    return larger


def _near(knobs: Sequence[Knob], values: Mapping[str, int], rng: np.random.Generator) -> dict[str, int]:
    """A setting with one knob moved, or two, by one step each."""
    near = {knob.name: values[knob.name] for knob in knobs}
    moved = rng.choice(len(knobs), size=min(len(knobs), int(rng.integers(1, 3))), replace=False)
    for knob in (knobs[number] for number in moved):
        place = knob.choices.index(near[knob.name])
        steps = [step for step in (-1, 1) if 0 <= place + step < len(knob.choices)]
        near[knob.name] = knob.choices[place + int(rng.choice(steps))]
    return near


_POWERS = (1, 2, 4, 8, 16)
_BY_ENDING = {
    "WARPS": _POWERS, "STAGES": (1, 2, 3, 4, 5), "GROUP(_[A-Z])?": _POWERS, "SPLIT(_[A-Z])?": _POWERS,
    "REGISTERS": (32, 64, 96, 128, 168, 255),
}  # fmt: skip
"""The suffix of a constant's name tells its meaning, ignoring a number: before it may stand the kernel's name
(`GROUP_NORM_BLOCK` is a tile)."""
_COUNTS = (*_BY_ENDING, "PROGRAMS(_PER_SM)?", r"[^_]*\.config")
_ROWS = "ROWS(_PER_[A-Z]+)?"


@dataclass(frozen=True)
class Knob:
    """One knob with its current value and the values to try, which include it."""

    name: str
    value: int
    choices: tuple[int, ...]


def find_knobs(source: Source, configs: Mapping[str, Configurations] | None = None) -> tuple[Knob, ...]:
    """Knobs of a source, in order of appearance. `configs`: autotune configurations by kernel, from the recorder."""
    tree = parse_module(source.text)
    used = _launched_names(tree)
    knobs = [
        Knob(name, value, _choices(name, value))
        for name, value in {name: value for name, value, _ in constants(tree)}.items()  # the last one counts
        if name in used and len(_choices(name, value)) > 1
    ]
    knobs += [
        Knob(f"{kernel}.config", found.own, tuple(range(len(found.texts))))
        for kernel, found in sorted((configs or {}).items())
        if len(found.texts) > 1
    ]
    return tuple(knobs)


@dataclass(frozen=True)
class KnobGroup:
    """Knobs that are tuned together: those of one kernel, or of several kernels that share some."""

    knobs: tuple[Knob, ...]
    kernels: frozenset[str]  # names of the functions; empty: no launch takes these knobs directly


def knob_groups(source: Source, knobs: Sequence[Knob]) -> tuple[KnobGroup, ...]:
    """Group knobs by the launches that take them, in order of appearance.

    Times of kernels that run one after another add up, so one kernel's best setting does not depend on another's knobs.
    """
    taken: dict[str, set[str]] = {knob.name: set() for knob in knobs}
    for node in ast.walk(parse_module(source.text)):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=kernel))):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                for name in names & taken.keys():
                    taken[name].add(kernel)
    for name, kernels in taken.items():
        if name.endswith(".config"):
            kernels.add(name.removesuffix(".config"))
    groups: list[tuple[list[Knob], set[str]]] = []
    for knob in knobs:
        kernels = taken[knob.name]
        shared = [group for group in groups if group[1] & kernels or not (group[1] or kernels)]
        merged = [knob for group in shared for knob in group[0]]
        groups = [group for group in groups if group not in shared]
        groups.append(([*merged, knob], set().union(kernels, *(group[1] for group in shared))))
    if len(groups) == 2 and any(
        not kernels for _, kernels in groups
    ):  # with one kernel, knobs that no launch takes belong to it
        groups = [([knob for members, _ in groups for knob in members], set().union(*(k for _, k in groups)))]
    order = {knob.name: number for number, knob in enumerate(knobs)}
    knob_sets = [
        KnobGroup(tuple(sorted(members, key=lambda knob: order[knob.name])), frozenset(kernels))
        for members, kernels in groups
    ]
    return tuple(sorted(knob_sets, key=lambda group: order[group.knobs[0].name]))


def _launched_names(tree: ast.Module) -> set[str]:
    """Names read outside jitted functions: a constant that only a kernel reads is not set at launch."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and not _is_jitted(node)):
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names


def _is_jitted(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def _choices(name: str, value: int) -> tuple[int, ...]:
    for ending, choices in _BY_ENDING.items():
        if _ends(name, ending):
            return tuple(sorted({*choices, value}))
    if value in _POWERS and _ends(name, _ROWS):
        return _POWERS
    if value < 1 or value & (value - 1):
        return (value,)
    return tuple(s for s in (value // 4, value // 2, value, value * 2, value * 4, value * 8) if s >= min(16, value))


def is_tile(name: str) -> bool:
    """Whether a knob is a tile size, by its name."""
    return not any(_ends(name, ending) for ending in _COUNTS)


def _ends(name: str, ending: str) -> bool:
    return re.search(rf"(^|_)({ending})(_?\d+)?$", name) is not None
