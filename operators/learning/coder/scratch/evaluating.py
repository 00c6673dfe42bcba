"""How often the judge finds the answers of a coder right, on requests that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from operators.learning.coder.rewards import Ask, RewardJudge, RewardParts, grades
from operators.learning.coder.scratch.grpo import GrpoSettings, answered
from operators.learning.coder.scratch.training import Trained

RESAMPLED = 2000


@dataclass(frozen=True)
class Rate:
    """Shares of answers, drawn at the training's temperature; `low` and `high`: of `right`, 95 %, over requests.

    `right`: Triton, right on every check case, by another plan than the parent's. `likeliest`: the same of the answer
    that is likeliest. `any_right`: share of requests with a right answer among those drawn. `reward`: their mean.
    """

    right: float
    low: float
    high: float
    likeliest: float
    any_right: float
    witnessed: float
    reward: float
    requests: int
    samples: int

    def data(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    coder: Trained, asks: Sequence[Ask], bench: RewardJudge, parts: RewardParts, settings: GrpoSettings, samples: int
) -> Rate:
    """The same requests and seeds give the same answers of the same coder. What could not be judged counts as wrong."""
    repeated = [ask for ask in asks for _ in range(samples)]
    *_, said = answered(coder, repeated, settings, seed=20_011)
    *_, greedy = answered(coder, asks, replace(settings, temperature=0.0), seed=0)
    found = grades([*repeated, *asks], [*said, *greedy], bench, parts)
    drawn, likeliest = found[: len(repeated)], found[len(repeated) :]
    right = np.array([one.right for one in drawn], dtype=float).reshape(len(asks), samples)
    rng = np.random.default_rng(0)
    means = right.mean(axis=1)[rng.integers(len(asks), size=(RESAMPLED, len(asks)))].mean(axis=1)
    low, high = (float(one) for one in np.quantile(means, [0.025, 0.975]))
    rewards = [one.reward for one in drawn if not math.isnan(one.reward)]
    return Rate(
        right=float(right.mean()), low=low, high=high, likeliest=float(np.mean([one.right for one in likeliest])),
        any_right=float(right.any(axis=1).mean()),
        witnessed=float(np.mean([one.right and one.witnessed for one in drawn])),
        reward=float(np.mean(rewards)) if rewards else math.nan, requests=len(asks), samples=samples,
    )  # fmt: skip
