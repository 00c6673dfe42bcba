"""`train evaluate`: how far policies stay behind the best that a tree holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evo_kernel.cli.options import JSON, TREE_FILE
from evo_kernel.errors import UserError

if TYPE_CHECKING:
    from operators.learning.evaluation import Regret, Walker
    from operators.learning.tree import Tree
    from operators.macro.policies import Policy


@dataclass(frozen=True)
class EvaluatedPolicy:
    """A policy that is evaluated. `make(seed)`: as it is at the beginning of a problem."""

    name: str
    make: Callable[[int], Policy]
    walk: Walker


@click.command()
@TREE_FILE
@click.option(
    "--policy", "policies", multiple=True, type=click.Path(path_type=Path), help="A checkpoint; may be repeated."
)
@click.option(
    "--split",
    type=click.Choice(["held-out", "train"]),
    default="held-out",
    show_default=True,
    help="Which tasks: those that training never saw, or those that it saw.",
)
@click.option("--seeds", type=click.IntRange(min=2), default=5, show_default=True, help="Over which intervals are.")
@click.option("--episodes", type=click.IntRange(min=1), default=10, show_default=True, help="On each problem.")
@click.option("--ablations", is_flag=True, help="The policies also without a bandit, masks, the hierarchy.")
@JSON
def evaluate(
    tree_file: Path,
    policies: tuple[Path, ...],
    split: str,
    seeds: int,
    episodes: int,
    ablations: bool,
    as_json: bool,
) -> None:
    """Hold policies against uniform choice and the bandit on tasks that were not trained on.

    Regret: the best log gain that eight known steps reach from a task's first kernel, less what the policy reached;
    intervals are 95 % over seeds. The bandit begins anew on every problem and learns from episode to episode; "bandit,
    trained" has met the training tasks before.
    """
    from operators.learning.evaluation import regret, table
    from operators.learning.tree import Tree

    tree = Tree.load(tree_file)
    if not tree.roots(split):  # type: ignore[arg-type]
        raise UserError(f"{tree_file} has no {split} task: collect some, or take another --split.")
    found: list[Regret] = []
    for one in _contenders(tree, policies, ablations):
        found.append(regret(tree, one.make, one.name, range(seeds), episodes, split, walk=one.walk))  # type: ignore[arg-type]
        if not as_json:
            click.echo(f"{one.name}: {found[-1].interval}", err=True)
    kinds = ", ".join(sorted({one.label for one in tree.environments.values()}))
    if as_json:
        told = {"tree": str(tree_file), "split": split, "environments": kinds, "episodes": episodes}
        click.echo(json.dumps({**told, "policies": [_data(one, *found[:2]) for one in found]}))
    else:
        click.echo(f"\n{split} problems of {tree_file.name}: {len(tree.roots(split))}; times: {kinds}\n")  # type: ignore[arg-type]
        click.echo(table(found))


def _contenders(tree: Tree, policies: tuple[Path, ...], ablations: bool) -> list[EvaluatedPolicy]:
    from operators.learning.ablations import without_hierarchy, without_masks
    from operators.learning.evaluation import walked, warmed
    from operators.macro.bandit import BanditPolicy
    from operators.macro.policies import UniformPolicy

    found = [
        EvaluatedPolicy("uniform", lambda _seed: UniformPolicy(), walked),
        EvaluatedPolicy("bandit", lambda _seed: BanditPolicy(), walked),
        EvaluatedPolicy("bandit, trained", warmed(lambda _seed: BanditPolicy(), tree), walked),
    ]
    for path in policies:
        trained = _always(path)
        found.append(EvaluatedPolicy(path.stem, trained, walked))
        if ablations:
            found.append(EvaluatedPolicy(f"{path.stem}, no bandit", _always(path, alone=True), walked))
            found.append(EvaluatedPolicy(f"{path.stem}, no masks", trained, without_masks))
            found.append(EvaluatedPolicy(f"{path.stem}, no hierarchy", trained, without_hierarchy))
    return found


def _always(path: Path, alone: bool = False) -> Callable[[int], Policy]:
    from operators.learning.checkpoint import load
    from operators.macro.trained import TrainedPolicy

    model, _ = load(path)
    return lambda _seed: TrainedPolicy(model, alone=alone)


def _data(one: Regret, uniform: Regret, bandit: Regret) -> dict[str, Any]:
    """Comparisons are paired by seed: below zero is less regret."""
    return {
        "policy": one.policy,
        "regret": vars(one.interval),
        "share_of_uniform": vars(one.share_of(uniform)),
        "less_than_uniform": vars(one.less(uniform)),
        "less_than_bandit": vars(one.less(bandit)),
        "reached": vars(one.reached),
        "best": one.best,
        "by_problem": {name: vars(interval) for name, interval in one.by_problem.items()},
    }
