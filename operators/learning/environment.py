"""The walk over a tree as a Gymnasium environment (needs the extra `rl`).

    env = ReplayEnvironment(tree, "train")
    seen, info = env.reset(seed=0)
    seen, reward, terminated, truncated, info = env.step(action)

Actions are numbers into a state's offers, in the coder's order, padded to `offers` places; the last, number `offers`,
is `stop`. What may be taken is in `seen["mask"]` and `info["action_mask"]`; anything else raises. `info` also holds
`macro_state` and `offered`, for policies that read texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evo_kernel.errors import UserError
from operators.learning.replay import Overlay, UnseenTransition, Walk
from operators.learning.reward import RewardSettings
from operators.learning.tree import HORIZON, Split, Tree
from operators.macro.catalogue import CATALOGUE
from operators.macro.features import FEATURES, context

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:  # an extra
    raise UserError("the replay environment needs Gymnasium: pip install 'evo-kernel[rl]'.") from error

OFFERS = 32
"""Places for a state's offers; the built-in tasks offer up to 20."""

_NUMBER = {name: number for number, name in enumerate(CATALOGUE, start=1)}  # 0 is for places that are empty


class ReplayEnvironment(gymnasium.Env[dict[str, np.ndarray], np.int64]):
    """Episodes from the roots of a split in random turn, or from `options={"root": id}` of `reset`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (so declared by gymnasium)

    def __init__(
        self,
        tree: Tree,
        split: Split | None = "train",
        reward: RewardSettings | None = None,
        horizon: int = HORIZON,
        overlay: Overlay | None = None,
        offers: int = OFFERS,
    ) -> None:
        self._tree, self._reward, self._horizon, self._overlay = tree, reward, horizon, overlay
        self._roots = [one.id for one in tree.roots(split)]
        if not self._roots:
            raise UserError(f"the tree has no root in the split {split!r}: collect tasks of it, or take another split.")
        most = max(len(one.offers) for one in tree.states.values())
        if most > offers:
            raise UserError(f"a state offers {most} actions, and there are {offers} places: pass offers={most}.")
        self._places = offers
        self._walk: Walk | None = None
        self.action_space = spaces.Discrete(offers + 1)
        self.observation_space = spaces.Dict(
            {
                "context": spaces.Box(-np.inf, np.inf, (len(FEATURES),), np.float32),
                "strategies": spaces.Box(0, len(CATALOGUE), (offers,), np.int64),
                "mask": spaces.MultiBinary(offers + 1),
                "step": spaces.Discrete(horizon + 1),
            }
        )  # type: ignore[assignment]  (a Dict space holds dicts)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        root = (options or {}).get("root") or self._roots[int(self.np_random.integers(len(self._roots)))]
        self._walk = Walk(self._tree, root, self._reward, self._horizon, self._overlay)
        return self._seen(self._walk), self._info(self._walk)

    def step(self, action: np.int64 | int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Raises UnseenTransition for an action that is masked."""
        walk = self._walk
        if walk is None:
            raise UserError("call reset() before step()")
        own = len(walk.offers) - 1
        if own <= action < self._places:
            raise UnseenTransition(f"place {action} is empty: this state has {own} offers")
        taken = walk.step(own if action == self._places else int(action))
        terminated = walk.stopped
        info = self._info(walk) | {"taken": taken, "reward": taken.reward}
        return self._seen(walk), taken.reward.total, terminated, walk.over and not terminated, info

    def action_masks(self) -> np.ndarray:
        """The mask by the name that maskable learners look for."""
        assert self._walk is not None, "call reset() first"
        mask = np.zeros(self._places + 1, dtype=bool)
        own = self._walk.mask
        mask[: len(own) - 1], mask[-1] = own[:-1], own[-1]
        return mask

    def _seen(self, walk: Walk) -> dict[str, np.ndarray]:
        strategies = np.zeros(self._places, dtype=np.int64)
        for place, strategy in enumerate(walk.offers[:-1]):
            strategies[place] = _NUMBER.get(strategy.name, 0)
        return {
            "context": np.asarray(context(walk.macro_state), dtype=np.float32), "strategies": strategies,
            "mask": self.action_masks().astype(np.int8), "step": np.int64(len(walk.taken)),  # type: ignore[dict-item]
        }  # fmt: skip

    def _info(self, walk: Walk) -> dict[str, Any]:
        return {
            "action_mask": self.action_masks(), "macro_state": walk.macro_state, "offered": walk.offers,
            "state": walk.state, "gain": walk.gain, "best_gain": walk.best_gain,
        }  # fmt: skip
