"""The dashboard on a large population: how long pages take, and what it costs the run that it watches.

    python -m benchmarks.dashboard [--candidates 100000] [--pages 20] [--seconds 20]

An instant operator and an instant judge make the population (benchmarks/population.py). Then `evo-kernel serve` runs
in a process of its own: seconds from its start to the address it prints, and of each page the median and 95th
percentile over HTTP, in ms. Last, a run that writes at 100 candidates a second in this process: the time of ask +
record + tell an attempt, in turns with nobody watching and with so many open pages.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from benchmarks.population import begin, grow, open_toy
from populations.population import LineagePopulation
from populations.reading import PopulationReader

POLL_S = 3.0  # how often an open page asks for itself
RATE = 100.0  # candidates a second that the run writes
ROUND_S = 5.0


def make(path: Path, candidates: int) -> None:
    rng = random.Random(1)
    with open_toy(path) as population:
        begin(population, rng)
        grow(population, candidates - 1, rng)


class Server:
    """`evo-kernel serve` in a process of its own."""

    def __init__(self, path: Path) -> None:
        began = time.perf_counter()
        words = [sys.executable, "-P", "-m", "evo_kernel.cli.main", "serve", str(path), "--port", "0"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        self.start_s = time.perf_counter() - began
        if not address:
            raise SystemExit("the dashboard did not start: `evo-kernel serve` says why")
        self._home, _, self._token = address.partition("/?token=")

    def get(self, path: str) -> float:
        """Milliseconds."""
        wanted = urllib.request.Request(self._home + path, headers={"authorization": f"Bearer {self._token}"})
        began = time.perf_counter()
        with urllib.request.urlopen(wanted, timeout=60) as answer:
            answer.read()
        return (time.perf_counter() - began) * 1e3

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


def time_pages(server: Server, path: Path) -> None:
    with PopulationReader(path) as reader:
        last, best = reader.last_candidate(), reader.best()
    rng = random.Random(2)
    some = [f"/0/candidate/{rng.randint(1, last)}" for _ in range(40)]
    pages = [
        ("overview, first", ["/0/"]),
        ("overview", ["/0/"] * 20),
        ("candidate", some),
        ("candidate, the best", [f"/0/candidate/{best.candidate}"] * 20 if best else []),
        ("lineage", ["/0/lineage"] * 10),
        ("lineage around a candidate", [f"/0/lineage?at={rng.randint(1, last)}" for _ in range(10)]),
    ]
    print(f"{'page':<28} {'median ms':>9} {'p95 ms':>7} {'max ms':>7}")
    for name, paths in pages:
        spent = [server.get(one) for one in paths]
        late = statistics.quantiles(spent, n=20)[-1] if len(spent) > 1 else spent[0]
        print(f"{name:<28} {statistics.median(spent):>9.1f} {late:>7.1f} {max(spent):>7.1f}", flush=True)


def paced(population: LineagePopulation, rng: random.Random) -> list[float]:
    """ROUND_S seconds of attempts at RATE; ask + record + tell of each, in ms."""
    spent, due, ends = [], time.perf_counter(), time.perf_counter() + ROUND_S
    while due < ends:
        time.sleep(max(0.0, due - time.perf_counter()))
        spent.append(sum(times[0] for times in grow(population, 1, rng).values()))
        due += 1 / RATE
    return spent


def time_watched(path: Path, server: Server, pages: int, seconds: float) -> None:
    rng = random.Random(3)
    spent: dict[bool, list[float]] = {False: [], True: []}
    with open_toy(path) as population:
        for _ in range(max(1, round(seconds / ROUND_S))):
            spent[False] += paced(population, rng)
            over = threading.Event()
            watchers = [threading.Thread(target=_watch, args=(server, over), daemon=True) for _ in range(pages)]
            for watcher in watchers:
                watcher.start()
            spent[True] += paced(population, rng)
            over.set()
            for watcher in watchers:
                watcher.join(10.0)
    print(f"{'a run at 100 candidates/s':<28} {'median ms':>9} {'mean ms':>7} {'attempts':>8}")
    for watched, times in spent.items():
        name = f"{pages} pages open" if watched else "nobody watches"
        print(f"{name:<28} {statistics.median(times):>9.3f} {statistics.fmean(times):>7.3f} {len(times):>8}")
    slower = statistics.median(spent[True]) / statistics.median(spent[False]) - 1
    print(f"slower by {slower:+.1%} of ask + record + tell")


def _watch(server: Server, over: threading.Event) -> None:
    while not over.is_set():
        server.get("/0/")
        over.wait(POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=100_000)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="that the run writes with pages open, and without")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.db"
        make(path, arguments.candidates)
        server = Server(path)
        try:
            print(f"{path.stat().st_size / 1e6:.0f} MB; {server.start_s:.2f} s from the command to its address")
            time_pages(server, path)
            time_watched(path, server, arguments.pages, arguments.seconds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
