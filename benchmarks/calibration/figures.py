"""How well modeled times rank what was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.calibration.samples import Sample
from evo_kernel.fitness.costmodel.model import CONSTANTS, Constants, time_of
from evo_kernel.fitness.costmodel.targets import H200

FEWEST, FEWEST_SIBLINGS = 8, 4
"""Plans of one case, and of one structure on one case, below which their ranks say nothing."""


@dataclass(frozen=True)
class Figures:
    """Of one task."""

    rows: int
    pooled: float  # Spearman's rank correlation over all plans of the task
    within: float  # the same within each case, mean weighted by plans: what a choice among siblings needs
    factor: float  # median of max(modeled ÷ measured, measured ÷ modeled)
    siblings: float  # the same within each structure and case: settings of its knobs, what a tuner chooses among
    kept: float  # share of the fastest tenth of each case that is among the best-modeled half of it


def modeled_us(samples: Sequence[Sample], constants: Constants = CONSTANTS) -> np.ndarray:
    return np.array([time_of(sample.facts, H200, constants).total_us for sample in samples])


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation, ties at their mean rank. NaN where one side is constant."""
    a, b = _ranks(first), _ranks(second)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[inverse]


def figures(samples: Sequence[Sample], modeled: np.ndarray) -> Figures:
    """`modeled` in the order of the samples, which are of one task."""
    measured = np.array([sample.us for sample in samples])
    cases = [places for places in grouped(samples, lambda s: s.case).values() if len(places) >= FEWEST]
    alike = [places for places in sibling_groups(samples).values() if len(places) >= FEWEST_SIBLINGS]
    return Figures(
        rows=len(samples),
        pooled=spearman(modeled, measured),
        within=_weighted((len(places), spearman(modeled[places], measured[places])) for places in cases),
        siblings=_weighted((len(places), spearman(modeled[places], measured[places])) for places in alike),
        factor=float(np.median(np.exp(np.abs(np.log(modeled / measured))))),
        kept=_weighted((len(places), kept_share(modeled[places], measured[places])) for places in cases),
    )


def kept_share(modeled: np.ndarray, measured: np.ndarray, best: float = 0.1, kept: float = 0.5) -> float:
    """Share of the `best` by measured time that are among the share `kept` by modeled time."""
    count = max(1, round(best * len(measured)))
    fastest = set(np.argsort(measured, kind="stable")[:count].tolist())
    chosen = set(np.argsort(modeled, kind="stable")[: max(1, round(kept * len(modeled)))].tolist())
    return len(fastest & chosen) / count


def _weighted(parts: Iterable[tuple[int, float]]) -> float:
    known = [(weight, value) for weight, value in parts if not math.isnan(value)]
    total = sum(weight for weight, _ in known)
    return sum(weight * value for weight, value in known) / total if total else float("nan")


def grouped(samples: Sequence[Sample], key: Callable[[Sample], str]) -> dict[str, np.ndarray]:
    """Places of the samples by a key, in order of appearance."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, sample in enumerate(samples):
        places[key(sample)].append(place)
    return {name: np.array(found) for name, found in places.items()}


def sibling_groups(samples: Sequence[Sample]) -> dict[str, np.ndarray]:
    """Places of the settings of one structure on one case."""
    return grouped(samples, lambda s: f"{s.task} {s.case} {s.structure}")


def by_task(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    places = sorted(grouped(samples, lambda s: s.task).items())
    return {task: [samples[int(place)] for place in found] for task, found in places}


def print_ranks(samples: Sequence[Sample]) -> None:
    """One line a task, with the constants as they are."""
    titles = ("task", "plans", "cases", "spearman", "in a case", "siblings", "factor off", "top kept")
    print("{:<14}{:>6}{:>6}{:>10}{:>11}{:>10}{:>12}{:>10}".format(*titles))
    for task, own in by_task(samples).items():
        one = figures(own, modeled_us(own))
        print(
            f"{task:<14}{one.rows:>6}{len({sample.case for sample in own}):>6}{one.pooled:>10.3f}{one.within:>11.3f}"
            f"{one.siblings:>10.3f}{one.factor:>12.2f}{one.kept:>10.0%}"
        )
