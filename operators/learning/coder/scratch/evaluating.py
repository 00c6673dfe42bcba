"""How often the judge finds the answers of a coder right, on requests that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from operators.learning.coder.rewards import Ask, RewardJudge, RewardParts, grades
from operators.learning.coder.scratch.grpo import GrpoSettings, answered
from operators.learning.coder.scratch.training import Trained

RESAMPLED = 2000


def evaluate(
    coder: Trained, asks: Sequence[Ask], bench: RewardJudge, parts: RewardParts, settings: GrpoSettings, samples: int
) -> dict[str, float]:
    """Shares of answers, drawn at the training's temperature; what could not be judged counts as wrong.

    `right`: Triton, right on every check case, by another plan than the parent's; `low` and `high`: its 95 % interval
    over requests. `likeliest`: the same of the answer that is likeliest. `any_right`: share of requests with a right
    answer among those drawn. `reward`: their mean. The same requests and seeds give the same answers of the same coder.
    """
    repeated = [ask for ask in asks for _ in range(samples)]
    *_, said = answered(coder, repeated, settings, seed=20_011)
    *_, greedy = answered(coder, asks, replace(settings, temperature=0.0), seed=0)
    found = grades([*repeated, *asks], [*said, *greedy], bench, parts)
    drawn, likeliest = found[: len(repeated)], found[len(repeated) :]
    right = np.array([one.right for one in drawn], dtype=float).reshape(len(asks), samples)
    rng = np.random.default_rng(0)
    means = right.mean(axis=1)[rng.integers(len(asks), size=(RESAMPLED, len(asks)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    rewards = [one.reward for one in drawn if not math.isnan(one.reward)]
    shares = {
        "right": right.mean(), "low": low, "high": high, "likeliest": np.mean([one.right for one in likeliest]),
        "any_right": right.any(axis=1).mean(), "witnessed": np.mean([one.right and one.witnessed for one in drawn]),
        "reward": np.mean(rewards) if rewards else math.nan,
    }  # fmt: skip
    return {name: float(share) for name, share in shares.items()} | {"requests": len(asks), "samples": samples}
