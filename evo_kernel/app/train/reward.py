"""The reward as a function with TRL's signature.

    with JudgedReward(parts_of("full")) as reward:
        trainer = GRPOTrainer(..., reward_funcs=reward)

A dataset made by `evo-kernel train export-sft` brings the columns that it reads: `task`, `parent`, `action`. A
completion that the machine could not judge is NaN, which TRL leaves out of the group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from evo_kernel.app.train.judging import BenchSettings, PlanRewardJudge
from evo_kernel.errors import UserError
from evo_kernel.types import Strategy
from operators.learning.coder.rewards import Ask, RewardParts, grades
from operators.learning.tree import strategy_of

Completion = str | Sequence[Mapping[str, Any]]
"""A text, or the messages that a conversational dataset's completion consists of."""


class JudgedReward:
    """`reward(prompts, completions, **columns) -> list[float]`; use it as a context manager."""

    __name__ = "evo_kernel_reward"  # what TRL calls its column in the log

    def __init__(self, parts: RewardParts, bench: BenchSettings | None = None) -> None:
        self.parts = parts
        self._bench = PlanRewardJudge(bench)

    def __enter__(self) -> JudgedReward:
        return self

    def __exit__(self, *error: object) -> None:
        self._bench.close()

    def __call__(
        self, prompts: Sequence[Any] = (), completions: Sequence[Completion] = (), **columns: Any
    ) -> list[float]:
        """One reward a completion; `columns`: lists as long as `completions`, or one value for all."""
        del prompts  # what was asked is in the columns
        try:
            asks = [
                Ask(_cell(columns, "task", at), _cell(columns, "parent", at), _strategy(_cell(columns, "action", at)))
                for at in range(len(completions))
            ]
        except KeyError as missing:
            raise UserError(f"the dataset has no column {missing}: make it with `train export-sft`") from None
        return [one.reward for one in grades(asks, [_text(one) for one in completions], self._bench, self.parts)]


def _cell(columns: Mapping[str, Any], name: str, at: int) -> Any:
    value = columns[name]
    return value[at] if isinstance(value, list | tuple) else value


def _strategy(action: Any) -> Strategy:
    try:
        return strategy_of(json.loads(action))
    except (ValueError, TypeError) as error:
        raise UserError(f"the column `action` holds {action!r}, no strategy of `train export-sft`: {error}") from None


def _text(completion: Completion) -> str:
    if isinstance(completion, str):
        return completion
    return "".join(str(one.get("content") or "") for one in completion if one.get("role") == "assistant")
