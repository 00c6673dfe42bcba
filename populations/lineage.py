"""The lineage as a graph of networkx, the edits that made a champion, and export. Reads only.

Nodes are candidates, edges point from a parent to its child and carry the role (`parent`, `donor`, ...). Reads the file
through any connection, so it works on a live population as well as on one that nobody has open.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo_kernel.errors import PopulationError
from evo_kernel.types import Strategy
from populations.connect import fetch_one
from populations.row_decoders import fetch_parents, fetch_strategy

if TYPE_CHECKING:
    import networkx as nx

NODES = """
SELECT c.id, c.operator, c.island, c.generation, c.parent, s.name, s.family, s.region, e.status, e.score, e.log_us,
    e.cell, n.kind, n.device, e.reason
FROM candidates c
LEFT JOIN strategies s ON s.id = c.strategy
LEFT JOIN evaluations e ON e.id = (
    SELECT MAX(id) FROM evaluations
    WHERE candidate = c.id AND purpose = 'score' AND status != 'infra_error' AND environment = :environment
)
LEFT JOIN environments n ON n.id = e.environment
"""
COLUMNS = ("candidate", "operator", "island", "generation", "parent", "strategy", "family", "region", "status", "score")
COLUMNS += ("log_us", "cell", "kind", "device", "reason")


@dataclass(frozen=True)
class PathStep:
    """One edit on the way from a seed to a candidate."""

    candidate: int
    operator: str
    strategy: Strategy | None
    status: str | None  # None: not judged in the environment asked for
    score: float | None
    log_gain: float | None  # log(parent ÷ this); None where one of the two has no time

    @property
    def action(self) -> str:
        """What was done: the key of the strategy; the operator where none is claimed."""
        return self.strategy.key if self.strategy is not None else self.operator


def critical_path(connection: sqlite3.Connection, candidate: int, environment: int | None = None) -> list[PathStep]:
    """Which edits made this candidate, from its seed on, each with its gain: the gains of a path sum to the whole.

    `environment`: a row of environments; the latest that judged anything if None.
    """
    environment = latest_environment(connection) if environment is None else environment
    found: list[tuple[dict[str, Any], Strategy | None]] = []
    at: int | None = candidate
    while at:
        row = connection.execute(f"{NODES} WHERE c.id = :at", {"environment": environment, "at": at}).fetchone()
        if row is None:
            raise PopulationError(f"There is no candidate {at} in this population.")
        node: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
        claimed = fetch_one(connection, "SELECT strategy FROM candidates WHERE id = ?", (at,))
        found.append((node, fetch_strategy(connection, claimed) if claimed else None))
        at = node["parent"]
    steps, before = [], None
    for node, strategy in reversed(found):
        log_us = node["log_us"]
        gain = before - log_us if before is not None and log_us is not None else None
        steps.append(PathStep(node["candidate"], node["operator"], strategy, node["status"], node["score"], gain))
        before = log_us
    return steps


def latest_environment(connection: sqlite3.Connection) -> int | None:
    """Row of the environment of the latest score."""
    sql = "SELECT environment FROM evaluations WHERE purpose = 'score' ORDER BY id DESC LIMIT 1"
    return fetch_one(connection, sql)


def nodes(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every candidate with its strategy and its latest score, as plain data."""
    for row in connection.execute(f"{NODES} ORDER BY c.id", {"environment": latest_environment(connection)}):
        yield dict(zip(COLUMNS, row, strict=True))


def donors(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """(donor, child) of every parent that is not a candidate's main one, oldest first."""
    sql = (
        "SELECT p.candidate, c.id FROM parents p JOIN candidates c ON c.attempt = p.attempt"
        " WHERE p.candidate != c.parent ORDER BY c.id, p.position"
    )
    return connection.execute(sql).fetchall()


def lines(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every candidate in full, for a line of JSON each: as in `nodes`, with its parents by role and its source."""
    sql = (
        "SELECT c.attempt, s.sha256, s.language, s.text, IFNULL(t.parameters, '[]'), c.at"
        " FROM candidates c JOIN sources s ON s.id = c.source LEFT JOIN strategies t ON t.id = c.strategy"
        " WHERE c.id = ?"
    )
    for node in nodes(connection):
        row = connection.execute(sql, (node["candidate"],)).fetchone()
        attempt, sha256, language, text, parameters, at = row
        parents = fetch_parents(connection, attempt)
        yield {
            **node,
            "parents": [{"role": role, "candidate": candidate} for role, candidate in parents],
            "parameters": dict(json.loads(parameters)),
            "source_sha256": sha256,
            "language": language,
            "source": text,
            "at": at,
        }


def graph(connection: sqlite3.Connection) -> nx.DiGraph:
    """The lineage as a networkx graph, which answers what is asked of it: `nx.ancestors`, `nx.descendants`,
    `nx.shortest_path`, `nx.immediate_dominators`. Attributes as in `nodes`, those that are empty left out."""
    import networkx as nx  # 0.2 s: not for who only reads a status

    found = nx.DiGraph()
    for node in nodes(connection):
        found.add_node(node["candidate"], **{key: value for key, value in node.items() if value not in (None, "")})
    sql = "SELECT p.candidate, c.id, p.role FROM parents p JOIN candidates c ON c.attempt = p.attempt"
    for parent, child, role in connection.execute(sql):
        found.add_edge(parent, child, role=role)
    return found


def export(connection: sqlite3.Connection, path: Path) -> None:
    """Write all candidates as JSON Lines (with sources), or the graph as GraphML, by the file's ending."""
    if path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines(connection))
    elif path.suffix == ".graphml":
        import networkx as nx

        nx.write_graphml(graph(connection), path)
    else:
        raise PopulationError(f"A lineage is written as .jsonl or .graphml, not {path.suffix!r}: rename {path.name}.")
