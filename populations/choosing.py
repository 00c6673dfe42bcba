"""Which parent an attempt starts from, and who its operator is shown beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evo_kernel.errors import PopulationError
from populations.inspiring import inspirations
from populations.library import Library
from populations.selection import Mix
from populations.state import Board, Lineage

TRY_AGAIN = 0.05
"""Share of selections that pass over no exhausted parent: what other lineages found since may be new to it."""


@dataclass(frozen=True)
class Choice:
    """What an attempt starts from."""

    parent: int
    island: int
    selector: str  # what chose the parent; "root" while nothing has passed
    inspirations: tuple[int, ...]


class Chooser:
    """Chooses in one environment. Not thread-safe: the population's lock guards it."""

    def __init__(self, path: Path, lineage: Lineage, board: Board, library: Library, mix: Mix) -> None:
        self._path, self._lineage, self._board, self._library, self._mix = path, lineage, board, library, mix
        self._exhausted: set[int] = set()  # parents with nothing left to try; a later session may try more

    def exhaust(self, parent: int) -> None:
        """A parent has nothing left to try: it is seldom chosen again in this session."""
        self._exhausted.add(parent)

    def choose(self, rng: np.random.Generator) -> Choice:
        """Raises PopulationError while nothing is planted."""
        archives = self._board.islands.archives
        settled = [island for island, archive in enumerate(archives) if archive.cells] or [0]
        island = settled[int(rng.integers(len(settled)))]
        parent, selector = self._parent(island, rng)
        return Choice(parent, island, selector, inspirations(self._lineage, self._board, parent, island, rng))

    def _parent(self, island: int, rng: np.random.Generator) -> tuple[int, str]:
        archive = self._board.islands.archives[island]
        if self._exhausted and rng.random() >= TRY_AGAIN:
            left = archive.without(self._exhausted)
            archive = left if left.cells else archive
        if archive.cells:
            contender, selector = self._mix.select(archive, self._library.case_times, rng)
            return contender.candidate, selector
        roots = self._lineage.roots  # nothing passed yet: mend or rewrite a seed
        if not roots:
            raise PopulationError(f"{self._path} is empty: plant a first kernel before asking for a brief.")
        return roots[int(rng.integers(len(roots)))], "root"
