"""One island's archive: cells of unlike kernels, each with its elite and a few contenders.

**Posterior of log time.** A contender's mean log time over the search cases (log µs) is normal. One evaluation tells
it with variance v = Σ sᵢ² / k² + DRIFT², where sᵢ = (log highᵢ − log lowᵢ) / (2 · 1.96) comes from case i's 95 %
interval and k counts cases; modeled times have v = 0. Two evaluations combine by precision: 1/v = 1/v₁ + 1/v₂,
mean = v · (m₁/v₁ + m₂/v₂). With v = 0 on either side, and where the knobs became others, the later one stands.

**Posterior of what a cell still has to give.** x = max(0, log(parent ÷ child)) of every child whose parent lies in
this cell (0 for a child that failed), forgotten at rate FORGET a child. With n, m, s² the discounted count, mean and
sum of squares about the mean, the mean gain is taken as normal with
mean (n·m + PRIOR_GAIN) / (n + 1) and variance (s² + PRIOR_SPREAD²) / (n + 1)²: wide while little was tried, and never
certain, because n stays below 1 / (1 − FORGET).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from copy import copy
from dataclasses import astuple, dataclass, field
from operator import attrgetter

from evo_kernel.types.evaluations import SURE_DEVIATIONS

FORGET = 0.97
PRIOR_GAIN = 0.05
PRIOR_SPREAD = 0.25


def combine(mean: float, variance: float, new_mean: float, new_variance: float) -> tuple[float, float]:
    """Posterior (mean, variance) of log time after one more evaluation; see the module's formula."""
    if variance <= 0.0 or new_variance <= 0.0:
        return new_mean, new_variance
    both = 1.0 / (1.0 / variance + 1.0 / new_variance)
    return both * (mean / variance + new_mean / new_variance), both


def surely_faster(one: Contender, other: Contender) -> bool:
    """Whether the posteriors say so with a probability of 95 %; without noise, whether it is."""
    spread = math.sqrt(one.variance + other.variance)
    return one.mean < other.mean - SURE_DEVIATIONS * spread


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
        if reigning is not None and fastest is not reigning and not surely_faster(fastest, reigning):
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
            if itself or known.same_kernel(newcomer):
                if itself and known.plan_key and newcomer.plan_key and known.plan_key != newcomer.plan_key:
                    # Tuned since, or tuned anew: the time of its earlier knobs is not the time of what it is now.
                    known.mean, known.variance = newcomer.mean, newcomer.variance
                    known.plan_key = newcomer.plan_key
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

    def contenders(self) -> Iterator[tuple[str, Cell, Contender]]:
        for name, cell in self.cells.items():
            for contender in cell.contenders:
                yield name, cell, contender

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
