"""The program that runs alone because it has shared memory: its barriers, and its groups of warps in turn."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence

import torch

from evo_kernel.fitness.ir.lanes import Lanes, nothing
from evo_kernel.fitness.ir.memory import MemoryFault
from evo_kernel.fitness.ir.types import IRError, Type

MOST_GROUPS = 16
Steps = Generator[None, None, Sequence[Lanes]]
"""An execution in progress, which ends with results. It stops where another group of warps goes on."""


class PendingProduct(Lanes):
    """A product that may not be ready: undefined until it was waited for."""

    __slots__ = ("_make", "made")

    def __init__(self, type_: Type, make: Callable[[], Lanes]) -> None:
        empty = nothing(type_)
        super().__init__(type_, empty.data, undefined=empty.undefined)
        self._make, self.made = make, None

    def rows(self, index: torch.Tensor) -> PendingProduct:
        """The same, because its program runs alone."""
        return self

    def finish(self) -> Lanes:
        if self.made is None:
            self.made: Lanes | None = self._make()
        return self.made


class Barrier:
    """An mbarrier: a phase ends when `count` have arrived and all expected bytes too (PTX ISA, mbarrier)."""

    def __init__(self, count: int) -> None:
        self.count = self.missing = count
        self.bytes = 0  # expected and not arrived
        self.parity = 0  # of the phase that is under way
        self.copies: list[tuple[Callable[[], int], int]] = []  # on their way: what returns its bytes, when it is there
        self.latest = self.ended = 0  # of what arrived, and the phase before this one, see WarpGroup.latencies

    def arrive(self, count: int, when: int) -> None:
        if count > self.missing:
            raise MemoryFault("undefined", f"arrives {count} times at a barrier that waits for {self.missing}")
        self.missing -= count
        self._end_phase(when)

    def _end_phase(self, when: int) -> None:
        self.latest = max(self.latest, when)
        if self.missing == 0 and self.bytes == 0:
            self.missing, self.parity, self.ended = self.count, 1 - self.parity, self.latest

    def is_over(self, parity: int, draw: random.Random, arrives: bool) -> bool:
        """Whether the phase of this parity has ended; `arrives`: if what is on its way arrives now."""
        while arrives and self.parity == parity and self.copies:
            arrives_now, when = self.copies.pop(draw.randrange(len(self.copies)))
            self.bytes -= arrives_now()
            self._end_phase(when)
        return self.parity != parity


class WarpGroup:
    """What one group of warps has begun and not waited for."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.may_go_on: Callable[[bool], bool] = lambda arrives: True  # if what is on its way arrives
        self.copies = False  # it has begun copies into shared memory
        self.latencies = 0  # of memory that it has waited for copies, if nothing else took time
        self.products: deque[PendingProduct] = deque()
        self.begun: list[tuple[Callable[[], int], int]] = []  # copies by threads, as those of a barrier
        self._committed: deque[list[tuple[Callable[[], int], int]]] = deque()  # in groups
        self.stores: deque[Callable[[], Callable[[], None]]] = deque()  # each reads, and returns what then stores
        self._read: list[Callable[[], None]] = []  # stores without a certain order

    def finish(self) -> None:
        self.finish_products(0)
        self.commit_copies()
        self.finish_copies(0)
        self.finish_stores(0)

    def finish_products(self, left: int) -> None:
        while len(self.products) > left:
            self.products.popleft().finish()

    def commit_copies(self) -> None:
        self._committed.append(self.begun)
        self.begun = []

    def finish_copies(self, left: int) -> None:
        while len(self._committed) > left:
            for arrives, when in self._committed.popleft():
                arrives()
                self.latencies = max(self.latencies, when)

    def finish_stores(self, left: int, reads_only: bool = False) -> None:
        while len(self.stores) > left:
            self._read.append(self.stores.popleft()())
        while self._read and not reads_only:
            self._read.pop(self.draw.randrange(len(self._read)))()


class RunningProgram:
    """Barriers and groups of warps of the program that runs."""

    def __init__(self, program: int, seed: int) -> None:
        self.program = program
        self.programs: torch.Tensor | None = None  # as a frame has it
        self.draw = random.Random(seed * 1_000_003 + program)
        self.barriers: dict[int, Barrier] = {}  # by address of the barrier's element
        self.now = WarpGroup(self.draw)
        self._alive = [self.now]
        self._copies_first = self.draw.random() < 0.5  # what is on its way arrives when nobody can go on without

    def wait(self, ready: Callable[[bool], bool]) -> Generator[None, None, None]:
        """Let others run until something holds, perhaps only if what is on its way arrives."""
        own = self.now
        own.may_go_on = ready
        while not ready(not self._copies_first):
            if not ((yield from self._let_others()) or ready(True) or (yield from self._let_others(arrives=True))):
                raise MemoryFault("stuck", "waits for a barrier that nobody completes: it would hang", self.program)
        own.may_go_on = lambda arrives: True

    def pause(self) -> Generator[None, None, None]:
        """Let others run, or not: as it is drawn."""
        if len(self._alive) > 1 and (self._copies_first or self.draw.random() < 0.5):
            yield from self._let_others(only_copies=self._copies_first)

    def _let_others(self, arrives: bool = False, only_copies: bool = False) -> Generator[None, None, bool]:
        """Whether another group of warps can go on; then it has."""
        others = self._able(arrives)
        if only_copies:
            others = [one for one in others if one.copies]
        if others:
            self.now = self.draw.choice(others)
            yield
        return bool(others)

    def _able(self, arrives: bool) -> list[WarpGroup]:
        arrives = arrives or not self._copies_first
        return [one for one in self._alive if one is not self.now and one.may_go_on(arrives)]

    def beside(self, works: Sequence[Steps], own: Steps) -> Sequence[Lanes]:
        """Run works side by side with one of the caller's, whose results are returned when all have ended."""
        if len(self._alive) > 1 or len(works) > MOST_GROUPS:
            raise IRError("groups of warps within a group of warps, or too many of them")
        caller = self.now
        groups = {WarpGroup(self.draw): work for work in works}
        self._alive += groups
        steps: dict[WarpGroup, Steps] = {caller: self._with(own, groups.keys()), **groups}
        if self.draw.randrange(len(self._alive)):
            self.now = self.draw.choice(self._able(arrives=False))
        while True:
            group = self.now
            try:
                next(steps[group])
            except StopIteration as end:
                if group is caller:
                    return end.value
                group.finish()
                self._alive.remove(group)
                # If nobody can go on, the caller finds that.
                others = self._able(arrives=False) or self._able(arrives=True) or [caller]
                self.now = self.draw.choice(others)

    def _with(self, own: Steps, groups: Collection[WarpGroup]) -> Steps:
        """The caller's work, which ends when the others' has."""
        results = yield from own
        yield from self.wait(lambda arrives: not any(group in self._alive for group in groups))
        return results
