"""Reference page of the population file, written from the schema that migrations make."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from sqlite_utils import Database

from populations.migrations import migrate

INTRODUCTION = """# What is in a population file
A population is one SQLite file: open it with `sqlite3`, a notebook, or Datasette (`datasette my_op.db`), also while a
run writes it (read-only).

Rows are inserted, never changed. Ids only grow, so their order is the order of what happened. Times of kernels are in
microseconds (`_us`; `log_us`: the natural logarithm of the geometric mean over search cases), all others in seconds
(`_s`), `at` is Unix time. JSON is text. Scores and times compare only within one environment. A `log_gain` is
the logarithm of parent by child: 0.1 is 10 %.

```sql
SELECT candidate, strategy, round(exp(log_gain), 2) AS gain, utc FROM improvements;
SELECT strategy, tried, passed, round(exp(best_log_gain), 2) AS best FROM strategy_credit;
SELECT what, of, sum(amount) AS amount, unit FROM ledger GROUP BY what, of;
SELECT s.text FROM champions c JOIN sources s ON s.sha256 = c.source_sha256 WHERE c.place = 1;
```

The lineage with sources, one line of JSON a candidate: `evo-kernel tree POPULATION --to lineage.jsonl`."""

ABOUT = {
    "scores": "The latest score of each candidate in each environment.",
    "champions": "Confirmed candidates, fastest first; `place` 1 is the champion of its environment.",
    "improvements": "Every score that beat all before it in its environment, oldest first.",
    "strategy_credit": "What came of each strategy: tried, passed, seen in the plan (`witnessed`), gains over parents.",
    "ledger": "What was spent, by session: evaluations by purpose, seconds of GPU, calls, tokens and dollars by model.",
    "tasks": "What kernels compute; `identity` is the sha256 of the task file, `card` what agents see of it.",
    "environments": "Where scores were made; they compare only within one.",
    "runs": "Sessions: each time that the file was open for a search, with its configuration.",
    "sources": "Texts of kernels.",
    "strategies": "Optimisations as macro thinking names them: name, family, region, parameters (JSON pairs).",
    "attempts": "Briefs handed to operators: the parent, and what it was shown. A seed's attempt has no parent.",
    "candidates": "Sources at their places in the lineage; `parent` is the main one, `parents` has all.",
    "parents": "All parents of an attempt, by role.",
    "decisions": "What a policy was offered (ids of strategies in `offered`), how likely each was, and what it chose.",
    "steps": "Edits of micro coding and their outcome.",
    "calls": "Calls of language models as they were made; `dollars` is empty where the price is not known.",
    "call_remarks": "What an operator found wrong with the answer of a call.",
    "failures": "Attempts that ended without a candidate.",
    "notes": "What agents and people noted down; `evidence`: JSON, what a note rests on.",
    "memories": "What agents keep between attempts.",
    "turns": "Conversations of agents, turn by turn; `data` is JSON, deflated.",
    "findings": "What agents' own evaluations found out about plans.",
    "tickets": "Attempts in the hands of somebody outside.",
    "plans": "Launch plans by hash: the same hash is the same kernel.",
    "features": "What a plan is made of: launches, resources, data path (JSON).",
    "evaluations": "Verdicts: `purpose` is score, confirm, probe or tune; `charged` counts them by purpose (JSON).",
    "measurements": "Times of plans by case, with an interval of the median; an evaluation's first `measured` count.",
    "comparisons": "A confirmed candidate and its rivals, side by side; ratios are rival by candidate.",
    "verdicts": "What an evaluation newly found out about plans; `measurement` is a position in its measurements.",
    "source_plans": "Every plan that an evaluation saw of a source, by case and knobs.",
    "placements": "A candidate became the elite of a cell of an island's archive.",
    "ceilings": "What the machine reaches at most.",
    "baselines": "What kernels are held against.",
    "events": "What else happened.",
}


def schema(database: Database) -> str:
    """Markdown of a migrated database."""
    connection: sqlite3.Connection = database.conn
    lines = [INTRODUCTION, "", "## Views"]
    for name in sorted(database.view_names(), key=list(ABOUT).index):
        lines += ["", f"### {name}", ABOUT[name], "", "Columns: " + ", ".join(_columns(connection, name)) + "."]
    lines += ["", "## Tables"]
    for name in sorted(_tables(connection), key=list(ABOUT).index):
        lines += ["", f"### {name}", ABOUT[name], "", "| column | type | |", "| --- | --- | --- |"]
        lines += _rows(connection, name)
    return "\n".join(lines) + "\n"


def _tables(connection: sqlite3.Connection) -> Iterator[str]:
    """All but those that keep the migrations."""
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'"
    return (name for (name,) in connection.execute(f"{sql} AND name NOT LIKE 'sqlite%' ORDER BY name"))


def _columns(connection: sqlite3.Connection, name: str) -> list[str]:
    return [f"`{row[1]}`" for row in connection.execute(f"PRAGMA table_info([{name}])")]


def _rows(connection: sqlite3.Connection, name: str) -> Iterator[str]:
    links = {row[3]: (row[2], row[4]) for row in connection.execute(f"PRAGMA foreign_key_list([{name}])")}
    for _, column, kind, not_null, _, key in connection.execute(f"PRAGMA table_info([{name}])"):
        notes = ["key"] if key else []
        if column in links:
            table, there = links[column]
            notes.append(f"→ {table}.{there}")
        if not not_null and not key:
            notes.append("may be empty")
        yield f"| {column} | {kind.lower()} | {', '.join(notes)} |"


def current() -> str:
    """Of a new file."""
    database = Database(memory=True)
    migrate(database)
    return schema(database)
