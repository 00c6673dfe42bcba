"""How well a policy carries over to families of tasks that it was not trained on, by how far its model is trusted.

    python -m benchmarks.left_out [--tree transitions.gz] [--seconds 140] [--spreads 0.1,0.2,0.4] [--seeds 3]

For each family of the training split: a model is trained on the other families, by imitation and without the source,
for `--seconds` on one core; then the regret of uniform choice, of the bandit and of that model with each spread on the
family that was left out. What is held out of the tree stays out of it all, so that settings can be chosen here. Prints
a table: a column a family, and the mean.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from operators.learning.evaluation import regret
from operators.learning.network import Network, NetworkSettings
from operators.learning.shipped import TREE
from operators.learning.sight import Seen
from operators.learning.training import METHODS, training
from operators.learning.tree import Tree
from operators.macro.bandit import BanditPolicy
from operators.macro.policies import Policy, UniformPolicy
from operators.macro.trained import TrainedPolicy


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tree", type=Path, default=TREE)
    made.add_argument("--seconds", type=float, default=140.0, help="of each training")
    made.add_argument("--spreads", default="0.1,0.2,0.4")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--episodes", type=int, default=10)
    chosen = made.parse_args()
    torch.set_num_threads(1)
    whole = Tree.load(chosen.tree).within("train")
    families = sorted({problem.family for problem in whole.problems.values()})
    found: dict[str, list[float]] = {}
    for family in families:
        tree = leaving_out(whole, family)
        policies = contenders(trained_on(tree, chosen.seconds), [float(one) for one in chosen.spreads.split(",")])
        for name, make in policies.items():
            told = regret(tree, make, name, range(chosen.seeds), chosen.episodes)
            found.setdefault(name, []).append(told.interval.mean)
            print(f"{family}: {name} {told.interval}", file=sys.stderr, flush=True)
    print(f"| policy | {' | '.join(families)} | mean |\n| --- |{' --- |' * (len(families) + 1)}")
    for name, row in found.items():
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in (*row, float(np.mean(row))))} |")


def leaving_out(tree: Tree, family: str) -> Tree:
    """The tree with one family held out, and nothing else."""
    problems = {
        name: replace(one, split="held-out" if one.family == family else "train") for name, one in tree.problems.items()
    }
    states = {name: replace(one, split=problems[one.task].split) for name, one in tree.states.items()}
    return replace(tree, problems=problems, states=states, _best={})


def trained_on(tree: Tree, seconds: float) -> Network:
    """The model as its time is over."""
    torch.manual_seed(0)
    model = Network(NetworkSettings(seen=Seen(source=False)))
    for _ in training(model, tree, METHODS["imitation"], seconds, seed=0, every_s=seconds):
        pass
    return model.eval()


def contenders(model: Network, spreads: list[float]) -> dict[str, Callable[[int], Policy]]:
    found: dict[str, Callable[[int], Policy]] = {
        "uniform": lambda _seed: UniformPolicy(),
        "bandit": lambda _seed: BanditPolicy(),
    }
    for spread in spreads:
        found[f"trained, spread {spread:g}"] = lambda _seed, spread=spread: TrainedPolicy(model, spread=spread)
    return found


if __name__ == "__main__":
    main()
