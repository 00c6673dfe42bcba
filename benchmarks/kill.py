"""Kill the writer again and again; nothing told may be lost or counted twice, and replay must equal the live state.

    python benchmarks/kill.py [--runs 200] [--seed 1]

Each run opens a population in a child process which asks, records and tells with an instant operator and judge, and
reports over a pipe every candidate that it told, its charge so far and now and then the digest of its live search
state, always after the act returned. The child is killed with SIGKILL at a random moment (0 to 400 ms after its first
report). Then the file is opened again and held against what the child had acknowledged:

* lost: told and acknowledged, but without a verdict in the file; or candidates that are gone
* twice: a candidate with two verdicts, or more evaluations charged than the sum over verdicts in the file
* differs: the digest of a replay up to the child's last reported point is not the one that it reported

Eight populations are used in turn, so that files are killed, resumed and killed again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.population import grow, judge, open_toy
from evo_kernel.types import Source
from populations.connect import connect_reader
from populations.replay import replay
from populations.sessions import last_id

FILES = 8


def child(path: Path, seed: int) -> None:
    """Search until killed; one JSON line after every act that must not be lost."""
    rng = random.Random(seed)
    out = sys.stdout
    with open_toy(path) as population:
        for recorded in population.pending():
            population.tell(recorded, judge(recorded.proposal.source, rng, 4.0), True)
        if not population.counters().candidates:
            planted = population.plant(Source("# seed"))
            evaluation = judge(planted.proposal.source, rng, 5.0)
            population.tell(planted, evaluation)
        while True:
            grow(population, 1, rng)
            counters = population.counters()
            report = {"candidates": counters.candidates, "charged": counters.charged}
            if rng.random() < 0.2:
                with population._store.lock:
                    report |= {
                        "digest": population.digest(),
                        "evaluation": last_id(population._store.connection, "evaluations"),
                    }
            out.write(json.dumps(report) + "\n")
            out.flush()


def kill_once(path: Path, rng: random.Random) -> list[dict]:
    """Everything that the child acknowledged before it was killed at a random moment."""
    command = [sys.executable, __file__, "--child", str(path), "--seed", str(rng.getrandbits(30))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    select.select([process.stdout], [], [], 60)  # wait for the first report: kill at work, not during imports
    time.sleep(rng.random() * 0.4)
    os.kill(process.pid, signal.SIGKILL)
    text = process.stdout.read().decode()
    process.wait()
    lines = text.split("\n")[:-1]  # what follows the last line break was cut short
    return [json.loads(line) for line in lines]


def verify(path: Path, reports: list[dict]) -> dict[str, int]:
    """What is wrong with a file whose writer acknowledged these reports, by kind."""
    wrong = {"lost": 0, "twice": 0, "differs": 0}
    with open_toy(path) as population:  # a lock that outlived its process would refuse here
        counters, pending = population.counters(), {recorded.candidate for recorded in population.pending()}
        replayed = population.digest()
    connection = connect_reader(path)
    last = reports[-1] if reports else {"candidates": 0, "charged": 0}
    told = set(range(1, last["candidates"] + 1))
    wrong["lost"] += len(told & pending) + max(0, last["candidates"] - counters.candidates)
    wrong["lost"] += max(0, last["charged"] - counters.charged)
    twice = "SELECT COUNT(*) FROM (SELECT candidate FROM evaluations GROUP BY candidate HAVING COUNT(*) > 1)"
    wrong["twice"] += connection.execute(twice).fetchone()[0]
    wrong["twice"] += counters.charged != connection.execute("SELECT COUNT(*) FROM evaluations").fetchone()[0]
    (until,) = connection.execute("SELECT IFNULL(MAX(id), 0) FROM evaluations").fetchone()
    connection.close()
    digests = [report for report in reports if "digest" in report]
    if digests:
        wrong["differs"] += digest_until(path, digests[-1], until, replayed) != digests[-1]["digest"]
    return wrong


def digest_until(path: Path, report: dict, until: int, replayed: str) -> str:
    """Digest of a replay of the file as it was at the report: later rows are cut from a copy."""
    if report["evaluation"] == until and report["candidates"] == count_candidates(path):
        return replayed
    copy = path.with_suffix(".copy")
    source = connect_reader(path)
    target = sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.execute("PRAGMA foreign_keys=OFF")
    target.execute("DELETE FROM evaluations WHERE id > ?", (report["evaluation"],))
    target.execute("DELETE FROM candidates WHERE id > ?", (report["candidates"],))
    target.execute("DELETE FROM runs WHERE after_evaluation > ?", (report["evaluation"],))
    target.commit()
    digest = replay(target).digest()
    target.close()
    copy.unlink()
    return digest


def count_candidates(path: Path) -> int:
    connection = connect_reader(path)
    (count,) = connection.execute("SELECT COUNT(*) FROM candidates").fetchone()
    connection.close()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.seed)
    rng = random.Random(arguments.seed)
    total = {"lost": 0, "twice": 0, "differs": 0}
    told = compared = 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"toy{n}.db" for n in range(FILES)]
        for run in range(arguments.runs):
            reports = kill_once(paths[run % FILES], rng)
            told += len(reports)
            compared += any("digest" in report for report in reports)
            for kind, count in verify(paths[run % FILES], reports).items():
                total[kind] += count
        candidates = sum(count_candidates(path) for path in paths if path.exists())
    print("  killed reopened     told candidates   lost  twice compared differ")
    print(
        f"{arguments.runs:>8} {arguments.runs:>8} {told:>8} {candidates:>10} {total['lost']:>6} {total['twice']:>6} "
        f"{compared:>8} {total['differs']:>6}"
    )
    print(f"in {time.perf_counter() - began:.0f} s")
    if any(total.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
