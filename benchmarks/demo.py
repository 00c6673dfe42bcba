"""`make demo`: a real search on softmax and matmul with the embedded default, in about two minutes on two cores.

Runs the command line as a user would, keeps the populations in `demo/`, and ends with one table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "demo"
TASKS = {"softmax": 40, "matmul": 37}  # seconds of search


def main() -> None:
    began, found = time.monotonic(), []
    print(f"{len(TASKS)} searches, {sum(TASKS.values())} s and a few more for the start of each:", flush=True)
    FOLDER.mkdir(exist_ok=True)
    for task, seconds in TASKS.items():
        for old in FOLDER.glob(f"{task}.db*"):
            old.unlink()
        print(f"\n=== evo-kernel run {task} --for {seconds}s", flush=True)
        found.append(searched("run", task, "--for", f"{seconds}s"))
    show(Console(), found, time.monotonic() - began)


def searched(*words: str) -> dict[str, Any]:
    """What a run found, as `--json` has it; its progress goes to the terminal."""
    command = [sys.executable, "-P", "-m", "evo_kernel.cli.main", *words, "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    ended = subprocess.run(command, cwd=FOLDER, check=False, env=environment, stdout=subprocess.PIPE, text=True)
    if ended.returncode not in (0, 1):  # 1: no kernel passed in this time, which the table tells
        raise SystemExit(ended.returncode)
    return json.loads(ended.stdout)


def show(console: Console, found: Sequence[dict[str, Any]], took_s: float) -> None:
    """One table of what the searches found, against what, and the next commands."""
    table = Table(
        title=f"found in {took_s:.0f} s, times in µs, {found[0]['environment']['label']}", title_justify="left"
    )
    columns = ("task", "case", "found", "against", "floor", "speed-up", "confirmed")
    for column in columns:
        table.add_column(column, justify="right" if column in ("found", "floor", "speed-up") else "left")
    for one in found:
        best = one["best"] or {"cases": {}}
        for case, at in best["cases"].items():
            name, floor_us = at["denominator"], at["floor_us"]
            us = at["baselines_us"][name] if name else None
            table.add_row(
                one["task"], case, f"{at['us']:.1f}", f"{name} {us:.1f}" if us else "no baseline yet",
                f"{floor_us:.1f}" if floor_us else "not known", f"{us / at['us']:.2f}x" if us else "-",
                "yes" if one["confirmed"] else "not yet",
            )  # fmt: skip
        if not best["cases"]:
            table.add_row(one["task"], "no kernel passed in this time", *[""] * 5)
    console.print(table)
    told = "\n".join(f"next: {line}" for line in next_commands(found))
    console.print(told, highlight=False, soft_wrap=True)


def next_commands(found: Sequence[dict[str, Any]]) -> list[str]:
    """What to type in the clone to look at the first population, and to search for a kernel of one's own."""
    command, folder = ".venv/bin/evo-kernel", FOLDER.relative_to(ROOT)
    return [
        f"{command} show {folder / found[0]['population']}",
        f"{command} tasks new my_op.py        # your own function, then:",
        f"{command} run my_op.py",
    ]


if __name__ == "__main__":
    main()
