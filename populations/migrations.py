"""The schema, as a list of migrations: each one atomic, applied once, in order. Never edit one that was released.

Every table is insert-only, no row has a status that changes: what is open, pending or judged is derived from which
rows exist. Ids are integers that only grow, so the order of ids is the order of what happened. Kernel times are
microseconds (`_us`), all other times seconds (`_s`, or `at`: Unix time).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container

from sqlite_utils import Database, Migrations

from populations.views import view_definitions

migrations = Migrations("populations")

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
"""By name, as `create_table` reads them."""

UNIQUE = {"tasks": "identity", "environments": "key", "sources": "sha256", "strategies": "key"}
UNIQUE |= {"plans": "hash", "features": "digest"}


def create_table(database: Database, name: str, text: str) -> None:
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


@migrations(name="0001_lineage")
def first_schema(database: Database) -> None:
    for name, text in TABLES.items():
        create_table(database, name, text)
    # Attempts and candidates point at each other, so one of the two links comes when both tables exist.
    database.table("attempts").add_foreign_key("parent", "candidates", "id")
    for name, column in UNIQUE.items():
        database.table(name).create_index([column], unique=True)


def create_views(database: Database) -> None:
    """Those of views.sql, anew where they exist."""
    for name, definition in view_definitions().items():
        database.execute(f"DROP VIEW IF EXISTS {name}")
        database.execute(f"CREATE VIEW {name}{definition}")


@migrations(name="0002_lookups")
def lookups(database: Database) -> None:
    """Indexes for what is looked up while the search runs: a candidate's verdicts, what failed on a parent."""
    database.table("evaluations").create_index(["candidate", "id"])
    database.table("candidates").create_index(["attempt"], unique=True)
    database.table("candidates").create_index(["parent"])
    database.table("failures").create_index(["parent"])
    database.table("verdicts").create_index(["plan"])


@migrations(name="0003_clock")
def clock(database: Database) -> None:
    """The card's state beside a measurement; NULL in old files, and for modeled times."""
    for name in ("clock_mhz", "power_w", "drift"):
        database.table("measurements").add_column(name, float)


@migrations(name="0004_comparisons")
def comparisons(database: Database) -> None:
    """What a confirmation measured side by side: the candidate and its rivals, case by case."""
    create_table(
        database,
        "comparisons",  # `plan`: the rival's; ratios are rival ÷ candidate; claimed: NULL where nothing was claimed
        """evaluation int > evaluations *, position int *, plan int > plans, case_name str, case_kind str, against str,
        ratio float, low float, high float, pairs int, verdict str, claimed float?""",
    )


@migrations(name="0005_agents")
def agents(database: Database) -> None:
    """What agents leave behind: conversations turn by turn, what they learnt, findings about plans, notes' evidence."""
    create_table(
        database,
        "turns",  # data: JSON, deflated; calls: in the whole attempt so far; charged: JSON, evaluations by purpose
        """attempt int > attempts *, position int *, kind str, data bytes, calls int, charged str, gpu_s float,
        at float""",
    )
    database.table("turns").create_index(["at"])
    create_table(database, "memories", "id int, attempt int > attempts, kind str, data str, at float")
    database.table("memories").create_index(["attempt", "kind"], unique=True)
    create_table(
        database,
        "findings",
        """id int, environment int > environments, case_name str, plan str, status str, reason str, check_result str?,
        measurement str?, at float""",
    )
    database.table("notes").add_column("evidence", str)  # JSON list; NULL: a note of no agent
    database.table("notes").add_column("refutes", int)  # the older note that this one says does not hold


@migrations(name="0006_remarks")
def remarks(database: Database) -> None:
    """What an operator found wrong with the answer of a call whose row was written when the call was made."""
    create_table(database, "call_remarks", "attempt int > attempts *, position int *, error str")


@migrations(name="0007_tickets")
def tickets(database: Database) -> None:
    """Tickets in the hands of somebody outside: such an attempt stays open when the process that opened it is gone."""
    create_table(database, "tickets", "attempt int > attempts *, holder str, expires_at float?, at float")


@migrations(name="0008_views")
def plain_views(database: Database) -> None:
    create_views(database)


@migrations(name="0009_assembler")
def assembler(database: Database) -> None:
    """Which version of the assembler made the code that was judged; "" where it was not told."""
    database.table("environments").add_column("assembler", str, not_null_default="")


@migrations(name="0010_views")
def views_anew(database: Database) -> None:
    """Views tell the row of the environment: two may have one label."""
    create_views(database)


def migrate(database: Database) -> None:
    """Bring a file, new or old, to the present schema, and its views to those of views.sql."""
    migrations.apply(database)
    stored = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'").fetchall()
    if dict(stored) != {name: f"CREATE VIEW {name}{text}" for name, text in view_definitions().items()}:
        with database.atomic():
            create_views(database)


def made_by(names: Container[str]) -> sqlite3.Connection:
    """A new file after some of the migrations only."""
    database = Database(memory=True)
    migrations.ensure_migrations_table(database)
    for migration in migrations.pending(database):
        if migration.name in names and "0001_lineage" in names:  # the others build on it
            migration.fn(database)
    return database.conn
