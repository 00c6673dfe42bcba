"""Who is a parent: small selectors over one island's archive, mixed by weight.

All are deterministic in the generator. To add one: write the function, name it in SELECTORS; its weight comes from the
settings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

import numpy as np

from populations.archive import Archive, Contender

CaseTimes = Callable[[int], Mapping[str, float]]
"""Log time (µs) of a candidate by search case."""


Selector = Callable[[Archive, CaseTimes, np.random.Generator], Contender]
"""Takes one contender of an archive that is not empty."""


def thompson(archive: Archive, cases: CaseTimes, rng: np.random.Generator) -> Contender:
    """Draw, for every contender, the log time that its next child may have; take the smallest.

    draw = N(mean, variance) − N(gain mean, gain sd of its cell), both posteriors as in archive.py. A cell that was
    tried little has a wide gain and is tried; one whose children never gain sinks to its elite's own time.
    """
    entries = list(archive.contenders())
    noise = rng.standard_normal((2, len(entries))).tolist()
    gains = {name: cell.gain_posterior() for name, cell in archive.cells.items()}

    def draw(index: int) -> float:
        name, _, contender = entries[index]
        mean, spread = gains[name]
        own = contender.mean + math.sqrt(contender.variance) * noise[0][index]
        return own - (mean + spread * noise[1][index])

    return entries[min(range(len(entries)), key=draw)][2]


def lexicase(archive: Archive, cases: CaseTimes, rng: np.random.Generator) -> Contender:
    """ε-lexicase over cases: cases in random order, each keeps who is within ε of the best on it.

    ε is the median absolute deviation of the log times of all contenders on that case (La Cava et al. 2016): keeps
    specialists that a mean over cases would lose. A contender without a time on a case does not survive it.
    """
    survivors = [contender for _, _, contender in archive.contenders()]
    times = {contender.candidate: cases(contender.candidate) for contender in survivors}
    names = sorted({name for found in times.values() for name in found})
    for index in rng.permutation(len(names)):
        name = names[index]
        known = [found[name] for found in times.values() if name in found]
        middle = statistics.median(known)
        epsilon = statistics.median([abs(value - middle) for value in known])
        scored = [(times[c.candidate][name], c) for c in survivors if name in times[c.candidate]]
        if scored:
            limit = min(value for value, _ in scored) + epsilon
            survivors = [contender for value, contender in scored if value <= limit]
        if len(survivors) == 1:
            break
    return survivors[int(rng.integers(len(survivors)))]


def uniform(archive: Archive, cases: CaseTimes, rng: np.random.Generator) -> Contender:
    """Any cell, then any contender in it: unlike kernels get equal chances, however slow."""
    names = list(archive.cells)
    contenders = archive.cells[names[int(rng.integers(len(names)))]].contenders
    return contenders[int(rng.integers(len(contenders)))]


SELECTORS: Mapping[str, Selector] = {"thompson": thompson, "lexicase": lexicase, "uniform": uniform}


class Mix:
    """Draws a selector by weight, then lets it draw."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        unknown = sorted(set(weights) - set(SELECTORS))
        if unknown:
            raise ValueError(f"no selector named {unknown[0]!r}: choose among {', '.join(sorted(SELECTORS))}")
        self._names = [name for name, weight in weights.items() if weight > 0]
        total = math.fsum(weights[name] for name in self._names)
        self._shares = [weights[name] / total for name in self._names]

    def select(self, archive: Archive, cases: CaseTimes, rng: np.random.Generator) -> tuple[Contender, str]:
        """(the contender, the name of the selector that chose it)."""
        point, index = float(rng.random()), 0
        while index + 1 < len(self._shares) and point >= self._shares[index]:
            point -= self._shares[index]
            index += 1
        name = self._names[index]
        return SELECTORS[name](archive, cases, rng), name
