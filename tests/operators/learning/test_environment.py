"""The Gymnasium environment."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from evo_kernel.errors import UserError
from tests.operators.learning.trees import EXP2, HOIST, joined, small

pytest.importorskip("gymnasium", reason="the extra rl")

from gymnasium.utils.env_checker import check_env

from operators.learning.environment import ReplayEnvironment
from operators.learning.replay import UnseenTransition


class _Masked(ReplayEnvironment):
    """Answers an action that is masked with one that is not: Gymnasium's checker knows no masks."""

    def step(self, action):
        mask = self.action_masks()
        return super().step(action if mask[action] else int(np.flatnonzero(mask)[0]))


def test_gymnasium_finds_nothing_wrong() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_env(_Masked(small(), offers=4), skip_render_check=True)  # raises where the interface is not kept
    # logarithms of times have no bounds
    assert [
        str(one.message)
        for one in told
        if "is -infinity" not in str(one.message) and "is infinity" not in str(one.message)
    ] == []


def test_an_episode() -> None:
    env = ReplayEnvironment(small(), offers=4)
    seen, info = env.reset(seed=1)
    assert seen["mask"].tolist() == [1, 1, 1, 0, 1] and info["offered"][0] == EXP2
    seen, reward, terminated, truncated, info = env.step(0)
    assert reward == pytest.approx(0.6) and not terminated and not truncated
    assert info["offered"][1] == HOIST and seen["step"] == 1
    seen, reward, terminated, truncated, info = env.step(1)
    assert reward == pytest.approx(0.6 + 0.9) and info["best_gain"] == pytest.approx(0.4)
    assert seen["mask"].tolist() == [0, 0, 0, 0, 1]
    for masked in (0, 3):
        with pytest.raises(UnseenTransition):
            env.step(masked)
    _, reward, terminated, truncated, _ = env.step(4)
    assert terminated and not truncated and reward == 0.0


def test_roots_are_of_the_split_and_drawn_by_the_seed() -> None:
    tree = joined(small(), small("other"), small("third", "held-out"))
    env = ReplayEnvironment(tree)
    drawn = [env.reset(seed=seed)[1]["macro_state"].source.text for seed in range(20)]
    assert set(drawn) == {"# rows root", "# other root"}
    assert drawn == [env.reset(seed=seed)[1]["macro_state"].source.text for seed in range(20)]
    with pytest.raises(UserError, match="no root"):
        ReplayEnvironment(small(), "held-out")
    with pytest.raises(UserError, match="offers=3"):
        ReplayEnvironment(small(), offers=2)
