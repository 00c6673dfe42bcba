"""Arms: operators with a model against each other, each a search of its own with the same limits and the same model.

Every arm is `evo-kernel run` with one operator, stopped at its dollars (or tokens, where the price is not known), its
hours, or its part of the bench's calls, whichever comes first.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.agents.notebook import Notebook, Row
from populations.reading import PopulationReader

ARMS = {
    "agent": ("avo",),
    "evolution": ("llm-mtmc", "llm-crossover"),
}
"""Names of operators, see the configuration's `operators.use`."""
TASKS = ("softmax", "matmul", "attention")
WIDTH = 4  # attempts in flight: how many calls an arm may overshoot by


@dataclass(frozen=True)
class ArmLimits:
    """Of one arm. Either dollars or tokens are given."""

    dollars: float | None
    tokens: int | None
    hours: float
    calls: int


@dataclass(frozen=True)
class Asked:
    """Which model, where, and what judges."""

    model: str
    base_url: str | None
    device: str
    key_env: str | None = None


def run(notebook: Notebook, tasks: tuple[str, ...], asked: Asked, limits: ArmLimits, folder: Path) -> None:
    """Every arm of every task that is not finished yet, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        for arm, operators in ARMS.items():
            if f"{task} {arm}" in notebook.items("arms"):
                continue
            if min(limits.calls, notebook.left) <= WIDTH:
                print(f"{task} {arm}: {notebook.left} calls are left, {limits.calls} are its part: not started")
                continue
            path = folder / f"{task}-{arm.replace(' ', '-')}.db"
            most = min(limits.calls, notebook.left)
            why = _search(command(task, operators, path, asked, limits), path, most)
            notebook.write(_row(task, arm, path, why))


def command(task: str, operators: tuple[str, ...], path: Path, asked: Asked, limits: ArmLimits) -> list[str]:
    """The search, as a person would start it; where its file is there already, it is taken up again."""
    run = [sys.executable, "-P", "-m", "evo_kernel.cli.main"]
    if path.exists():
        return [*run, "resume", str(path)]
    named = ", ".join(f'"{name}"' for name in operators)
    settings = [f"operators.use=[{named}]", f"budget.hours={limits.hours}", f"width={WIDTH}"]
    settings += [f"budget.dollars={limits.dollars}"] if limits.dollars is not None else []
    settings += [f"budget.tokens={limits.tokens}"] if limits.tokens is not None else []
    more = ["--base-url", asked.base_url] if asked.base_url else []
    more += ["--api-key-env", asked.key_env] if asked.key_env else []
    sets = [part for setting in settings for part in ("--set", setting)]
    head = ["run", task, "--population", str(path), "--model", asked.model, "--device", asked.device]
    return [*run, *head, *more, *sets]


def _search(words: list[str], path: Path, most: int) -> str:
    """Run it; interrupt it when its calls are used up, by what its file counts. Why it ended."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    interrupted = 0
    while process.poll() is None:
        time.sleep(0.2)
        made = _calls(path)
        if interrupted == 0 and made >= most - WIDTH:
            process.send_signal(signal.SIGINT)  # start nothing new; what is in flight ends, and is counted
            interrupted = 1
        elif interrupted == 1 and made >= most:
            process.send_signal(signal.SIGINT)  # a conversation that goes on and on is cut off
            interrupted = 2
    said = process.stderr.read() if process.stderr else ""
    if not path.exists() or (process.returncode not in (0, 1, 130) and not interrupted):
        raise RuntimeError(f"{' '.join(words)}\nended with {process.returncode}:\n{said[-3000:]}")
    return "calls" if interrupted else "its limits"


def _calls(path: Path) -> int:
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0) as connection:
            return int(connection.execute("SELECT COUNT(*) FROM calls").fetchone()[0])
    except sqlite3.OperationalError:  # it is being made
        return 0


def _row(task: str, arm: str, path: Path, why: str) -> Row:
    with PopulationReader(path) as reader:
        status = reader.status()
        best = status.champion or status.best
        found = reader.candidate(best.candidate).evaluation if best else None
        first = reader.candidate(1).evaluation
        spent = reader.connection.execute(
            "SELECT COUNT(*), SUM(tokens_in + tokens_out), SUM(dollars) FROM calls"
        ).fetchone()
    gain = first.log_us - found.log_us if first and found and first.passed and found.passed else None
    return {
        "kind": "item", "part": "arms", "id": f"{task} {arm}", "task": task, "variant": arm, "log_gain": gain,
        "score": found.score if found else None, "judged": found.environment.kind if found else "", "ended": why,
        "calls": int(spent[0]), "tokens": int(spent[1] or 0), "dollars": spent[2], "attempts": status.attempts,
        "evaluations": sum(status.evaluations.values()), "gpu_s": status.gpu_s, "wall_s": status.wall_s,
    }  # fmt: skip
