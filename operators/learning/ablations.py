"""What parts of macro thinking earn: walks over a tree with a part taken away. For `evaluation.regret`.

    without_masks       every action that the problem's kernels have anywhere is offered everywhere; one that does not
                        apply, or was tried here already, costs its step and changes nothing
    without_hierarchy   the whole change is decided in one go: what later steps see is the first kernel and its evidence

What a policy may see (source, history, plan) is a matter of its training: `train policy --source`, `--without`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evo_kernel.types import Strategy
from operators.learning.evaluation import credit_of
from operators.learning.replay import Taken, TreeWalk
from operators.learning.tree import HORIZON, Tree
from operators.macro.policies import Policy


def without_masks(tree: Tree, root: str, policy: Policy, rng: np.random.Generator, steps: int = HORIZON) -> TreeWalk:
    """One episode in which the policy is not told what applies."""
    walk = TreeWalk(tree, root, horizon=steps)
    every = _everywhere(tree, tree.states[root].task)
    for _ in range(steps):
        decision = policy.choose(walk.macro_state, every, rng)
        strategy = decision.offered[decision.chosen]
        idle = strategy not in walk.open_offers
        taken = Taken(walk.state, strategy, None) if idle else walk.take(strategy)
        policy.learn(credit_of(taken, decision))
        if walk.over:
            break
    return walk


def without_hierarchy(
    tree: Tree, root: str, policy: Policy, rng: np.random.Generator, steps: int = HORIZON
) -> TreeWalk:
    """One episode in which nothing is looked at between steps."""
    walk = TreeWalk(tree, root, horizon=steps)
    first = walk.macro_state
    while not walk.over:
        offered = walk.open_offers[:-1]  # `stop` is the last
        if not offered:
            break
        seen = replace(first, parent=replace(first.parent, strategies=walk.macro_state.parent.strategies))
        decision = policy.choose(seen, offered, rng)
        policy.learn(credit_of(walk.take(decision.offered[decision.chosen]), decision))
    return walk


def _everywhere(tree: Tree, problem: str) -> tuple[Strategy, ...]:
    offers = {offer.key: offer for one in tree.states.values() if one.task == problem for offer in one.offers}
    return tuple(offers[key] for key in sorted(offers))
