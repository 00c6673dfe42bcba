"""Ask, record and tell, and replay, as a population grows.

    python -m benchmarks.population [--sizes 1000,10000,100000] [--probe 500]

An instant operator and an instant judge (one case, one plan a candidate, ever new texts). For each size: the median
and 95th percentile of `ask`, `record` and `tell` over the last attempts before it, whole attempts a second, seconds
to open the file again (replay), and the file's size.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from pathlib import Path

from evo_kernel.types import (
    Brief,
    CaseCard,
    CaseKind,
    Decision,
    Environment,
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    PlanVerdict,
    Proposal,
    Purpose,
    Source,
    Status,
    Strategy,
    TaskCard,
)
from operators.macro.features import FEATURES
from populations.population import LineagePopulation, open_population

CARD = TaskCard("toy", "def reference(x): ...", "kernels", "ieee", False, (CaseCard("large", CaseKind.SEARCH, {}),))
ENVIRONMENT = Environment("modeled", "sm_90", "", "-", "-", True, 1, "none")
STRATEGIES = tuple(Strategy(f"strategy-{n}", "tiling", f"line {line}") for n in range(12) for line in range(4))
CELLS = tuple(
    (core, path, schedule)
    for core in ("none", "mma", "wgmma")
    for path in ("load", "cp.async", "tma")
    for schedule in ("plain", "pipelined", "persistent", "warp-specialised")
)


def propose(brief: Brief, rng: random.Random) -> Proposal:
    offered = tuple(rng.sample(STRATEGIES, 8))
    decision = Decision("uniform", offered, (0.125,) * 8, 0, (0.1,) * len(FEATURES))
    text = f"# {brief.attempt}\n" + "x = 1\n" * 20
    return Proposal(Source(text), "toy", offered[0], decisions=(decision,), wall_s=0.0)


def judge(source: Source, rng: random.Random, level: float) -> Evaluation:
    """Log times around `level`; a quarter is wrong."""
    if rng.random() < 0.25:
        return Evaluation(
            source.sha256, "toy", Purpose.SCORE, ENVIRONMENT, Status.WRONG, "off by one", charged={Purpose.SCORE: 1}
        )
    core, path, schedule = rng.choice(CELLS)
    kernel = KernelFeatures("k", (64, 1, 1), 4, 2, 32, 0, 0, core, path, schedule, {"ld.global": 2}, 1.0)
    median = math.exp(rng.gauss(level, 0.3))
    plan = f"{rng.getrandbits(128):032x}"
    features = PlanFeatures(1, 0, (kernel,))
    measurement = Measurement("large", plan, median, 0.0, 0, median, median, {"eager": 100.0}, 0.3, features)
    verdict = PlanVerdict("large", plan, Status.PASSED, measurement=measurement)
    return Evaluation(
        source.sha256, "toy", Purpose.SCORE, ENVIRONMENT, Status.PASSED, "", 100.0 / median,
        measurements=(measurement,), plans=(("large", (), plan),), verdicts=(verdict,),
        charged={Purpose.SCORE: 1}, gpu_s=0.01, wall_s=0.02,
    )  # fmt: skip


def grow(population: LineagePopulation, attempts: int, rng: random.Random) -> dict[str, list[float]]:
    """So many attempts; the time of each act, in ms."""
    spent: dict[str, list[float]] = {"ask": [], "record": [], "tell": []}
    for _ in range(attempts):
        began = time.perf_counter()
        brief = population.ask()
        asked = time.perf_counter()
        proposal = propose(brief, rng)
        evaluation = judge(proposal.source, rng, 4.0)
        ready = time.perf_counter()
        recorded = population.record(brief, proposal)
        durable = time.perf_counter()
        population.tell(recorded, evaluation, True)
        told = time.perf_counter()
        for name, seconds in (("ask", asked - began), ("record", durable - ready), ("tell", told - durable)):
            spent[name].append(seconds * 1e3)
    return spent


def open_toy(path: Path) -> LineagePopulation:
    return open_population(path, task=CARD, task_identity="toy", environment=ENVIRONMENT, seed=1)


def begin(population: LineagePopulation, rng: random.Random) -> None:
    """Plant a first kernel that passes."""
    seed = population.plant(Source("# seed"))
    while not (evaluation := judge(seed.proposal.source, rng, 5.0)).passed:
        pass
    population.tell(seed, evaluation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--probe", type=int, default=500, help="attempts whose acts are timed, at the end of each size")
    arguments = parser.parse_args()
    rng = random.Random(1)
    print(
        f"{'candidates':>10} {'ask ms':>14} {'record ms':>14} {'tell ms':>14} {'attempts/s':>10} "
        f"{'replay s':>8} {'file MB':>8}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.db"
        with open_toy(path) as population:
            begin(population, rng)
        for size in (int(word) for word in arguments.sizes.split(",")):
            with open_toy(path) as population:
                grow(population, max(0, size - population.counters().candidates - arguments.probe), rng)
                began = time.perf_counter()
                spent = grow(population, arguments.probe, rng)
                rate = arguments.probe / (time.perf_counter() - began)
            began = time.perf_counter()
            with open_toy(path):
                open_s = time.perf_counter() - began
            acts = " ".join(
                f"{statistics.median(spent[name]):>6.2f} ({statistics.quantiles(spent[name], n=20)[-1]:>5.2f})"
                for name in ("ask", "record", "tell")
            )
            megabytes = path.stat().st_size / 1e6
            print(f"{size:>10} {acts} {rate:>10.0f} {open_s:>8.2f} {megabytes:>8.1f}", flush=True)
    print("ask, record, tell: median (95th percentile)")


if __name__ == "__main__":
    main()
