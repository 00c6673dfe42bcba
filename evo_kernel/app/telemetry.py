"""What a run publishes while it works: stages, ceilings of GPUs, times of baselines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

from evo_kernel.fitness.judge import PlanJudge
from evo_kernel.fitness.stages import Stages
from evo_kernel.observe.formatting import fault_lines
from populations.population import LineagePopulation

ANNOUNCE_S = 5.0


@contextlib.contextmanager
def announced(population: LineagePopulation, stages: Stages, every_s: float = ANNOUNCE_S) -> Iterator[None]:
    """Until the block ends, leave word of the stages beside the population every few seconds."""
    ended = threading.Event()

    def announce() -> None:
        while True:
            population.announce(stages.state())
            if ended.wait(every_s):
                return

    thread = threading.Thread(target=announce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def keep_ceilings(judge: PlanJudge, population: LineagePopulation) -> None:
    """Hand the judge what an earlier session measured in this very environment, or keep what it measures now."""
    if judge.baselines.ceilings.know(population.ceilings(judge.environment.key)):
        return
    found = judge.ceilings
    if found.measured:
        population.store_ceilings(found.as_data())


def kept_baselines(
    population: LineagePopulation, tell: Callable[[str], None]
) -> Callable[[str, Mapping[str, float], Mapping[str, str]], None]:
    """What hears from a judge what a case is held against: keeps it, and tells what could not be timed."""

    def hear(case: str, baselines_us: Mapping[str, float], faults: Mapping[str, str]) -> None:
        population.store_baselines(case, baselines_us, faults)
        for line in fault_lines({case: faults}):
            tell(line)

    return hear
