"""A search as a process of its own: the real engine, population, signals and summary around a scripted judge.

python -m tests.support.searching FILE [--slow SECONDS]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from evo_kernel.app.compose import watched
from evo_kernel.app.summary import exit_code
from evo_kernel.budget import Budget, Ledger
from evo_kernel.engine import Engine, EngineSettings
from evo_kernel.observe.live import LiveProgress
from populations.population import open_population
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedJudge, ScriptedOperator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--slow", type=float, default=0.01)
    options = parser.parse_args()
    judge = ScriptedJudge(wait_s=options.slow)
    with open_population(options.file, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=3) as population:
        population.plant(FIRST)
        ledger = Ledger(Budget(evaluations=100_000))
        with LiveProgress(Console(), ENVIRONMENT, ledger.left) as progress:
            engine = Engine(population, ScriptedOperator(), judge, ledger, EngineSettings(width=2), progress)
            print("ready", flush=True)
            with watched(engine, judge):
                ended = engine.run()
        print(f"{ended.why}; asked {len(judge.asked)}; closed {judge.closed.is_set()}", flush=True)
    sys.exit(exit_code(ended))


if __name__ == "__main__":
    main()
