"""Coders: who carries a strategy out. `RewriteCoder` does it by source transformations, with no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Protocol, runtime_checkable

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Call, Probe, Source, Step, Strategy, TaskCard
from operators.micro.module import KernelModule, SourceError
from operators.micro.rewrites import REWRITES, Rewrite, RewriteFailed

PARSED = 512  # sources kept parsed: parents return, and a few kilobytes each is cheap


@dataclass(frozen=True)
class Job:
    """One strategy to carry out, and what a coder may need for it.

    `source`: as it stands after the steps so far; the parent, its evidence and its relatives are in the brief.
    `rng`: for coders that draw; the attempt's own.
    """

    source: Source
    strategy: Strategy
    brief: Brief
    probe: Probe
    rng: np.random.Generator = field(repr=False, compare=False)


@dataclass(frozen=True)
class Coded:
    text: str
    steps: tuple[Step, ...] = ()
    calls: tuple[Call, ...] = ()
    probes: int = 0


@runtime_checkable
class Coder(Protocol):
    """Micro coding. Thread-safe.

    `free`: whether it can carry out strategies that it did not offer, described in words (`catalogue.described`).
    `tries`: how often one strategy is worth trying on one parent; 1 where the result is always the same.
    """

    free: bool
    tries: int

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        """Every strategy, with its region, that it could carry out on this source; empty when there is none."""
        ...

    def carry_out(self, job: Job) -> Coded:
        """The text with the strategy carried out. Raises OperatorFailed with the reason, and with what it cost."""
        ...


class RewriteCoder:
    """The offline rewriter as a coder: what no rewrite's preconditions allow is not offered."""

    free, tries = False, 1

    def __init__(self, rewrites: Mapping[str, Rewrite] = REWRITES, parsed: int = PARSED) -> None:
        """`parsed`: sources that are kept with their offers: a good parent is asked about again and again."""
        self._rewrites = rewrites
        self._known = lru_cache(maxsize=parsed)(_parsed)

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        module, offers = self._known(source)
        if isinstance(module, SourceError):
            return ()
        if task.name not in offers:
            every = (rewrite.offers(module, task) for rewrite in self._rewrites.values())
            offers[task.name] = tuple(chain.from_iterable(every))
        return offers[task.name]

    def carry_out(self, job: Job) -> Coded:
        return Coded(self.implement(job.source, job.strategy, job.brief.task, job.rng))

    def implement(self, source: Source, strategy: Strategy, task: TaskCard, rng: np.random.Generator) -> str:
        """The text with the strategy carried out; rewriting is deterministic. Raises OperatorFailed."""
        del task, rng
        rewrite = self._rewrites.get(strategy.name)
        if rewrite is None:
            raise OperatorFailed(f"no rewrite is called {strategy.name!r}; there are {', '.join(self._rewrites)}")
        module, _ = self._known(source)
        if isinstance(module, SourceError):
            raise OperatorFailed(str(module))
        try:
            text = rewrite.apply(module, strategy)
        except (RewriteFailed, SourceError) as failure:
            raise OperatorFailed(f"{strategy.key}: {failure}") from failure
        if text == source.text:
            raise OperatorFailed(f"{strategy.key} left the source as it was")
        return text


def _parsed(source: Source) -> tuple[KernelModule | SourceError, dict[str, tuple[Strategy, ...]]]:
    """The parsed source, or why it is none, and its offers by task, none yet."""
    if source.language != "triton":
        return SourceError(f"the rewriter reads triton sources, not {source.language}"), {}
    try:
        return KernelModule.parse(source.text), {}
    except SourceError as error:
        return error, {}
