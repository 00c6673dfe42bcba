"""The reward as a function that other trainers import: TRL's signature, and verl's.

    from evo_kernel.app.train.reward import reward_function, compute_score

    trainer = GRPOTrainer(..., reward_funcs=reward_function(task="softmax", device="cuda", parts="full"))

A dataset made by `evo-kernel train export-sft` brings the columns that tell one row from another: `task`, `parent`,
`action`. What a row does not say is what the function was made with. A completion that the machine could not judge
is NaN, which TRL leaves out of the group.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from evo_kernel.app.train.judging import BenchSettings, PlanRewardJudge
from evo_kernel.app.train.problems import problem_task
from evo_kernel.errors import UserError
from evo_kernel.tasks.first import first_kernel
from evo_kernel.types import Strategy
from operators.learning.coder.rewards import Ask, RewardParts, grades, parts_of
from operators.learning.tree import strategy_of

Completion = str | Sequence[Mapping[str, Any]]
"""A text, or the messages that a conversational dataset's completion consists of."""


class JudgedReward:
    """`reward(prompts, completions, **columns) -> list[float]`; use it as a context manager, or close it."""

    __name__ = "evo_kernel_reward"  # what TRL calls its column in the log

    def __init__(self, task: str = "", parts: RewardParts | str = "full", bench: BenchSettings | None = None) -> None:
        """`task`: of rows that have no column `task`. Raises UserError for one that does not exist."""
        self._task = task
        self.parts = parts_of(parts) if isinstance(parts, str) else parts
        self._bench = PlanRewardJudge(bench)
        if task:
            problem_task(task)

    def __enter__(self) -> JudgedReward:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._bench.close()

    def __call__(
        self, prompts: Sequence[Any] = (), completions: Sequence[Completion] = (), **columns: Any
    ) -> list[float]:
        """One reward a completion; `columns`: lists as long as `completions`, or one value for all."""
        del prompts  # what was asked is in the columns
        asks = [self._ask(at, columns) for at in range(len(completions))]
        return [one.reward for one in grades(asks, [_text(one) for one in completions], self._bench, self.parts)]

    def _ask(self, at: int, columns: Mapping[str, Any]) -> Ask:
        task = _cell(columns, "task", at) or self._task
        if not task:
            raise UserError(
                "no task: give the reward one (`reward_function(task=...)`), or the dataset a column `task`"
            )
        parent = _cell(columns, "parent", at) or _first(task)
        action = _cell(columns, "action", at)
        return Ask(task, parent, _strategy(action) if action else None)


@cache
def reward_function(
    task: str = "",
    device: str = "auto",
    parts: str = "full",
    gpus: str = "1",
    threads: int = 8,
    deadline_s: float = 20.0,
) -> JudgedReward:
    """The reward for these settings, made once a process and closed with it. Raises UserError.

    `parts`: a preset (`full`, `correct`, `binary`). `device`: auto, cpu (modeled) or cuda. `gpus`: a number, or all.
    """
    settings = BenchSettings(device=device, gpus=gpus, threads=threads, deadline_s=deadline_s)
    made = JudgedReward(task, parts, settings)
    atexit.register(made.close)
    return made


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any = None, extra_info: Mapping[str, Any] | None = None
) -> float:
    """verl's signature. `data_source` names the task; `extra_info` may hold task, parent, action, device and parts."""
    del ground_truth  # the judge has the reference
    said = dict(extra_info or {})
    made = reward_function(device=str(said.get("device", "auto")), parts=str(said.get("parts", "full")))
    columns = {name: said[name] for name in ("parent", "action") if said.get(name)}
    (found,) = made((), [solution_str], task=str(said.get("task") or data_source), **columns)
    return found


@cache
def _first(task: str) -> str:
    return first_kernel(problem_task(task)).text


def _cell(columns: Mapping[str, Any], name: str, at: int) -> Any:
    value = columns.get(name)
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
