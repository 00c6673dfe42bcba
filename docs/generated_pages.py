"""MkDocs hook: reference pages, written by the code that they describe. None of them is stored."""

from __future__ import annotations

import inspect
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel
from sqlite_utils import Database

from evo_kernel.cli.main import cli
from evo_kernel.config import keys
from evo_kernel.tasks.loading import builtin_names, load
from operators.macro import catalogue
from populations.migrations import migrate
from tests.integrity.corpus import HONEST, Entry, entries

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_KERNELBENCH_ROWS = Path(__file__).parent.parent / "benchmarks/kernelbench"
_CHEATS = """# The corpus
The files of `tests/integrity`: no cheat may be scored for work that it does not do, no honest kernel be refused.
"Scored": when an [attacker](attacks.md) found it, and now; the honest kernel has 1.00, or the number in brackets.

## Cheats

| file | what it does | must end | scored |
| --- | --- | --- | --- |
"""
_HONEST = """
## Honest kernels

| file | what it does |
| --- | --- |
"""
_COMMANDS = """# Commands
This is what `--help` says of each command. Exit codes: 0 done; 1 a kernel did not pass, or nothing was found; 2 a
mistake that you can correct; 3 the machine failed; 130 interrupted.
"""
_CONFIGURATION = """# Configuration keys
How to set them: [Configure a run](../guides/configuration.md).

| key | default | what it is for |
| --- | --- | --- |
"""
_STRATEGIES = """# Strategies
What they are and how to add one: [Strategies and policies](../guides/strategies.md). "Offline": the rewriter can carry
it out without a language model.

"""
_TASKS = """# Built-in tasks
`evo-kernel tasks show NAME` prints the cases, rules and first kernel of one. Files: `evo_kernel/tasks/builtin/`.

| name | computes |
| --- | --- |
"""

_KERNELBENCH = """# KernelBench on an H200
The problems at their own sizes, TF32 as PyTorch's defaults have it; kernels may call PyTorch (`@mixed`). Offline
operators: no language model. MTMC on an H100 with Gemini 2.5 Pro (published): 100 % of level 1 correct, 67 % at least
1, 2.08 in the mean; 99 %, 86 % and 1.28 of level 2.

"""
_LEVELS = {
    1: """## Level 1
`evo-kernel suite kernelbench:KernelBench/level1@mixed@tf32 --to runs/l1 --minutes 0.25 --config configs/h200.toml
--device cuda --gpus 2`

One search a GPU: three on one filled its memory. 15 to 18 s of search a problem; many ended before they could confirm
their kernel. Where the harness calls a kernel in TF32 wrong, since its reference had no TF32 in cuDNN, the search
is repeated in IEEE float32 (54, 60, 66, 72, 75). Of 76, 86 and 87 it calls the kernels wrong: 76 and 87 rounded
operands otherwise than cuDNN does, and were not repeated since they round as it does; 86 rounds
what a first convolution gave.

The harness's clock has the host's time in it. A call of the modules that it timed took the host 0.12 ms with one
launch (12), 0.37 ms with three that have tensor maps (1); written anew since then, 0.06 and 0.10 ms. In the folder
`solutions`, for 1, with ones as inputs:

`python -m timeit -s "import torch, level_1_problem_1_sample_0_kernel as k; x = torch.ones(4096, 4096, device='cuda')"
"k.run(x, x)"`

Between two CUDA events around a call, 1 takes 807 µs, before 1032.

""",
    2: """## Level 2
`evo-kernel suite kernelbench:KernelBench/level2@mixed@tf32 --to runs/l2 --minutes 0.25 --no-stock
--config configs/h200.toml --device cuda`

15 s of search a problem, one search a GPU with 12 to 16 cores, the latest run of each, 2026-11-29 and 30: 25 s a
problem with start and confirmation. Two draw random numbers, which no kernel repeats. KernelBench's own harness was not
asked.

""",
}

SCHEMA = """# What is in a population file
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
    "notes": "What agents of the workbench noted down.",
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


def commands() -> str:
    """Every command with its options."""
    return _COMMANDS + _linked("".join(_section(path, command) for path, command in _walk(cli, ())))


def configuration() -> str:
    """Every key with its default."""
    rows = (f"| `{name}` | {_default(default)} | {_cell(description)} |\n" for name, description, default in keys())
    return _CONFIGURATION + _linked("".join(rows))


def strategies() -> str:
    """The catalogue of strategies."""
    return f"{_STRATEGIES}{catalogue.table()}\n"


def tasks() -> str:
    """The built-in tasks with the first line of what each says it computes."""
    return _TASKS + "".join(
        f"| `{name}` | {_cell((load(name).description.splitlines() or [''])[0])} |\n" for name in builtin_names()
    )


def _walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield (*path, name), command
            if isinstance(command, click.Group):
                yield from _walk(command, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command)
    name = "evo-kernel " + " ".join(path)
    usage = " ".join(p.make_metavar(context) for p in command.params if isinstance(p, click.Argument))
    more = " COMMAND" if isinstance(command, click.Group) else ""
    # \b marks paragraphs that a terminal must not wrap: here they are blocks of their own
    text = "\n\n".join(_block(part.strip("\n")) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    rows = [
        f"| `{', '.join([*o.opts, *o.secondary_opts])}` | {_cell(_meaning(o, context))} |\n"
        for o in command.params
        if isinstance(o, click.Option) and not o.hidden
    ]
    table = "\n| option | |\n| --- | --- |\n" + "".join(rows) if rows else ""
    return f"\n## {name}\n`{name}{more}{' ' + usage if usage else ''}`\n\n{text}\n{table}"


def _block(paragraph: str) -> str:
    if paragraph.startswith("\b"):
        return "```\n" + paragraph.removeprefix("\b").strip("\n") + "\n```"
    return paragraph


def _meaning(option: click.Option, context: click.Context) -> str:
    said = option.help or ""
    if isinstance(option.type, click.Choice):
        said += f" ({', '.join(map(str, option.type.choices))})"
    default = option.default if isinstance(option.default, (str, int, float)) and not option.is_flag else None
    if default not in (None, "") and f"{default}" not in said:
        said += f" [default: {default}]"
    return said.strip()


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        return "a section"
    plain = list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
    return f"`{json.dumps(plain)}`" if repr(plain) != "PydanticUndefined" else "needed"


def _linked(text: str) -> str:
    """`--help` names pages by their paths in the repository."""
    return re.sub(r"docs/([\w/-]+\.md)", r"[\1](../\1)", text)


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def schema() -> str:
    """The tables and views of a new population file."""
    database = Database(memory=True)
    migrate(database)
    connection: sqlite3.Connection = database.conn
    lines = [SCHEMA, "", "## Views"]
    for name in sorted(database.view_names(), key=list(ABOUT).index):
        lines += ["", f"### {name}", ABOUT[name], "", "Columns: " + ", ".join(_columns(connection, name)) + "."]
    lines += ["", "## Tables"]
    for name in sorted(_tables(connection), key=list(ABOUT).index):
        lines += ["", f"### {name}", ABOUT[name], "", "| column | type | |", "| --- | --- | --- |"]
        lines += _schema_rows(connection, name)
    return "\n".join(lines) + "\n"


def _tables(connection: sqlite3.Connection) -> Iterator[str]:
    """All but those that keep the migrations."""
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'"
    return (name for (name,) in connection.execute(f"{sql} AND name NOT LIKE 'sqlite%' ORDER BY name"))


def _columns(connection: sqlite3.Connection, name: str) -> list[str]:
    return [f"`{row[1]}`" for row in connection.execute(f"PRAGMA table_info([{name}])")]


def _schema_rows(connection: sqlite3.Connection, name: str) -> Iterator[str]:
    links = {row[3]: (row[2], row[4]) for row in connection.execute(f"PRAGMA foreign_key_list([{name}])")}
    for _, column, kind, not_null, _, key in connection.execute(f"PRAGMA table_info([{name}])"):
        notes = ["key"] if key else []
        if column in links:
            table, there = links[column]
            notes.append(f"→ {table}.{there}")
        if not not_null and not key:
            notes.append("may be empty")
        yield f"| {column} | {kind.lower()} | {', '.join(notes)} |"


def corpus() -> str:
    """Cheats and honest kernels that the judge's tests hold: what each does and how it must end."""
    cheats = (
        f"| `{one.path.stem}` | {_cell(one.what)} | {_ends(one)} | {_cell(one.scored)} |\n" for one in entries("cheats")
    )
    honest = (f"| `{one.path.stem}` | {_cell(one.what)} |\n" for one in entries(HONEST))
    return f"{_CHEATS}{''.join(cheats)}{_HONEST}{''.join(honest)}"


def _ends(entry: Entry) -> str:
    honest = [f"same plan as `{entry.twin}`"] * bool(entry.twin) + [f"no faster than `{entry.rival}`"] * bool(
        entry.rival
    )
    return ", ".join([*sorted(entry.ends), *honest])


def kernelbench() -> str:
    """What searches found for the problems of KernelBench, level by level."""
    return _KERNELBENCH + "\n".join(f"{text}{_level(level)}" for level, text in _LEVELS.items())


def _level(level: int) -> str:
    lines = (_KERNELBENCH_ROWS / f"level{level}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    found = [row for row in rows if row["us"]]
    ratios = [row["baselines_us"]["eager"] / row["us"] for row in found if "eager" in row["baselines_us"]]
    fastest = [min(row["baselines_us"].values()) / row["us"] for row in found]
    summary = (
        f"{len(found)} of {len(rows)} have a kernel that passed. Against eager: {sum(r >= 1 for r in ratios)} at "
        f"least 1; {sum(ratios) / len(rows):.2f} in the mean, without a kernel 0; {geometric_mean(ratios):.2f} "
        f"geometric over those with one. Against the faster of eager and torch.compile: {geometric_mean(fastest):.2f}."
    )
    if asked := [row["harness"] for row in rows if "harness" in row]:
        heard = [one["eager_us"] / one["us"] for one in asked if one["verdict"] == "correct"]
        summary += (
            f" KernelBench's harness: {len(heard)} of {len(asked)} correct, {sum(r >= 1 for r in heard)} at least 1 of "
            f"eager, {sum(heard) / len(heard):.2f} in the mean of the correct."
        )
    head = "| problem | µs | eager | torch.compile | to eager | to the faster | by the harness | state | judge |\n"
    return f"{summary}\n\n{head}| --- {'| --- ' * 8}|\n{''.join(map(_kernelbench_row, rows))}"


def _kernelbench_row(row: dict[str, Any]) -> str:
    name = row["problem"].replace("_", " ") + " (IEEE)" * (row.get("precision") == "ieee")
    cells = [name, *["–"] * 6, row["status"], str(row["judge"] or "–")]
    if us := row["us"]:
        times = row["baselines_us"]
        eager, compiled = (times.get(name) for name in ("eager", "torch.compile"))
        cells[1:6] = [
            f"{us:.0f}",
            f"{eager:.0f}" if eager else "–",
            f"{compiled:.0f}" if compiled else "–",
            f"{eager / us:.2f}" if eager else "–",
            f"{min(times.values()) / us:.2f}",
        ]
    if said := row.get("harness"):
        cells[6] = f"{said['eager_us'] / said['us']:.2f}" if said["verdict"] == "correct" else said["verdict"]
    return f"| {' | '.join(cells)} |\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "internals/corpus.md": corpus,
    "reference/commands.md": commands,
    "reference/configuration.md": configuration,
    "reference/schema.md": schema,
    "reference/strategies.md": strategies,
    "reference/tasks.md": tasks,
    "results/kernelbench.md": kernelbench,
}
"""Path below docs/ → what writes the page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the site."""
    from mkdocs.structure.files import File

    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files
