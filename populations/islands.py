"""Islands: archives that develop apart, and now and then send each other their best.

A search of fewer than `open_islands_after` judged candidates has one island: split, it would only search less in each.
When that many are judged, the others open: the first island's cells are dealt out among them, so that each begins with
different kinds of kernel. From then on, every `migrate_every` judged candidates, each island's best goes to the next
one in a ring.
"""

from __future__ import annotations

from copy import copy
from operator import attrgetter
from typing import NamedTuple

from populations.archive import Archive, Contender
from populations.settings import PopulationSettings


class Placement(NamedTuple):
    """A candidate became the elite of a cell on an island."""

    candidate: int
    island: int
    cell: str


class Islands:
    """Not thread-safe: the population's lock guards it. `settings` may change; islands that are open stay open."""

    def __init__(self, settings: PopulationSettings) -> None:
        self.settings = settings
        self.archives = [Archive(settings.contenders)]
        self.judged = 0

    def place(self, island: int, cell: str, contender: Contender, fresh: bool) -> tuple[Placement, ...]:
        """Offer a passed candidate to its island."""
        island = island if island < len(self.archives) else 0
        taken = self.archives[island].offer(cell, contender, fresh)
        return (Placement(contender.candidate, island, cell),) if taken else ()

    def tick(self) -> tuple[Placement, ...]:
        """One more candidate was judged: open islands or migrate when it is time."""
        self.judged += 1
        if len(self.archives) < self.settings.islands:
            return self._open() if self.judged >= self.settings.open_islands_after else ()
        if len(self.archives) > 1 and self.judged % self.settings.migrate_every == 0:
            return self._migrate()
        return ()

    def remove(self, candidate: int) -> None:
        for archive in self.archives:
            archive.remove(candidate)

    def best(self) -> Contender | None:
        found = [best for archive in self.archives if (best := archive.best()) is not None]
        return min(found, key=attrgetter("mean", "candidate"), default=None)

    def unsettled(self) -> Contender | None:
        """The least certain of those whom noise alone keeps from their place in a cell; see Cell.unsettled."""
        found = [one for archive in self.archives for cell in archive.cells.values() if (one := cell.unsettled())]
        return max(found, key=attrgetter("variance"), default=None)

    def elites(self) -> set[int]:
        return {cell.elite.candidate for archive in self.archives for cell in archive.cells.values()}

    def state(self) -> tuple[object, ...]:
        return (self.judged, tuple(archive.state() for archive in self.archives))

    def _open(self) -> tuple[Placement, ...]:
        first = self.archives[0]
        if not first.cells:
            return ()
        new = [Archive(self.settings.contenders) for _ in range(self.settings.islands - len(self.archives))]
        placements = []
        offset = len(self.archives)
        elites = sorted(first.cells.items(), key=lambda item: (item[1].elite.mean, item[1].elite.candidate))
        deals = max(len(elites), len(new))  # each new island gets at least one
        for deal in range(deals):
            cell, kept = elites[deal % len(elites)]
            island = deal % len(new)
            if new[island].offer(cell, copy(kept.elite), fresh=False):
                placements.append(Placement(kept.elite.candidate, offset + island, cell))
        self.archives.extend(new)
        return tuple(placements)

    def _migrate(self) -> tuple[Placement, ...]:
        travellers = []  # all leave before any arrives
        for island, archive in enumerate(self.archives):
            best = archive.best()
            if best is not None:
                cell = next(name for name, kept in archive.cells.items() if best in kept.contenders)
                travellers.append(((island + 1) % len(self.archives), cell, best))
        placements = []
        for island, cell, traveller in travellers:
            if self.archives[island].offer(cell, copy(traveller), fresh=False):
                placements.append(Placement(traveller.candidate, island, cell))
        return tuple(placements)
