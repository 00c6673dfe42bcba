"""A tree with a law in it: what pays depends on the strategy and on what the plan says, never on the problem's name."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from evo_kernel.types import Status, Strategy
from operators.learning.tree import Tree, TreeProblem, TreeState, state_id
from operators.macro.catalogue import CATALOGUE
from tests.operators.learning.trees import CARD, ENVIRONMENT, edge, evaluation

NAMES = ("exp2", "hoist", "cache-hints", "drop-masks", "persistent", "software-pipeline", "swizzle", "online-row")
SPILLED = {"hoist": 0.5, "drop-masks": 0.3, "software-pipeline": -0.3, "exp2": 0.01}
HEALTHY = {"software-pipeline": 0.5, "swizzle": 0.3, "hoist": -0.3, "exp2": 0.01}
FAILS = "persistent"


def planted(problems: int = 8, steps: int = 2, held_out: int = 2, seed: int = 0) -> Tree:
    """Every walk of `steps` different strategies. Half of the problems spill registers, which turns the law around."""
    rng = np.random.default_rng(seed)
    tree = Tree({}, {}, {}, {ENVIRONMENT.key: ENVIRONMENT}, 0, "planted")
    for number in range(problems):
        split = "held-out" if number >= problems - held_out else "train"
        problem = TreeProblem(f"task{number}", f"task{number}", f"family{number // 2}", split, CARD)
        _grow(tree, problem, spills=number % 2 == 0, start=float(rng.uniform(2, 6)), steps=steps)
    return tree


def _grow(tree: Tree, problem: TreeProblem, spills: bool, start: float, steps: int) -> None:
    every = tuple(Strategy(name, CATALOGUE[name].family, "kernel k") for name in NAMES)
    law = SPILLED if spills else HEALTHY
    tree.problems[problem.name] = problem
    known: dict[tuple[Strategy, ...], TreeState] = {}
    for length in range(steps + 1):
        for path in itertools.permutations([s for s in every if s.name != FAILS], length):
            log_us = start - sum(law.get(one.name, 0.0) for one in path)
            text = f"def {problem.name}_kernel(): # " + " ".join(one.name for one in path)
            offers = tuple(one for one in every if one not in path) if length < steps else ()
            known[path] = one = _state(problem, text, log_us, path, offers, spills)
            tree.states[one.id] = one
            if path:
                parent = known[path[:-1]]
                tree.transitions[parent.id][path[-1].key] = edge(parent, path[-1], one)
            if offers:
                failing = next(s for s in every if s.name == FAILS)
                tree.transitions[one.id] = {failing.key: edge(one, failing, None, Status.WRONG)}


def _state(
    problem: TreeProblem,
    text: str,
    log_us: float,
    path: tuple[Strategy, ...],
    offers: tuple[Strategy, ...],
    spills: bool,
) -> TreeState:
    found = evaluation(text, log_us)
    timed = found.measurements[0]
    plan = timed.features
    kernel = dataclasses.replace(plan.kernels[0], spill_bytes=64 * spills)
    timed = dataclasses.replace(timed, features=dataclasses.replace(plan, kernels=(kernel,)))
    found = dataclasses.replace(found, measurements=(timed,))
    name = state_id(problem.name, text)
    return TreeState(name, problem.name, problem.family, problem.split, text, found, log_us, len(path), offers, path)
