"""Facts of plans that nobody compiled, in the ranges of real ones, for tests of the fit and its figures."""

from __future__ import annotations

import numpy as np

from benchmarks.calibration.samples import Sample
from evo_kernel.fitness.costmodel.facts import LaunchFacts, PlanFacts
from evo_kernel.fitness.costmodel.model import Constants, time_of
from evo_kernel.fitness.costmodel.targets import H200
from evo_kernel.fitness.costmodel.torch_costs import TorchCost
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic

TASKS = ("rows", "tiles", "sums")


def samples(count: int, constants: Constants, seed: int = 0, noise: float = 0.03) -> list[Sample]:
    """`count` plans a task, "measured" as the model with these constants says, within `noise`."""
    rng = np.random.default_rng(seed)
    made = []
    for task in TASKS:
        for number in range(count):
            case = number % 3
            facts = _facts(task, case, rng)
            us = time_of(facts, H200, constants).total_us * float(np.exp(rng.normal(0, noise)))
            name = f"{task}{number:09d}"
            made.append(
                Sample(task, f"case{case}", name, f"0.{number % 5}", (("BLOCK", number),), name, us, 0.1, 5, facts)
            )
    return made


def _facts(task: str, case: int, rng: np.random.Generator) -> PlanFacts:
    launches = tuple(_launch(task, case, rng) for _ in range(int(rng.integers(1, 3))))
    return PlanFacts(launches, (TorchCost(1e6),) if rng.random() < 0.2 else ())


def _launch(task: str, case: int, rng: np.random.Generator) -> LaunchFacts:
    def draw(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    programs = int(draw(64, 16384))
    grid_bytes = draw(1e6, 2e8) * (case + 1)
    each, rounds = grid_bytes / programs, draw(1, 64)
    again = draw(1, 20) if task == "tiles" else draw(1, 3)
    wide = rng.random() < 0.5
    inside = int(draw(10, 400))
    instructions = {
        "all": inside + int(draw(50, 1000)), "in_loop.all": inside, "loops": 1,
        "ld.shared": int(draw(1, 50)), "in_loop.ld.shared": int(draw(1, 40)), "st.shared": 2,
        "mufu": int(draw(1, 30)), "in_loop.mufu": int(draw(1, 20)),
        "spill": int(draw(1, 30)) if rng.random() < 0.2 else 0,
    }  # fmt: skip
    if task == "tiles":
        instructions |= {"wgmma": 8, "in_loop.wgmma": 8} if wide else {"mma": 32, "in_loop.mma": 32}
        instructions |= {"in_loop.cp.async": 4} if rng.random() < 0.5 else {}
    traffic = LaunchTraffic(
        programs=programs, sampled=64, load_bytes=each * again, store_bytes=each, load_sector_bytes=each * again,
        store_sector_bytes=each, atomic_elements=draw(1, 100) if task == "sums" else 0.0,
        wave_load_bytes=grid_bytes * min(1.0, 264 / programs) * again, grid_load_bytes=grid_bytes,
        grid_store_bytes=grid_bytes / 2, rounds=rounds, iterations=rounds, imbalance=1.0 + rng.random() * 0.2,
        flops={"bf16": each * draw(10, 500)} if task == "tiles" else {},
    )  # fmt: skip
    return LaunchFacts(
        registers=int(draw(24, 250)), shared_bytes=int(draw(1024, 200_000)), num_warps=int(2 ** rng.integers(0, 5)),
        num_stages=int(rng.integers(1, 5)), instructions=instructions, traffic=traffic,
    )  # fmt: skip
