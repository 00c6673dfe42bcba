"""SIGKILL in the middle of agents' conversations, again and again, and what the file says afterwards."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import warm
from tests.support.agent_run import DOLLARS

WIDTH = 2  # conversations at once
WAIT_S = 60.0


@dataclass
class Found:
    """What a series of kills showed. Lists of faults are empty where all is well."""

    kills: int = 0
    in_conversation: int = 0  # kills that left a conversation in the middle
    resumed: int = 0  # of the conversations left so, those that went on from their last stored turn
    turns: int = 0
    faults: list[str] = field(default_factory=list)
    logged: tuple[int, int] = (0, 0)  # answers and evaluations that were really made
    counted: tuple[int, int] = (0, 0)  # the same, by the file


def kill_often(folder: Path, kills: int, seed: int = 1, slow: float = 0.01) -> Found:
    """Run the search of agent_run, kill it `kills` times at random turns, then let it end."""
    rng, found = random.Random(seed), Found()
    path, log = folder / "agents.db", folder / "log.txt"
    budget = 60 + 12 * kills
    left: dict[int, int] = {}  # attempts that were in the middle -> turns that were stored
    for _ in range(kills):
        before = _turn_count(path)
        child = _start(path, log, slow, budget)
        target = before + rng.randrange(1, 24)
        until = time.monotonic() + WAIT_S
        while _turn_count(path) < target and child.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        if child.poll() is not None:
            found.faults.append(f"the search ended by itself with {child.returncode}: {child.stderr.read()[-2000:]}")
            return found
        time.sleep(rng.random() * slow * 3)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        found.kills += 1
        _check_left(path, left, found)
        left = _open(path)
        found.in_conversation += bool(left)
    last = _start(path, log, slow, budget)
    _, said = last.communicate(timeout=600)
    if last.returncode:
        found.faults.append(f"the last search ended with {last.returncode}: {said[-2000:]}")
    _check_left(path, left, found)
    _check_whole(path, log, found)
    return found


def _start(path: Path, log: Path, slow: float, budget: int) -> subprocess.Popen[str]:
    words = (str(path), str(log), "--slow", str(slow), "--budget", str(budget))
    command = warm.command("tests.support.agent_run", *words)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _check_left(path: Path, left: dict[int, int], found: Found) -> None:
    """Every conversation that a kill left in the middle has kept its turns, and has gone on where it stood."""
    now = _turns(path)
    for attempt, stored in left.items():
        if now.get(attempt, 0) < stored:
            found.faults.append(f"attempt {attempt} had {stored} turns and has {now.get(attempt, 0)}")
        elif now[attempt] > stored:
            found.resumed += 1


def _check_whole(path: Path, log: Path, found: Found) -> None:
    with sqlite3.connect(path) as connection:
        ends = dict(connection.execute("SELECT attempt, COUNT(*) FROM candidates GROUP BY attempt"))
        for attempt, count in connection.execute("SELECT attempt, COUNT(*) FROM failures GROUP BY attempt"):
            ends[attempt] = ends.get(attempt, 0) + count
        for attempt, turns, last, opened in connection.execute(
            "SELECT attempt, COUNT(*), MAX(position), SUM(kind = 'opening') FROM turns GROUP BY attempt"
        ):
            found.turns += turns
            if last != turns - 1 or opened != 1:
                found.faults.append(f"attempt {attempt}: {turns} turns up to {last}, {opened} openings")
            if ends.get(attempt) != 1:
                found.faults.append(f"attempt {attempt} has {ends.get(attempt, 0)} ends")
        answers, calls = connection.execute(
            "SELECT (SELECT COUNT(*) FROM turns WHERE kind = 'answer'), (SELECT COUNT(*) FROM calls)"
        ).fetchone()
        (dollars,) = connection.execute("SELECT TOTAL(dollars) FROM calls").fetchone()
    if answers != calls or abs(dollars - calls * DOLLARS) > 1e-6:
        found.faults.append(f"{answers} answers, {calls} calls, {dollars} dollars")
    _check_spent(path, log, calls, found)


def _check_spent(path: Path, log: Path, calls: int, found: Found) -> None:
    """What was spent is counted, but for what was in flight when a kill came: one thing a conversation."""
    from populations.reading import PopulationReader

    lines = log.read_text().splitlines()
    made = (sum(line == "call" for line in lines), sum(int(line.split()[1]) for line in lines if line != "call"))
    with PopulationReader(path) as reader:
        counted = (calls, sum(reader.status().evaluations.values()))
    found.logged, found.counted = made, counted
    most = (WIDTH * found.kills, 3 * WIDTH * found.kills)  # a submit in flight may be three evaluations
    for what, logged, known, lost in zip(("answers", "evaluations"), made, counted, most, strict=True):
        if not logged - lost <= known <= logged:
            found.faults.append(f"{logged} {what} were made, {known} are counted, after {found.kills} kills")


def _turn_count(path: Path) -> int:
    return sum(_turns(path).values())


def _turns(path: Path) -> dict[int, int]:
    if not path.exists():
        return {}
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0) as connection:
            return dict(connection.execute("SELECT attempt, COUNT(*) FROM turns GROUP BY attempt"))
    except sqlite3.OperationalError:  # it is just being made
        return {}


def _open(path: Path) -> dict[int, int]:
    """Conversations in the middle, with their turns."""
    ended = "SELECT attempt FROM candidates UNION SELECT attempt FROM failures"
    with sqlite3.connect(path) as connection:
        sql = f"SELECT attempt, COUNT(*) FROM turns WHERE attempt NOT IN ({ended}) GROUP BY attempt"
        return dict(connection.execute(sql))
