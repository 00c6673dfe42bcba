"""Collecting a tree of transitions: which action of which state is judged next, the rows, and the tree made of them.

First all actions of the root; then, drawn anew for every state to expand, three ways in fixed shares: *breadth* (the
shallowest state with untried offers, the fastest of those first: level after level is completed), *greedy* (the fastest
state, wherever it is: where a good policy would walk) and *uniform* (a random state of a random depth: where a poor one
would). A state gets several of its actions judged at a time: one known action teaches nothing about choosing.

Rows are JSON lines, one file a problem, appended as things are found out; a torn last line is left out. Kinds:

    problem      name, task, family, split, card
    environment  key and fields
    baselines    case -> {name: µs}; a later row adds names
    candidate    sha, status, reason; of one that passed: text (knobs in), evaluation, offers; plans: [case, hash] of
                 every plan that the judge executed for it, `settings`: how many settings of its knobs those are
    edge         parent (id of a state), strategy, sha of the candidate (null: the coder could not), reason
    slice        seconds that were spent
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from evo_kernel.types import Environment, Evaluation, Status, Strategy, TaskCard
from operators.learning.tree import (
    HORIZON,
    Edge,
    Row,
    Tree,
    TreeProblem,
    TreeState,
    evaluation_of,
    short,
    state_id,
    strategy_of,
)
from operators.macro import catalogue

SHARES: Mapping[str, float] = {"breadth": 0.5, "greedy": 0.25, "uniform": 0.25}
AT_ONCE: Mapping[str, int] = {"breadth": 64, "greedy": 6, "uniform": 4}
"""Actions of a state that are judged when it is expanded."""


@dataclass
class _Node:
    log_us: float
    depth: int
    left: list[Strategy] = field(default_factory=list)  # not handed out yet


class Frontier:
    """The states of one problem and what is left to try on them. Not thread-safe."""

    def __init__(self, rng: np.random.Generator, horizon: int = HORIZON, shares: Mapping[str, float] = SHARES) -> None:
        self._rng, self._horizon, self._ways = rng, horizon, tuple(shares)
        self._chances = np.array(list(shares.values())) / sum(shares.values())
        self._nodes: dict[str, _Node] = {}
        self._queue: deque[tuple[str, Strategy]] = deque()

    def add(self, state: str, log_us: float, depth: int, left: tuple[Strategy, ...]) -> None:
        """A state with its untried offers; one that is known already only gets nearer to the root, if it does."""
        if state in self._nodes:
            self._nodes[state].depth = min(self._nodes[state].depth, depth)
            return
        self._nodes[state] = _Node(log_us, depth, list(left))

    def depth(self, state: str) -> int:
        return self._nodes[state].depth

    def next(self) -> tuple[str, Strategy] | None:
        """What to judge next; None when nothing is left on the states that are known by now."""
        if not self._queue:
            self._expand()
        return self._queue.popleft() if self._queue else None

    def _expand(self) -> None:
        open_states = [name for name, node in self._nodes.items() if node.left and node.depth < self._horizon]
        if not open_states:
            return
        root = next((name for name in open_states if self._nodes[name].depth == 0), None)
        way = "breadth" if root else str(self._rng.choice(self._ways, p=self._chances))
        chosen = root or self._chosen(way, open_states)
        left = self._nodes[chosen].left
        for _ in range(min(AT_ONCE[way], len(left))):
            self._queue.append((chosen, left.pop(int(self._rng.integers(len(left))))))

    def _chosen(self, way: str, open_states: list[str]) -> str:
        nodes = self._nodes
        if way == "breadth":
            return min(open_states, key=lambda name: (nodes[name].depth, nodes[name].log_us, name))
        if way == "greedy":
            return min(open_states, key=lambda name: (nodes[name].log_us, name))
        depths = sorted({nodes[name].depth for name in open_states})
        depth = depths[int(self._rng.integers(len(depths)))]
        there = sorted(name for name in open_states if nodes[name].depth == depth)
        return there[int(self._rng.integers(len(there)))]


@dataclass
class CollectedRows:
    """The rows of one problem, by what they are about."""

    problem: TreeProblem | None = None
    environments: dict[str, Environment] = field(default_factory=dict)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    candidates: dict[str, Row] = field(default_factory=dict)
    edges: dict[tuple[str, str], Row] = field(default_factory=dict)
    seconds: float = 0.0
    slices: int = 0

    def take(self, row: Row) -> None:
        match row["kind"]:
            case "problem":
                names = (row["name"], row["task"], row["family"], row["split"])
                self.problem = TreeProblem(*names, TaskCard.from_data(row["card"]))
            case "environment":
                self.environments[row["key"]] = Environment(**row["environment"])
            case "baselines":
                self.baselines.setdefault(row["case"], {}).update(row["us"])
            case "candidate":
                self.candidates.setdefault(row["sha"], row)
            case "edge":
                self.edges.setdefault((row["parent"], strategy_of(row["strategy"]).key), row)
            case "slice":
                self.seconds += row["seconds"]
                self.slices += 1

    @property
    def plans(self) -> int:
        """Distinct launch plans that the judge executed, each on one case."""
        return len({tuple(plan) for row in self.candidates.values() for plan in row["plans"]})

    @property
    def settings(self) -> int:
        """Settings of the knobs of distinct sources that the judge executed."""
        return sum(row["settings"] for row in self.candidates.values())

    def state_of(self, sha: str) -> str | None:
        """The id of a candidate's state; None where it did not pass."""
        row = self.candidates[sha]
        problem = self.problem.name if self.problem else ""
        return state_id(problem, row["text"]) if row["status"] == Status.PASSED else None


def read_rows(path: Path) -> CollectedRows:
    """The rows of a problem's file; none where there is no file."""
    found = CollectedRows()
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):  # cut short while it was written
            found.take(json.loads(text))
    return found


def line(row: Mapping[str, object]) -> str:
    return json.dumps(short(row), separators=(",", ":")) + "\n"


def assemble(folder: Path, command: str = "") -> Tree:
    """The tree of all problems in a folder of rows."""
    every = [rows for rows in map(read_rows, sorted(folder.glob("*.jsonl"))) if rows.problem is not None]
    compiled: dict[tuple[str, str], dict[str, float]] = {}
    for rows in every:
        assert rows.problem is not None
        for case, times in rows.baselines.items():
            compiled.setdefault((rows.problem.task, case), {}).update(times)
    trees = [_tree(rows, compiled) for rows in every]  # they share no problem
    whole: dict[str, Any] = {
        part: {key: one for tree in trees for key, one in getattr(tree, part).items()}
        for part in ("problems", "states", "transitions", "environments")
    }
    whole |= {count: sum(getattr(tree, count) for tree in trees) for count in ("plans", "settings", "candidates")}
    return Tree(**whole, command=command)


def _tree(rows: CollectedRows, baselines: Mapping[tuple[str, str], Mapping[str, float]]) -> Tree:
    problem = rows.problem
    assert problem is not None
    found = {sha: _evidence(row, rows, baselines) for sha, row in rows.candidates.items() if row["status"] == "passed"}
    judged: dict[str, str] = {}  # state -> the candidate that it is known by
    for sha in found:
        judged.setdefault(str(rows.state_of(sha)), sha)
    placed = _placed(rows, judged)
    states: dict[str, TreeState] = {}
    for name, path in placed.items():
        row, evidence = rows.candidates[judged[name]], found[judged[name]]
        offers = tuple(map(strategy_of, row["offers"]))
        states[name] = TreeState(
            name, problem.name, problem.family, problem.split, row["text"], evidence, evidence.log_us, len(path),
            offers, path,
        )  # fmt: skip
    transitions: dict[str, dict[str, Edge]] = {}
    for (parent, key), row in rows.edges.items():
        sha = row["sha"]
        if parent not in states or not (sha is None or sha in rows.candidates):
            continue
        status = None if sha is None else Status(rows.candidates[sha]["status"])
        child, witnessed, gain = rows.state_of(sha) if sha else None, False, 0.0
        if child is not None:
            before, after = states[parent], states[child]
            witnessed = catalogue.witnessed(strategy_of(row["strategy"]), before.evidence, after.evidence)
            gain = before.log_us - after.log_us
        transitions.setdefault(parent, {})[key] = Edge(parent, key, status, witnessed, child, gain)
    counts = (rows.plans, "", rows.settings, len(rows.candidates))
    return Tree({problem.name: problem}, states, transitions, rows.environments, *counts)


def _placed(rows: CollectedRows, judged: Mapping[str, str]) -> dict[str, tuple[Strategy, ...]]:
    """States that can be reached from the root, each with the first shortest way to it."""
    children: dict[str, list[tuple[Strategy, str]]] = {}
    for (parent, _), row in rows.edges.items():
        child = rows.state_of(row["sha"]) if row["sha"] in rows.candidates else None
        if child is not None:
            children.setdefault(parent, []).append((strategy_of(row["strategy"]), child))
    roots = [str(rows.state_of(sha)) for sha, row in rows.candidates.items() if row.get("root")]
    placed: dict[str, tuple[Strategy, ...]] = {root: () for root in roots if root in judged}
    waiting = deque(placed)
    while waiting:
        name = waiting.popleft()
        for strategy, child in children.get(name, []):
            if child not in placed:
                placed[child] = (*placed[name], strategy)
                waiting.append(child)
    return placed


def _evidence(row: Row, rows: CollectedRows, baselines: Mapping[tuple[str, str], Mapping[str, float]]) -> Evaluation:
    """The verdict, held against all baselines that were timed, then or later."""
    found = evaluation_of(row["evaluation"], rows.environments)
    assert rows.problem is not None
    task = rows.problem.task
    held = tuple(
        replace(m, baselines_us={**m.baselines_us, **baselines.get((task, m.case), {})}) for m in found.measurements
    )
    score = math.exp(math.fsum(math.log(m.speedup) for m in held) / len(held)) if held else found.score
    return replace(found, measurements=held, score=score)
