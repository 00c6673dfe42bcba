"""How well modeled times rank what was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.calibration.samples import Sample
from evo_kernel.fitness.model import CONSTANTS, Constants, time_of
from evo_kernel.fitness.targets import H200

FEWEST = 8
"""Plans of one case below which its ranks say nothing."""


@dataclass(frozen=True)
class Figures:
    """Of one task."""

    rows: int
    pooled: float  # Spearman's rank correlation over all plans of the task
    within: float  # the same within each case, mean weighted by plans: what a choice among siblings needs
    factor: float  # median of max(modeled ÷ measured, measured ÷ modeled)
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
    within, kept = [], []
    for places in grouped(samples, lambda s: s.case).values():
        if len(places) < FEWEST:
            continue
        within.append((len(places), spearman(modeled[places], measured[places])))
        kept.append((len(places), kept_share(modeled[places], measured[places])))
    return Figures(
        rows=len(samples),
        pooled=spearman(modeled, measured),
        within=_weighted(within),
        factor=float(np.median(np.exp(np.abs(np.log(modeled / measured))))),
        kept=_weighted(kept),
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


def print_ranks(samples: Sequence[Sample]) -> None:
    """One line a task, with the constants as they are."""
    modeled = modeled_us(samples)
    print(f"{'task':<14}{'plans':>6}{'cases':>6}{'spearman':>10}{'within case':>13}{'factor off':>12}{'top kept':>10}")
    for task, places in sorted(grouped(samples, lambda s: s.task).items()):
        own = [samples[int(place)] for place in places]
        one = figures(own, modeled[places])
        cases = len({sample.case for sample in own})
        print(
            f"{task:<14}{one.rows:>6}{cases:>6}{one.pooled:>10.3f}{one.within:>13.3f}{one.factor:>12.2f}{one.kept:>10.0%}"
        )
