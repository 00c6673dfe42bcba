"""From a configuration to the policy that picks strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from evo_kernel import plugins
from evo_kernel.config import Config
from operators.macro.bandit import BanditPolicy
from operators.macro.policies import Policy, UniformPolicy

TRAINED = "trained"
POLICIES: Mapping[str, Callable[[], Policy]] = {"bandit": BanditPolicy, "uniform": UniformPolicy}


def policy_of(name: str, config: Config) -> Policy:
    """Raises UserError: no such policy, or no checkpoint that can be read."""
    if name == TRAINED:
        return _trained(config.operators.checkpoint)
    made = POLICIES.get(name) or plugins.factory(plugins.POLICIES, name, (*POLICIES, TRAINED))
    return made()


def _trained(checkpoint: Path | None) -> Policy:
    """Without a checkpoint: the policy that comes with the package."""
    import torch

    from operators.learning.shipped import POLICY
    from operators.macro.trained import TrainedPolicy

    torch.set_num_threads(1)  # one small decision at a time; the cores are the judge's
    return TrainedPolicy.load(checkpoint or POLICY)
