"""The regret of policies on walks over a tree of stored transitions: those given, uniform choice, the bandit.

python -m benchmarks.regret [--policy CHECKPOINT ...] [--model NAME [--base-url URL]] [--tree FILE] [--seeds N]

The regret of an episode is the log gain that at most `steps` known steps can reach from the root, less the log gain of
the fastest kernel on the policy's way (a population keeps that one). A policy is asked only about what the tree knows.
`stop` is not offered: it saves kernels, which regret does not count. A policy that learns begins anew on every problem
and is told what came of each step over `episodes` episodes, all of which count; one trained before comes as it is. A
language model is asked once a step; where it gives no answer that can be used, the choice is even.

Intervals are over seeds (Student's t) of the mean over problems and episodes: they tell how much luck there is in a
policy, not how much in the choice of the problems. Comparisons are paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import stdtrit

from evo_kernel.cli.options import DEVICES, PATH, TREE_FILE
from evo_kernel.errors import UserError
from evo_kernel.types import Brief, Credit, Decision, Status, Strategy
from operators.learning.trained_policy import TrainedPolicy, model_of
from operators.learning.tree import HORIZON, Edge, Split, Tree
from operators.learning.walk import TreeWalk
from operators.llm_policy import LlmPolicy
from operators.macro.bandit import BanditPolicy
from operators.macro.features import MacroState
from operators.macro.policies import Policy, UniformPolicy
from operators.open_model import open_model

MakePolicy = Callable[[int], Policy]
"""From a seed: the policy as it is at the beginning of a problem."""

SEEDS, EPISODES = 5, 10


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval (Student's t); a mean of one value has an infinite one."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return Interval(mean, -math.inf, math.inf)
        reach = float(stdtrit(count - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(count)
        return Interval(mean, mean - reach, mean + reach)

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Regret:
    """Of one policy. `by_seed`: seed -> problem -> mean regret over episodes (log gain). `reached`: the log gain."""

    policy: str
    by_seed: Mapping[int, Mapping[str, float]]
    reached: Interval
    best: float  # mean over problems of what can be reached

    @property
    def seeds(self) -> tuple[float, ...]:
        """The mean over problems, a seed each."""
        return tuple(math.fsum(one.values()) / len(one) for one in self.by_seed.values())

    @property
    def interval(self) -> Interval:
        return Interval.of(self.seeds)

    def less(self, other: Regret) -> Interval:
        """This regret less another's, paired by seed: below zero is better."""
        return Interval.of([a - b for a, b in zip(self.seeds, other.seeds, strict=True)])

    def share_of(self, other: Regret) -> Interval:
        """This regret as a share of another's mean: 0.5 is half of it."""
        whole = other.interval.mean
        return Interval.of([one / whole for one in self.seeds])


class EvenChoice(UniformPolicy):
    """Chooses where a model gives no answer that can be used, and says so."""

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        click.echo("no usable answer: an even choice", err=True)
        return super().choose(state, offered, rng)


def contenders(
    checkpoints: Sequence[Path], model: str | None = None, device: str = "cpu", **settings: Any
) -> dict[str, MakePolicy]:
    """What is compared, by name; the first two are what others are held against. Raises UserError.

    `device`: of checkpoints that are language models; `settings`: of the language model `model`.
    """
    from evo_kernel.app.train.coder import chosen_device  # torch, which regret does without

    found: dict[str, MakePolicy] = {
        "uniform": lambda _seed: UniformPolicy(),
        "bandit": lambda _seed: BanditPolicy(),
    }
    for path in checkpoints:
        trained = model_of(path, chosen_device(device))
        found[path.stem] = lambda _seed, trained=trained: TrainedPolicy(trained)
    if model:
        opened = open_model(model, **settings)
        found[model] = lambda _seed: LlmPolicy(opened, fallback=EvenChoice())
    return found


def regret(
    tree: Tree,
    make: MakePolicy,
    name: str = "",
    seeds: Sequence[int] = range(SEEDS),
    episodes: int = EPISODES,
    split: Split | None = "held-out",
    steps: int = HORIZON,
) -> Regret:
    """Raises ValueError where the tree has no root in the split."""
    roots = tree.roots(split)
    if not roots:
        raise ValueError(f"the tree has no root in the split {split!r}")
    best = {root.task: tree.best_gain(root.id, steps) for root in roots}
    found: dict[int, dict[str, float]] = {}
    reached: list[float] = []
    for seed in seeds:
        gains: dict[str, float] = {}
        for number, root in enumerate(roots):
            policy, rng = make(seed), np.random.default_rng([seed, number])
            walks = [walked(tree, root.id, policy, rng, steps) for _ in range(episodes)]
            gains[root.task] = math.fsum(one.best_gain for one in walks) / episodes
        found[seed] = {task: best[task] - gain for task, gain in gains.items()}
        reached.append(math.fsum(gains.values()) / len(gains))
    return Regret(name, found, Interval.of(reached), math.fsum(best.values()) / len(best))


def walked(tree: Tree, root: str, policy: Policy, rng: np.random.Generator, steps: int = HORIZON) -> TreeWalk:
    """One episode, of each step of which the policy is told. It ends where nothing is left to take."""
    walk = TreeWalk(tree, root, horizon=steps)
    while offered := walk.offers:
        state = walk.macro_state
        assert state.parent.evaluation is not None
        brief = Brief(0, state.task, state.parent, (), state.tried, 0, (0, 0), state.parent.evaluation.environment)
        decision = policy.choose(replace(state, brief=brief), offered, rng)
        policy.learn(credit_of(walk.take(offered[decision.chosen]), decision))
    return walk


def credit_of(edge: Edge, decision: Decision) -> Credit:
    """What a run would tell the policy: the log gain where the strategy shows in the plan, nothing for a failure."""
    gain = edge.log_gain if edge.status is Status.PASSED else 0.0
    strategy = decision.offered[decision.chosen].name if edge.witnessed else "other"
    return Credit(0, 0, "mtmc", strategy, edge.witnessed, gain, gain, 0, decision)


def table(found: Sequence[Regret]) -> str:
    """Markdown: a line a policy, beside the first two; "less": paired by seed, below zero is better."""
    rows = ["| policy | regret (log gain) | share of the first | less than the second | reached of what can be |"]
    rows += ["| --- | --- | --- | --- | --- |"]
    for one in found:
        part = one.share_of(found[0])
        share = f"{part.mean:.2f} [{part.low:.2f}, {part.high:.2f}]"
        reached = f"{math.exp(one.reached.mean):.3f}× of {math.exp(one.best):.3f}×"
        rows.append(f"| {one.policy} | {one.interval} | {share} | {one.less(found[1])} | {reached} |")
    return "\n".join(rows)


@click.command()
@TREE_FILE
@click.option("--policy", "policies", multiple=True, type=PATH, help="A checkpoint (file or folder); repeatable.")
@click.option("--device", type=DEVICES, default="auto", show_default=True, help="For a checkpoint that is a folder.")
@click.option("--model", help="A language model: a call a step, so 8 x problems x seeds x episodes at most.")
@click.option("--base-url", help="Its server; see `evo-kernel run --help`.")
@click.option("--split", type=click.Choice(["held-out", "train"]), default="held-out", help="Tasks of this part.")
@click.option("--seeds", type=click.IntRange(min=2), default=5, show_default=True, help="For the intervals.")
@click.option("--episodes", type=click.IntRange(min=1), default=10, show_default=True, help="Episodes per problem.")
def main(
    tree_file: Path,
    policies: tuple[Path, ...],
    device: str,
    model: str | None,
    base_url: str | None,
    split: Split,
    seeds: int,
    episodes: int,
) -> None:
    """Compare policies with uniform choice and the bandit on tasks that were not used for training.

    Regret: the best log gain within eight known steps from a task's first kernel, minus the policy's; intervals are
    95 % over seeds. The bandit starts untrained on every problem and learns over its episodes.
    """
    tree = Tree.load(tree_file)
    if not tree.roots(split):
        raise UserError(f"{tree_file} has no {split} task: collect some, or take another --split.")
    found: list[Regret] = []
    for name, make in contenders(policies, model, device, base_url=base_url).items():
        found.append(regret(tree, make, name, range(seeds), episodes, split))
        click.echo(f"{name}: {found[-1].interval}", err=True)
    kinds = ", ".join(sorted({one.label for one in tree.environments.values()}))
    click.echo(f"\n{split} problems of {tree_file.name}: {len(tree.roots(split))}; times: {kinds}\n")
    click.echo(table(found))


if __name__ == "__main__":
    main()
