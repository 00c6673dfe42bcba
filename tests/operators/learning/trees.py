"""Small trees that are made, not measured."""

from __future__ import annotations

import math

from evo_kernel.types import (
    CaseCard,
    CaseKind,
    Environment,
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    Purpose,
    Source,
    Status,
    Strategy,
    TaskCard,
)
from operators.learning.tree import Edge, Tree, TreeProblem, TreeState, state_id

ENVIRONMENT = Environment("modeled", "sm_90", "", "2.13", "3.9", True, 1, "none")
CARD = TaskCard(
    "rows", "def reference(x):\n    return x.softmax(-1)\n", "kernels", "ieee", False,
    (CaseCard("m8-n16", CaseKind.SEARCH, {"m": 8, "n": 16}, (("float32", (8, 16), (16, 1)),), 1e3, 2e3),), "rows",
)  # fmt: skip
EXP2, HINTS, HOIST = (
    Strategy("exp2", "algorithm", "kernel k"),
    Strategy("cache-hints", "memory", "kernel k", (("policy", "evict_first"), ("at", 3))),
    Strategy("hoist", "reordering", "kernel k"),
)


def evaluation(text: str, log_us: float, case: str = "m8-n16") -> Evaluation:
    kernel = KernelFeatures(
        "k", (8, 1, 1), 4, 2, 32, 0, 1024, "none", "load", "plain", {"ld.global": 3, "all": 40}, 1.0
    )
    us = math.exp(log_us)
    timed = Measurement(
        case,
        f"{hash(text) & 0xFFFF:016x}",
        us,
        0.1,
        0,
        us,
        us,
        {"eager": 100.0},
        0.5,
        PlanFeatures(1, 0, (kernel,), 64),
    )
    return Evaluation(
        Source(text).sha256, "rows", Purpose.SCORE, ENVIRONMENT, Status.PASSED, "", 100.0 / us, (("BLOCK", 64),),
        measurements=(timed,),
    )  # fmt: skip


def state(
    problem: TreeProblem, text: str, log_us: float, path: tuple[Strategy, ...], offers: tuple[Strategy, ...]
) -> TreeState:
    return TreeState(
        state_id(problem.name, text), problem.name, problem.family, problem.split, text,
        evaluation(text, log_us), log_us, len(path), offers, path,
    )  # fmt: skip


def edge(parent: TreeState, strategy: Strategy, child: TreeState | None, status: Status | None = Status.PASSED) -> Edge:
    gain = round(parent.log_us - child.log_us, 9) if child else 0.0
    return Edge(
        parent.id, strategy.key, status if child is None else Status.PASSED, bool(child), child and child.id, gain
    )


def small(task: str = "rows", split: str = "train", family: str = "row", shift: float = 0.0) -> Tree:
    """A root whose exp2 loses 0.1 and opens a hoist that gains 0.5; cache-hints gain 0.2; hoist at the root fails.

    Best gain: 0.2 in one step, 0.4 in two.
    """
    problem = TreeProblem(task, task, family, split, CARD)  # type: ignore[arg-type]
    every = (EXP2, HINTS, HOIST)
    root = state(problem, f"# {task} root", 2.0 + shift, (), every)
    worse = state(problem, f"# {task} exp2", 2.1 + shift, (EXP2,), every[1:])
    better = state(problem, f"# {task} hints", 1.8 + shift, (HINTS,), every[:1])
    best = state(problem, f"# {task} exp2 hoist", 1.6 + shift, (EXP2, HOIST), ())
    edges = (
        edge(root, EXP2, worse), edge(root, HINTS, better), edge(root, HOIST, None, Status.WRONG),
        edge(worse, HOIST, best), edge(worse, HINTS, None, None),
    )  # fmt: skip
    transitions: dict[str, dict[str, Edge]] = {}
    for one in edges:
        transitions.setdefault(one.parent, {})[one.strategy] = one
    states = {one.id: one for one in (root, worse, better, best)}
    return Tree({task: problem}, states, transitions, {ENVIRONMENT.key: ENVIRONMENT}, 40, "made by hand")


def joined(*trees: Tree) -> Tree:
    problems, states, transitions = {}, {}, {}
    for one in trees:
        problems |= one.problems
        states |= one.states
        transitions |= one.transitions
    return Tree(problems, states, transitions, trees[0].environments, sum(one.plans for one in trees), "joined")
