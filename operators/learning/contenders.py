"""The policies that `train evaluate` compares: uniform choice, the bandit, and trained ones with their ablations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from operators.learning.ablations import without_hierarchy, without_masks
from operators.learning.checkpoint import load
from operators.learning.evaluation import Walker, walked, warmed
from operators.learning.tree import Tree
from operators.macro.bandit import BanditPolicy
from operators.macro.policies import Policy, UniformPolicy
from operators.macro.trained import TrainedPolicy


@dataclass(frozen=True)
class EvaluatedPolicy:
    """A policy that is evaluated. `make(seed)`: as it is at the beginning of a problem."""

    name: str
    make: Callable[[int], Policy]
    walk: Walker


def contenders(tree: Tree, checkpoints: Sequence[Path], ablations: bool) -> list[EvaluatedPolicy]:
    """The first two are what others are held against. `ablations`: of each checkpoint. Raises UserError."""
    found = [
        EvaluatedPolicy("uniform", lambda _seed: UniformPolicy(), walked),
        EvaluatedPolicy("bandit", lambda _seed: BanditPolicy(), walked),
        EvaluatedPolicy("bandit, trained", warmed(lambda _seed: BanditPolicy(), tree), walked),
    ]
    for path in checkpoints:
        trained = _always(path)
        found.append(EvaluatedPolicy(path.stem, trained, walked))
        if ablations:
            found.append(EvaluatedPolicy(f"{path.stem}, no bandit", _always(path, alone=True), walked))
            found.append(EvaluatedPolicy(f"{path.stem}, no masks", trained, without_masks))
            found.append(EvaluatedPolicy(f"{path.stem}, no hierarchy", trained, without_hierarchy))
    return found


def _always(path: Path, alone: bool = False) -> Callable[[int], Policy]:
    model, _ = load(path)
    return lambda _seed: TrainedPolicy(model, alone=alone)
