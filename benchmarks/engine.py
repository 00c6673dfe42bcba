"""Attempts a second of the engine with an instant operator, an instant judge and the real population.

    python benchmarks/engine.py [--candidates 1000 100000] [--width 1] [--attempts 2000]

For each size the population is first filled to that many candidates by the engine itself; the rate is that of the
next `--attempts` attempts: ask, propose, record, judge, tell, learn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evo_kernel.budget import Budget, Ledger, Spent
from evo_kernel.engine import Engine, EngineSettings
from populations.population import LineagePopulation, open_population
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedJudge, ScriptedOperator


def measure(population: LineagePopulation, attempts: int, width: int) -> float:
    """Attempts a second, what operators must learn again at the start left out."""
    spent = Spent(evaluations=population.counters().charged)
    ledger = Ledger(Budget(evaluations=spent.evaluations + attempts), spent)
    settings = EngineSettings(width=width, confirmations=0)
    engine = Engine(population, ScriptedOperator(), ScriptedJudge(), ledger, settings)
    engine._population = _Started(population)  # type: ignore[assignment]  # the clock starts after the replay
    engine.run()
    return attempts / (time.perf_counter() - engine._population.began)  # type: ignore[attr-defined]


class _Started:
    """The population, with a note of when the search itself began."""

    def __init__(self, population: LineagePopulation) -> None:
        self._population, self.began = population, 0.0

    def __getattr__(self, name: str):
        return getattr(self._population, name)

    def pending(self):
        self.began = time.perf_counter()
        return self._population.pending()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--attempts", type=int, default=2_000)
    parser.add_argument("--width", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    print("| candidates | " + " | ".join(f"attempts/s, width {width}" for width in options.width) + " |")
    print("| --- |" + " --- |" * len(options.width))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.db"
        with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
            population.plant(FIRST)
            for size in options.candidates:
                missing = size - population.counters().candidates
                if missing > 0:
                    measure(population, missing, 1)
                rates = [measure(population, options.attempts, width) for width in options.width]
                print(f"| {size:,} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
