"""Which parent an attempt starts from, and who its operator is shown beside it.

All are deterministic in the generator. To add one: write the function, name it in SELECTORS; its weight comes from the
settings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path

import numpy as np

from evo_kernel.errors import PopulationError
from populations.archive import Archive, Contender
from populations.candidate_cache import Library
from populations.search_state import Leaderboard, Lineage

CaseTimes = Callable[[int], Mapping[str, float]]
"""Log time (µs) of a candidate by search case."""


Selector = Callable[[Archive, CaseTimes, np.random.Generator], Contender]
"""Takes one contender of an archive that is not empty."""


def thompson(archive: Archive, cases: CaseTimes, rng: np.random.Generator) -> Contender:
    """Draw, for every contender, the log time that its next child may have; take the smallest.

    draw = N(mean, variance) − N(gain mean, gain sd of its cell), both posteriors as in archive.py. A cell that was
    tried little has a wide gain and is tried; one whose children never gain sinks to its elite's own time.
    """
    entries = archive.contenders()
    noise = rng.standard_normal((2, len(entries))).tolist()
    gains = {name: cell.gain_posterior() for name, cell in archive.cells.items()}

    def draw(index: int) -> float:
        name, contender = entries[index]
        mean, spread = gains[name]
        own = contender.mean + math.sqrt(contender.variance) * noise[0][index]
        return own - (mean + spread * noise[1][index])

    return entries[min(range(len(entries)), key=draw)][1]


def lexicase(archive: Archive, cases: CaseTimes, rng: np.random.Generator) -> Contender:
    """ε-lexicase over cases: cases in random order, each keeps who is within ε of the best on it.

    ε is the median absolute deviation of the log times of all contenders on that case (La Cava et al. 2016): keeps
    specialists that a mean over cases would lose. A contender without a time on a case does not survive it.
    """
    survivors = [contender for _, contender in archive.contenders()]
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


@dataclass(frozen=True)
class Choice:
    """What an attempt starts from."""

    parent: int
    island: int
    selector: str  # what chose the parent: of SELECTORS; "root" where nothing passed, "untried", "crossing", "asked"
    inspirations: tuple[int, ...]


class Chooser:
    """Chooses in one environment. Not thread-safe: the population's lock guards it."""

    def __init__(self, path: Path, lineage: Lineage, board: Leaderboard, library: Library, mix: Mix) -> None:
        self._path, self._lineage, self._board, self._library, self._mix = path, lineage, board, library, mix
        self.exhausted: set[int] = set()  # parents with nothing left to try: chosen beside other elites alone
        self._crossed: set[tuple[int, int]] = set()

    def choose(self, rng: np.random.Generator) -> Choice:
        """Raises PopulationError while nothing is planted.

        Where no contender is left with anything to try: other candidates that passed, fastest first, then elites side
        by side. Where those are exhausted too, as if none were.
        """
        archives = self._board.islands.archives
        settled = [island for island, archive in enumerate(archives) if archive.cells]
        if not settled:
            return self._root(rng)
        left = {island: archives[island].without(self.exhausted) for island in settled} if self.exhausted else {}
        able = [island for island in settled if not self.exhausted or left[island].cells]
        if not able and (beyond := self._beyond(rng)) is not None:
            return beyond
        island = (able or settled)[int(rng.integers(len(able or settled)))]
        archive = left[island] if able and self.exhausted else archives[island]
        contender, selector = self._mix.select(archive, self._library.case_times, rng)
        return self._choice(contender.candidate, island, selector, rng)

    def dry(self) -> bool:
        """Whether nothing is left that was not found exhausted in this session."""
        archives = self._board.islands.archives
        if not any(archive.cells for archive in archives):
            return bool(self._lineage.roots) and self.exhausted.issuperset(self._lineage.roots)
        if any(archive.without(self.exhausted).cells for archive in archives):
            return False
        return next(self._passed(), None) is None and next(self._pairs(), None) is None

    def _root(self, rng: np.random.Generator) -> Choice:
        """Nothing passed yet: mend or rewrite a seed."""
        roots = self._lineage.roots
        if not roots:
            raise PopulationError(f"{self._path} is empty: plant a root before asking for a brief.")
        able = [root for root in roots if root not in self.exhausted] or roots
        return self._choice(able[int(rng.integers(len(able)))], 0, "root", rng)

    def _beyond(self, rng: np.random.Generator) -> Choice | None:
        """What is left beside the archives' contenders."""
        if (passed := next(self._passed(), None)) is not None:
            return self._choice(passed, self._island(passed), "untried", rng)
        if (pair := next(self._pairs(), None)) is not None:
            self._crossed.add(pair)
            return Choice(pair[0], self._island(pair[0]), "crossing", (pair[1],))
        return None

    def _passed(self) -> Iterator[int]:
        """Candidates that passed and are not exhausted, fastest first."""
        return (candidate for candidate in self._board.leaders() if candidate not in self.exhausted)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """(elite, another) of all cells and islands that were not side by side yet, fastest first."""
        times = self._board.times
        elites = sorted(self._board.islands.elites(), key=lambda candidate: (times[candidate], candidate))
        return (pair for pair in permutations(elites, 2) if pair not in self._crossed)

    def _island(self, candidate: int) -> int:
        island = self._lineage.island[candidate]
        return island if island < len(self._board.islands.archives) else 0

    def _choice(self, parent: int, island: int, selector: str, rng: np.random.Generator) -> Choice:
        return Choice(parent, island, selector, inspirations(self._lineage, self._board, parent, island, rng))


def inspirations(
    lineage: Lineage, board: Leaderboard, parent: int, island: int, rng: np.random.Generator
) -> tuple[int, ...]:
    """At most three candidates other than the parent, each for its reason; fewer where there is none.

    Better: a faster contender of the parent's own cell. Other: the elite of another cell of the island. Failure: the
    parent's youngest child that failed here, else the latest failure anywhere; its evaluation says why.
    """
    archive = board.islands.archives[island]
    parent_time = board.times[parent] if parent < len(board.times) else float("inf")
    own = board.cell[parent] if parent < len(board.cell) else -1
    own_cell = board.cell_names[own] if own >= 0 else ""
    chosen: list[int] = []
    cell = archive.cells.get(own_cell)
    better = [c.candidate for c in cell.contenders if c.mean < parent_time] if cell else []
    others = [kept.elite.candidate for name, kept in archive.cells.items() if name != own_cell]
    for pool in (better, others):
        if pool:
            chosen.append(pool[int(rng.integers(len(pool)))])
    # A parent may have thousands of children, and only what is recent helps.
    youngest = [child for child in islice(lineage.children(parent), 8) if child < len(board.status)]
    failed = [child for child in youngest if board.status[child] and math.isnan(board.times[child])]
    chosen += failed[:1] or list(board.recent_failures)[-1:]
    return tuple(dict.fromkeys(candidate for candidate in chosen if candidate != parent))
