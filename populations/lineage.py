"""The lineage as a graph of networkx, the edits that made a champion, and export. Reads only.

Nodes are candidates, edges point from a parent to its child and carry the role (`parent`, `donor`, ...). Reads the file
through any connection, so it works on a live population as well as on one that nobody has open.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo_kernel.errors import PopulationError
from evo_kernel.types import Strategy, escaped
from populations.connect import fetch_dicts, fetch_one
from populations.rows import decode_strategy, fetch_parents

if TYPE_CHECKING:
    import networkx as nx

NODES = """
SELECT c.id AS candidate, c.operator, c.island, c.generation, c.parent, s.name AS strategy, s.family, s.region,
    s.parameters, e.status, e.score, e.log_us, e.cell, n.kind, n.device, e.reason, c.attempt, c.at
FROM candidates c
LEFT JOIN strategies s ON s.id = c.strategy
LEFT JOIN evaluations e ON e.id = (
    SELECT MAX(id) FROM evaluations
    WHERE candidate = c.id AND purpose = 'score' AND status != 'infra_error' AND environment = :environment
)
LEFT JOIN environments n ON n.id = e.environment
"""


@dataclass(frozen=True)
class PathStep:
    """One edit on the way from a root to a candidate. Where the tuner made the root faster, this is a step of its own:
    the same candidate, `tuning`."""

    candidate: int
    operator: str
    strategy: Strategy | None
    status: str | None  # None: not judged in the environment asked for
    score: float | None
    log_gain: float | None  # log(parent ÷ this); None where one of the two has no time
    tuning: bool = False

    @property
    def action(self) -> str:
        """What was done: the key of the strategy; the operator where none is claimed."""
        return self.strategy.key if self.strategy is not None else self.operator


def critical_path(connection: sqlite3.Connection, candidate: int, environment: int | None = None) -> list[PathStep]:
    """Which edits made this candidate, from its root on, each with its gain: the root's score times the gains is the
    candidate's score.

    `environment`: a row of environments; the latest that judged anything if None.
    """
    environment = latest_environment(connection) if environment is None else environment
    sql = f"""
    WITH RECURSIVE line(id, parent) AS (
        SELECT id, parent FROM candidates WHERE id = :candidate
        UNION ALL SELECT c.id, c.parent FROM candidates c JOIN line ON c.id = line.parent
    ) {NODES} WHERE c.id IN (SELECT id FROM line) ORDER BY c.id
    """
    steps, before = [], None
    for node in fetch_dicts(connection, sql, {"environment": environment, "candidate": candidate}):
        strategy, log_us = node["strategy"], node["log_us"]
        named = decode_strategy(strategy, node["family"], node["region"], node["parameters"]) if strategy else None
        gain = before - log_us if before is not None and log_us is not None else None
        steps.append(PathStep(node["candidate"], node["operator"], named, node["status"], node["score"], gain))
        before = log_us
    if not steps:
        raise PopulationError(f"There is no candidate {candidate} in this population.")
    return [*_from_untuned(connection, steps[0], environment), *steps[1:]]


def _from_untuned(connection: sqlite3.Connection, root: PathStep, environment: int | None) -> list[PathStep]:
    """A root as it came and then tuned, if it was timed with other knobs at first."""
    sql = (
        "SELECT log_us, knobs FROM evaluations WHERE candidate = ? AND environment = ? AND purpose = 'score'"
        " AND log_us IS NOT NULL ORDER BY id"
    )
    timed = connection.execute(sql, (root.candidate, environment)).fetchall()
    if not timed or timed[0][1] == timed[-1][1]:
        return [root]
    gain = timed[0][0] - timed[-1][0]
    untuned = root.score / math.exp(gain) if root.score is not None else None
    tuned = replace(root, operator="tuning of its knobs", strategy=None, log_gain=gain, tuning=True)
    return [replace(root, score=untuned), tuned]


def latest_environment(connection: sqlite3.Connection) -> int | None:
    """Row of the environment of the latest score."""
    sql = "SELECT environment FROM evaluations WHERE purpose = 'score' ORDER BY id DESC LIMIT 1"
    return fetch_one(connection, sql)


def nodes(connection: sqlite3.Connection, numbers: Iterable[int] | None = None) -> list[dict[str, Any]]:
    """Candidates (all, if left out) with strategy and latest score, as plain data, oldest first."""
    which = "" if numbers is None else "WHERE c.id IN (SELECT value FROM json_each(:numbers))"
    parameters = {"environment": latest_environment(connection), "numbers": json.dumps(list(numbers or ()))}
    return fetch_dicts(connection, f"{NODES} {which} ORDER BY c.id", parameters)


def lines(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every candidate in full, for a line of JSON each: as in `nodes`, with its parents by role and its source."""
    sql = "SELECT s.sha256, s.language, s.text FROM candidates c JOIN sources s ON s.id = c.source WHERE c.id = ?"
    for node in nodes(connection):
        sha256, language, text = connection.execute(sql, (node["candidate"],)).fetchone()
        parents = fetch_parents(connection, node["attempt"])
        roles = [{"role": role, "candidate": candidate} for role, candidate in parents]
        parameters = dict(json.loads(node["parameters"] or "[]"))
        source = {"source_sha256": sha256, "language": language, "source": text}
        yield node | {"parents": roles, "parameters": parameters, **source}


def graph(connection: sqlite3.Connection) -> nx.DiGraph:
    """The lineage as a networkx graph, which answers what is asked of it: `nx.ancestors`, `nx.descendants`,
    `nx.shortest_path`, `nx.immediate_dominators`. Attributes as in `nodes`, as XML can hold them; empty ones left out.
    """
    import networkx as nx  # 0.2 s: not for who only reads a status

    found = nx.DiGraph()
    for node in nodes(connection):
        told = {key: escaped(value) if isinstance(value, str) else value for key, value in node.items()}
        found.add_node(node["candidate"], **{key: value for key, value in told.items() if value not in (None, "")})
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
