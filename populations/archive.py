"""Archives of an island's cells, each with its elite and a few contenders; the islands; their settings.

**Posterior of log time.** A contender's mean log time over the search cases (log µs) is normal. One evaluation tells
it with variance v = Σ sᵢ² / k² + DRIFT², where sᵢ = (log highᵢ − log lowᵢ) / (2 · 1.96) comes from case i's 95 %
interval and k counts cases; modeled times have v = 0. Two evaluations combine by precision: 1/v = 1/v₁ + 1/v₂,
mean = v · (m₁/v₁ + m₂/v₂). With v = 0 on either side, and where the knobs became others, the later one stands.

**Posterior of what a cell still has to give.** x = max(0, log(parent ÷ child)) of every child whose parent lies in
this cell (0 for a child that failed), forgotten at rate FORGET a child. With n, m, s² the discounted count, mean and
sum of squares about the mean, the mean gain is taken as normal with
mean (n·m + PRIOR_GAIN) / (n + 1) and variance (s² + PRIOR_SPREAD²) / (n + 1)²: wide while little was tried, and never
certain, because n stays below 1 / (1 − FORGET).

**Islands.** A search of fewer than `open_islands_after` judged candidates has one island: split, it would only search
less in each. When that many are judged, the others open: the first island's cells are dealt out among them, so that
each begins with different kinds of kernel. From then on, every `migrate_every` judged candidates, each island's best
goes to the next one in a ring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from copy import copy
from dataclasses import asdict, astuple, dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from evo_kernel.types.evaluations import SURE_DEVIATIONS


@dataclass(frozen=True)
class PopulationSettings:
    """Stored with every session, so that replay rebuilds each session by the settings that it ran under."""

    islands: int = 3
    open_islands_after: int = 500  # judged candidates in an environment; before that there is one island
    migrate_every: int = 50  # judged candidates
    contenders: int = 4  # kept in a cell beside its elite, the elite included
    selectors: Mapping[str, float] = field(
        default_factory=lambda: {"thompson": 0.5, "lexicase": 0.3, "uniform": 0.2}
    )  # weights of the mix

    def __post_init__(self) -> None:
        for name in ("islands", "migrate_every", "contenders"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.selectors or min(self.selectors.values()) < 0 or sum(self.selectors.values()) <= 0:
            raise ValueError("selectors needs weights that are not negative and not all zero")

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "selectors": dict(self.selectors)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> PopulationSettings:
        """Of a session that an older or newer version wrote: names that are not known any more are left out."""
        known = PopulationSettings.__dataclass_fields__
        return PopulationSettings(**{name: value for name, value in data.items() if name in known})


FORGET = 0.97
PRIOR_GAIN = 0.05
PRIOR_SPREAD = 0.25


def combine(mean: float, variance: float, new_mean: float, new_variance: float) -> tuple[float, float]:
    """Posterior (mean, variance) of log time after one more evaluation; see the module's formula."""
    if variance <= 0.0 or new_variance <= 0.0:
        return new_mean, new_variance
    both = 1.0 / (1.0 / variance + 1.0 / new_variance)
    return both * (mean / variance + new_mean / new_variance), both


@dataclass(slots=True, eq=False)
class Contender:
    """A candidate in a cell, with the posterior of its log time. `source`: its row; `plan_key`: "" where none ran."""

    candidate: int
    source: int
    plan_key: str
    mean: float
    variance: float

    def same_kernel(self, other: Contender) -> bool:
        return self.source == other.source or (self.plan_key == other.plan_key and self.plan_key != "")


@dataclass(slots=True, eq=False)
class Cell:
    """Contenders of one kind of kernel, fastest first: the first is the elite."""

    contenders: list[Contender] = field(default_factory=list)
    gain_count: float = 0.0
    gain_mean: float = 0.0
    gain_squares: float = 0.0

    @property
    def elite(self) -> Contender:
        return self.contenders[0]

    def order(self, reigning: Contender | None) -> None:
        """Fastest first, but an elite is replaced only by one that is surely faster: the best of a hundred equal
        kernels looks faster than the others, and is not."""
        self.contenders.sort(key=attrgetter("mean"))  # stable: of equals the elder stays first
        fastest = self.contenders[0]
        if reigning is None or fastest is reigning:
            return
        spread = math.sqrt(fastest.variance + reigning.variance)  # sure: the posteriors say so with 95 %
        if fastest.mean >= reigning.mean - SURE_DEVIATIONS * spread:
            self.contenders.remove(reigning)
            self.contenders.insert(0, reigning)

    def unsettled(self) -> Contender | None:
        """Who is to be measured again: the less certain of the elite and of one that looks faster, but not surely."""
        elite, *others = self.contenders
        rival = min((one for one in others if one.mean < elite.mean), key=attrgetter("mean"), default=None)
        return None if rival is None else max(elite, rival, key=lambda one: one.variance)

    def tried(self, gain: float) -> None:
        """A child of this cell was judged: `gain` is max(0, log(parent ÷ child)), 0 for one that failed."""
        self.gain_count = FORGET * self.gain_count + 1.0
        delta = gain - self.gain_mean
        self.gain_mean += delta / self.gain_count
        self.gain_squares = FORGET * self.gain_squares + delta * (gain - self.gain_mean)

    def gain_posterior(self) -> tuple[float, float]:
        """(mean, standard deviation) of the log gain that one more try brings."""
        weight = self.gain_count + 1.0
        mean = (self.gain_count * self.gain_mean + PRIOR_GAIN) / weight
        return mean, math.sqrt(self.gain_squares + PRIOR_SPREAD * PRIOR_SPREAD) / weight


class Archive:
    """Cells by the name of their kind (PlanFeatures.cell, joined). Not thread-safe: the population's lock guards it."""

    def __init__(self, contenders: int) -> None:
        self.cells: dict[str, Cell] = {}
        self._size = contenders

    def offer(self, cell: str, newcomer: Contender, fresh: bool) -> bool:
        """Take in a passed evaluation; True when this made its candidate the elite of its cell.

        `fresh`: something was measured anew; otherwise the numbers were reused and say nothing twice.
        """
        kept = self.cells.setdefault(cell, Cell())
        contenders = kept.contenders
        reigning = contenders[0] if contenders else None
        for known in contenders:
            itself = known.candidate == newcomer.candidate
            if not itself and not known.same_kernel(newcomer):
                continue
            if itself and known.plan_key and newcomer.plan_key and known.plan_key != newcomer.plan_key:
                # Tuned since, or tuned anew: the time of its earlier knobs is not the time of what it is now.
                known.mean, known.variance, known.plan_key = newcomer.mean, newcomer.variance, newcomer.plan_key
            elif not fresh:
                return False
            else:
                known.mean, known.variance = combine(known.mean, known.variance, newcomer.mean, newcomer.variance)
            kept.order(reigning)
            return contenders[0] is known and known is not reigning
        if len(contenders) >= self._size and newcomer.mean >= contenders[-1].mean:
            return False
        contenders.append(newcomer)
        kept.order(reigning)
        del contenders[self._size :]
        return contenders[0] is newcomer

    def remove(self, candidate: int) -> None:
        """A candidate turned out wrong or unconfirmed: it is no parent any more."""
        for name, cell in list(self.cells.items()):
            cell.contenders = [contender for contender in cell.contenders if contender.candidate != candidate]
            if not cell.contenders:
                del self.cells[name]

    def contenders(self) -> list[tuple[str, Contender]]:
        """With the names of their cells."""
        return [(name, contender) for name, cell in self.cells.items() for contender in cell.contenders]

    def best(self) -> Contender | None:
        return min((cell.elite for cell in self.cells.values()), key=attrgetter("mean", "candidate"), default=None)

    def without(self, candidates: Set[int]) -> Archive:
        """A view of what is left when some contenders are passed over; for selectors, not to be changed."""
        view = Archive(self._size)
        for name, cell in self.cells.items():
            left = [contender for contender in cell.contenders if contender.candidate not in candidates]
            if left:
                view.cells[name] = copy(cell)
                view.cells[name].contenders = left
        return view

    def state(self) -> tuple[object, ...]:
        return tuple((name, astuple(self.cells[name])) for name in sorted(self.cells))


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
