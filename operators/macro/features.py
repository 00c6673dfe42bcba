"""What a policy sees: numbers of a fixed length, each about within [-1, 1], zero where nothing is known.

A design row of a linear model has a one-hot of the strategy and of its form, the context (a baseline shared by all),
and the context again in the block of the strategy's family: what is learnt about one fusion helps the next.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evo_kernel.types import (
    Brief,
    CaseKind,
    Evaluation,
    PlanFeatures,
    ScoredCandidate,
    Source,
    Strategy,
    TaskCard,
    Tried,
)
from operators.macro.catalogue import CATALOGUE, DESCRIPTION, FAMILIES, LOADS, MULTIPROCESSORS, STORES, count

FEATURES = (
    "bias",  # 1
    "light share",  # mean over cases
    "light known",  # 1 where the task gives flops or bytes
    "log score",  # natural log of the score / 3
    "log time",  # log10 of µs of the slowest case / 5
    "log elements",  # log2 of input elements of the largest case / 32
    "launches",  # log2 / 4
    "scratch",  # log2 of bytes + 1 / 40
    "tensor core",  # 0 none, 0.5 mma, 1 wgmma, of the dominant kernel; so the next five
    "data path",  # 0 load, 0.5 cp.async, 1 tma
    "waves",  # log2 of programs a multiprocessor / 8
    "registers",  # / 255
    "spills",  # 0 or 1
    "memory mix",  # share of global loads and stores among instructions
    "special mix",  # share of special-function instructions
    "contraction",  # 1 where the source calls tl.dot
    "depth",  # log2 of strategies on the path + 1 / 5
)
_NAMES = tuple(CATALOGUE)
_POSITION = {name: position for position, name in enumerate(_NAMES)}
_FAMILY = {name: position for position, name in enumerate(FAMILIES)}
FORMS = 32  # places that forms of strategies (their parameters) are hashed to
_FORM_AT = len(_NAMES) + 1  # after the one-hot, whose last place is for names outside the catalogue
CONTEXT_AT = _FORM_AT + FORMS
_FAMILY_AT = CONTEXT_AT + len(FEATURES)
DESIGN_SIZE = _FAMILY_AT + len(FEATURES) * len(FAMILIES)
_TENSOR = {"none": 0.0, "mma": 0.5, "wgmma": 1.0}
_PATH = {"load": 0.0, "cp.async": 0.5, "tma": 1.0}


@dataclass(frozen=True)
class MacroState:
    """What macro thinking decides on: the task, the parent, the source as it stands after the steps so far."""

    task: TaskCard
    parent: ScoredCandidate
    source: Source
    tried: tuple[Tried, ...] = ()
    steps: int = 0  # kept in this attempt already
    brief: Brief | None = None  # the whole ticket, for policies that read more than numbers
    free: bool = False  # whether a strategy that nobody offered could be carried out
    trail: tuple[tuple[Strategy, str], ...] = ()  # tried in this attempt, with outcomes, oldest first
    expected_gains: Mapping[str, float] = field(default_factory=dict)  # log gains, by key of the strategies known


def context(state: MacroState) -> tuple[float, ...]:
    """FEATURES of a state. Steps of this attempt move only depth and contraction: the rest is the parent's."""
    evaluation = state.parent.evaluation
    plan = evaluation.features if evaluation else None
    return (
        1.0,
        *_time(evaluation),
        math.log2(_elements(state.task)) / 32,
        *_plan(plan),
        float("tl.dot" in state.source.text),
        math.log2(len(state.parent.strategies) + state.steps + 1) / 5,
    )


def design(seen: Sequence[float], strategy: Strategy) -> tuple[np.ndarray, np.ndarray]:
    """Positions and values of the non-zero part of a row of length DESIGN_SIZE.

    A strategy has an effect of its own and, where it has parameters, one of that form of it.
    """
    position = _POSITION.get(strategy.name, len(_NAMES))
    values = np.asarray(seen, dtype=float)
    span = np.arange(len(FEATURES))
    family = _FAMILY.get(strategy.family)
    blocks = [np.array([position]), span + CONTEXT_AT]
    weights = [np.ones(1), values]
    if family is not None:
        blocks.append(span + _FAMILY_AT + family * len(FEATURES))
        weights.append(values)
    if strategy.parameters and not any(name == DESCRIPTION for name, _ in strategy.parameters):
        form = zlib.crc32(repr((strategy.name, strategy.parameters)).encode()) % FORMS
        blocks.append(np.array([_FORM_AT + form]))
        weights.append(np.ones(1))
    return np.concatenate(blocks), np.concatenate(weights)


def _time(evaluation: Evaluation | None) -> tuple[float, float, float, float]:
    if evaluation is None or not evaluation.measurements:
        return (0.0, 0.0, 0.0, 0.0)
    shares = [m.light_share for m in evaluation.measurements if m.light_share is not None]
    slowest_us = max(m.median_us for m in evaluation.measurements)
    score = evaluation.score if evaluation.score and evaluation.score > 0 else 1.0
    return (
        _held(sum(shares) / len(shares)) if shares else 0.0,
        float(bool(shares)),
        _held(math.log(score) / 3),
        _held(math.log10(max(slowest_us, 1e-3)) / 5),
    )


def _plan(plan: PlanFeatures | None) -> tuple[float, ...]:
    kernel = plan.dominant if plan else None
    if plan is None or kernel is None:
        return (0.0,) * 9
    every = max(sum(k.instructions.get("all", 0) for k in plan.kernels), 1)
    return (
        _held(math.log2(max(plan.launches, 1)) / 4),
        math.log2(plan.scratch_bytes + 1) / 40,
        _TENSOR.get(kernel.tensor_core, 0.0),
        _PATH.get(kernel.data_path, 0.0),
        _held(math.log2(max(math.prod(kernel.grid), 1) / MULTIPROCESSORS) / 8),
        kernel.registers / 255,
        float(any(k.spill_bytes for k in plan.kernels)),
        count(plan, *LOADS, *STORES) / every,
        count(plan, "mufu") / every,
    )


def _elements(task: TaskCard) -> int:
    """Input elements of the largest search case, or of the largest case when none is a search case; at least 1."""
    searched = [case for case in task.cases if case.kind is CaseKind.SEARCH] or list(task.cases)
    return max((sum(math.prod(shape) for _, shape, _ in case.inputs) for case in searched), default=1) or 1


def _held(value: float) -> float:
    return min(max(value, -1.0), 1.0) if math.isfinite(value) else 0.0
