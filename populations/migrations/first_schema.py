"""The first schema: sessions, the lineage, the judge's verdicts."""

from __future__ import annotations

from sqlite_utils import Database

KINDS = {"int": int, "str": str, "float": float, "bytes": bytes}

TABLES = {
    "tasks": "id int, identity str, name str, card str",
    "environments": """id int, key str, kind str, device str, driver str, torch str, triton str, fp_fusion int,
        judge int, confinement str""",
    # One row a session: what was opened, by whom, from which evaluation on.
    "runs": """id int, task int > tasks, environment int > environments, seed int, settings str, config str, pid int,
        host str, after_evaluation int, after_attempt int, at float""",
    "sources": "id int, sha256 str, language str, text str",
    "strategies": "id int, key str, name str, family str, region str, parameters str",
    # inspirations: JSON list of candidates; a seed has no parent.
    "attempts": "id int, run int > runs, parent int?, island int, selector str, inspirations str, at float",
    "candidates": """id int, attempt int > attempts, source int > sources, operator str, strategy int? > strategies,
        parent int? > candidates, island int, generation int, probes int, wall_s float, explicit_parents int,
        at float""",
    "parents": "attempt int > attempts *, position int *, candidate int > candidates, role str",
    # offered: JSON list of strategies' ids; probabilities and context: JSON lists of numbers.
    "decisions": """attempt int > attempts *, position int *, policy str, offered str, probabilities str, chosen int,
        context str""",
    "steps": "attempt int > attempts *, position int *, action str, outcome str, detail str?, wall_s float",
    # dollars: NULL where the price is not known.
    "calls": """attempt int > attempts *, position int *, model str, tokens_in int, tokens_out int, tokens_cached int,
        dollars float?, wall_s float, error str?, messages str?""",
    # An attempt that ended without a candidate.
    "failures": """attempt int > attempts *, operator str, reason str, parent int > candidates,
        strategy int? > strategies, probes int, wall_s float, at float""",
    "notes": "id int, attempt int? > attempts, author str, text str, at float",
    "plans": "id int, hash str",
    "features": "id int, digest str, data str",
    # The columns up to `witnessed` are what the search state is rebuilt from.
    "evaluations": """id int, run int > runs, candidate int > candidates, environment int > environments, purpose str,
        status str, score float?, log_us float?, log_variance float, light_share float?, cell str, plan_key str,
        cost float, fresh int, witnessed int, reason str, knobs str, checks str, charged str, measured int,
        gpu_s float, wall_s float, at float""",
    # The first `measured` are the evaluation's own, the others belong to verdicts only. SQLite keeps NaN as NULL.
    "measurements": """evaluation int > evaluations *, position int *, plan int > plans, case_name str,
        median_us float?, iqr_us float?, n int, low_us float?, high_us float?, baselines_us str, light_share float?,
        features int? > features, details str""",
    # What was newly found out about plans; `measurement`: a position in measurements.
    "verdicts": """evaluation int > evaluations *, position int *, plan int > plans, case_name str, status str,
        reason str, check_result str?, measurement int?""",
    # Every plan that an evaluation saw of a source; `target`: the environment's device.
    "source_plans": """evaluation int > evaluations *, position int *, source int > sources, case_name str, knobs str,
        target str, plan int > plans""",
    # A candidate became the elite of a cell of an island's archive.
    "placements": "seq int *, evaluation int > evaluations, candidate int > candidates, island int, cell str",
    # What this machine can do at most, e.g. ("copy", 4.26e12 bytes/s).
    "ceilings": "id int, environment int > environments, name str, value float, unit str, at float",
    "baselines": "id int, environment int > environments, case_name str, name str, median_us float, at float",
    "events": "id int, run int > runs, kind str, data str, at float",
}
"""By name, as `create` reads them."""

UNIQUE = {"tasks": "identity", "environments": "key", "sources": "sha256", "strategies": "key"}
UNIQUE |= {"plans": "hash", "features": "digest"}


def create(database: Database, name: str, text: str) -> None:
    """Make a table. `text`: columns with their types; `?`: may be NULL, `> table`: points at its id, `*`: of the key,
    which is `id` where none is marked."""
    columns, optional, links, key = {}, set(), [], []
    for column, kind, *marks in (part.split() for part in text.split(",")):
        columns[column] = KINDS[kind.rstrip("?")]
        if kind.endswith("?"):
            optional.add(column)
        if ">" in marks:
            links.append((column, marks[marks.index(">") + 1], "id"))
        if "*" in marks:
            key.append(column)
    database.table(name).create(
        columns,
        pk=(key[0] if len(key) == 1 else tuple(key)) if key else "id",
        foreign_keys=links,
        not_null=set(columns) - optional,
    )


def apply(database: Database) -> None:
    for name, text in TABLES.items():
        create(database, name, text)
    # Attempts and candidates point at each other, so one of the two links comes when both tables exist.
    database.table("attempts").add_foreign_key("parent", "candidates", "id")
    for name, column in UNIQUE.items():
        database.table(name).create_index([column], unique=True)
