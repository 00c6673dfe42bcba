"""Rewards of completions: valid and right, faster, with the sign of the strategy asked for, minus cheating.

    reward = form · (it is an edit) + valid · (it is Triton, right, and another plan than the parent's)
           + speed · log(parent's time ÷ its own), within ± speed_limit
           + witness · (the plan shows the strategy that was asked for)  − integrity · (the judge rejected it)

Every part is a weight; 0 switches it off. `binary` is AutoTriton's reward: 1 for what is Triton and passes, else 0.

Whether it is Triton is read from the launches that the judge recorded, never from the text: every kernel of the plan
was a Triton kernel, and no torch operation computes. A completion that the machine could not judge has no reward (NaN).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Protocol

from evo_kernel.errors import UserError
from evo_kernel.types import Evaluation, PlanFeatures, Source, Status, Strategy
from operators.learning.coder.answers import Written, kernel_of
from operators.macro.catalogue import shows


@dataclass(frozen=True)
class RewardParts:
    """Weights; 0 switches a part off. `changed`, `is_triton`: whether `valid` asks for them."""

    valid: float = 1.0
    speed: float = 0.5
    witness: float = 0.5
    integrity: float = 1.0
    form: float = 0.1
    speed_limit: float = 1.4  # of the log gain: a factor of four either way
    changed: bool = True  # an edit that leaves the plan as it was is no work done
    is_triton: bool = True


PRESETS: Mapping[str, RewardParts] = MappingProxyType({
    "full": RewardParts(),
    "correct": RewardParts(speed=0.0, witness=0.0),
    "binary": RewardParts(speed=0.0, witness=0.0, integrity=0.0, form=0.0, changed=False),
})  # fmt: skip


def parts_of(name: str, changes: Mapping[str, str] | None = None) -> RewardParts:
    """A preset with some parts changed, as `--reward full --part speed=1` has them. Raises UserError."""
    if name not in PRESETS:
        raise UserError(f"unknown reward {name!r}: there are {', '.join(PRESETS)}")
    kinds = {one.name: one.type for one in fields(RewardParts)}
    values: dict[str, float | bool] = {}
    for key, value in (changes or {}).items():
        if key not in kinds:
            raise UserError(f"the reward has no part {key!r}; it has {', '.join(kinds)}")
        try:
            values[key] = {"true": True, "false": False}[value.lower()] if kinds[key] == "bool" else float(value)
        except (ValueError, KeyError):
            wanted = "true or false" if kinds[key] == "bool" else "a number"
            raise UserError(f"the part {key} of the reward needs {wanted}, not {value!r}") from None
    return replace(PRESETS[name], **values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ask:
    """What a completion answers: carry `strategy` out on `parent`. No strategy: any change counts as asked for."""

    task: str
    parent: str
    strategy: Strategy | None = None


@dataclass(frozen=True)
class RewardOutcome:
    """What the judge found. `evaluation`: None where the machine failed. `is_triton`: by the recorded launches.

    `plans`: by case a plan's hash and, of search cases, its features, with the knobs as written; empty of a kernel that
    failed. They are recorded, not timed: a sign can be seen of a kernel that nobody timed.
    """

    evaluation: Evaluation | None
    is_triton: bool = False
    plans: Mapping[str, tuple[str, PlanFeatures | None]] = field(default_factory=dict)

    @property
    def hashes(self) -> dict[str, str]:
        """By case. Equal ones are the same kernels, whatever these are called: features tell names apart."""
        return {case: plan for case, (plan, _) in self.plans.items()}


class RewardJudge(Protocol):
    """Judges kernels, many at once. Thread-safe."""

    def judged(self, kernels: Sequence[tuple[str, Source]], timed: bool) -> list[RewardOutcome]:
        """For each (task, source) its outcome, in order. Never raises for a kernel, nor for a machine that failed."""
        ...


@dataclass(frozen=True)
class Grade:
    """The reward and what it is made of. `right`: valid in the sense of the parts."""

    reward: float
    right: bool = False
    witnessed: bool = False
    gain: float | None = None
    status: str = "no edit"
    reason: str = ""


def grades(asks: Sequence[Ask], completions: Sequence[str], bench: RewardJudge, parts: RewardParts) -> list[Grade]:
    """What each completion earns. Parents are judged too, once each: gains and signs are held against them."""
    written = [kernel_of(completion, ask.parent) for ask, completion in zip(asks, completions, strict=True)]
    wanted: dict[tuple[str, str], None] = {}
    for ask, one in zip(asks, written, strict=True):
        if one.text is not None:
            wanted[(ask.task, ask.parent)] = wanted[(ask.task, one.text)] = None
    found = bench.judged([(task, Source(text)) for task, text in wanted], timed=bool(parts.speed))
    outcomes = dict(zip(wanted, found, strict=True))
    return [
        _grade(ask, one, outcomes.get((ask.task, one.text or "")), outcomes.get((ask.task, ask.parent)), parts)
        for ask, one in zip(asks, written, strict=True)
    ]


def _grade(
    ask: Ask, one: Written, child: RewardOutcome | None, parent: RewardOutcome | None, parts: RewardParts
) -> Grade:
    if one.text is None:
        return Grade(0.0, reason=one.fault)
    if child is None or child.evaluation is None or child.evaluation.status is Status.INFRA_ERROR:
        return Grade(math.nan, status="not judged", reason="the machine failed, not the kernel")
    found, before = child.evaluation, parent.evaluation if parent is not None else None
    reward = parts.form - (parts.integrity if found.status is Status.REJECTED else 0.0)
    same = parent is not None and bool(child.plans) and child.hashes == parent.hashes
    right = found.passed and (child.is_triton or not parts.is_triton) and not (parts.changed and same)
    if not right:
        reason = found.reason or ("its plan is the parent's" if same else "it is not Triton alone")
        return Grade(reward, status=str(found.status), reason=reason)
    gain = before.log_us - found.log_us if before is not None and before.passed else math.nan
    shown = parent is not None and shows(ask.strategy, parent.plans, child.plans) if ask.strategy else not same
    reward += parts.valid + (parts.witness if shown else 0.0)
    if not math.isnan(gain):
        reward += parts.speed * max(-parts.speed_limit, min(parts.speed_limit, gain))
    return Grade(reward, True, shown, None if math.isnan(gain) else gain, str(found.status))
