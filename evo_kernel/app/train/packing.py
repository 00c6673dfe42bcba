"""Packs the populations that `train collect` has grown into a tree of transitions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import networkx as nx

from evo_kernel.types import Evaluation, Status, Strategy
from evo_kernel.types.promotion import FIRST
from operators.learning.tree import Edge, Tree, TreeProblem, TreeState, family_of, split_of, state_id
from operators.macro import catalogue
from operators.micro.coder import RewriteCoder
from populations.reading import PopulationReader
from populations.statistics import wall_s

Times = Mapping[tuple[str, str], Mapping[str, float]]
"""µs of baselines, by task and case."""


@dataclass(frozen=True)
class Grown:
    """One problem's part of a tree. `seconds`: of collecting."""

    problem: TreeProblem
    tree: Tree
    seconds: float


def grown_in(folder: Path, held_out: tuple[str, ...]) -> list[Grown]:
    """Of every population in a folder. `held_out`: families."""
    with ExitStack() as stack:
        readers = [stack.enter_context(PopulationReader(path)) for path in sorted(folder.glob("*.db"))]
        times: dict[tuple[str, str], dict[str, float]] = {}  # also of a task's other problems, then or later
        for reader in readers:
            for case, found in reader.baselines().items():
                times.setdefault((_task_of(reader), case), {}).update(found)
        return [grown_of(reader, times, held_out) for reader in readers]


def joined(parts: Sequence[Grown], command: str) -> Tree:
    """The tree of all problems: they share no state."""
    trees = [part.tree for part in parts]
    whole: dict[str, Any] = {
        name: {key: one for tree in trees for key, one in getattr(tree, name).items()}
        for name in ("problems", "states", "transitions", "environments")
    }
    whole |= {count: sum(getattr(tree, count) for tree in trees) for count in ("plans", "settings", "candidates")}
    return Tree(**whole, command=command)


def _task_of(reader: PopulationReader) -> str:
    return reader.task.name.partition("@")[0]


def grown_of(reader: PopulationReader, times: Times = MappingProxyType({}), held_out: tuple[str, ...] = ()) -> Grown:
    """Of one population."""
    card, task, coder = reader.task, _task_of(reader), RewriteCoder()
    family = family_of(task)
    problem = TreeProblem(card.name, task, family, split_of(family, held_out), card)
    views = [reader.candidate(number) for number in range(1, reader.last_candidate() + 1)]
    verdicts = {
        view.candidate: _held(view.evaluation, task, times)
        for view in views
        if view.evaluation is not None and view.evaluation.status is not Status.INFRA_ERROR
    }
    names = {n: state_id(card.name, views[n - 1].source.text) for n, found in verdicts.items() if found.passed}
    tried = [
        (names.get(view.parent or 0), view.proposal.strategy, view.candidate)
        for view in views
        if view.proposal.strategy and view.candidate in verdicts
    ]
    ways = _ways(names.get(FIRST), [(above, strategy, names.get(number)) for above, strategy, number in tried])
    states: dict[str, TreeState] = {}
    for number, name in names.items():
        if name in ways and name not in states:
            source, found, path = views[number - 1].source, verdicts[number], ways[name]
            states[name] = TreeState(
                name, card.name, family, problem.split, source.text, found, found.log_us, len(path),
                coder.offer(source, card), path,
            )  # fmt: skip
    transitions: dict[str, dict[str, Edge]] = {}
    for above, strategy, number in tried:
        if (parent := states.get(above or "")) is None:
            continue
        child, found = states.get(names.get(number, "")), verdicts[number]
        gain = parent.log_us - child.log_us if child else 0.0
        witnessed = child is not None and catalogue.witnessed(strategy, parent.evidence, child.evidence)
        edge = Edge(parent.id, strategy.key, found.status, witnessed, child and child.id, gain)
        transitions.setdefault(parent.id, {}).setdefault(strategy.key, edge)
    every = list(verdicts.values())
    tree = Tree(
        {card.name: problem},
        states,
        transitions,
        {one.environment.key: one.environment for one in every},
        plans=len({(case, plan) for one in every for case, _, plan in one.plans}),
        settings=len({(one.source, knobs) for one in every for _, knobs, _ in one.plans}),
        candidates=len({one.source for one in every}),
    )
    return Grown(problem, tree, wall_s(reader.connection))


def _ways(
    root: str | None, steps: Sequence[tuple[str | None, Strategy, str | None]]
) -> dict[str, tuple[Strategy, ...]]:
    """What can be reached from the root, by the first shortest way; nothing where the root did not pass."""
    graph = nx.DiGraph()
    for above, strategy, child in steps:
        if above and child and not graph.has_edge(above, child):
            graph.add_edge(above, child, strategy=strategy)
    if root is None:
        return {}
    graph.add_node(root)
    ways = nx.single_source_shortest_path(graph, root)
    return {end: tuple(graph.edges[step]["strategy"] for step in pairwise(way)) for end, way in ways.items()}


def _held(found: Evaluation, task: str, times: Times) -> Evaluation:
    """The verdict, held against all baselines that were timed."""
    held = tuple(
        replace(m, baselines_us={**m.baselines_us, **times.get((task, m.case), {})}) for m in found.measurements
    )
    score = math.exp(math.fsum(math.log(m.speedup) for m in held) / len(held)) if held else found.score
    return replace(found, measurements=held, score=score)
