"""Coders, which carry strategies out, and an attempt's walk of steps, each kept or rolled back.

`RewriteCoder` carries strategies out by source transformations, with no model.

Each thing tried leaves a Decision and a Step of that name, in the same order; a coder's own steps stand before it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Call, Decision, Probe, Proposal, ScoredCandidate, Source, Step, Strategy, TaskCard
from operators.micro.host_code import fused_through
from operators.micro.module import KernelModule, SourceError
from operators.micro.rewrites import REWRITES, Rewrite, RewriteFailed
from operators.micro.rewrites.base import kernels_of

PARSED = 512  # sources whose offers are kept


@dataclass(frozen=True)
class Job:
    """One strategy to carry out, and what a coder may need for it.

    `source`: as it stands after the steps so far; the parent, its evidence and its relatives are in the brief.
    """

    source: Source
    strategy: Strategy
    brief: Brief
    probe: Probe


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

    def __init__(self, rewrites: Mapping[str, Rewrite] = REWRITES) -> None:
        self._rewrites = rewrites
        self._known = lru_cache(maxsize=PARSED)(_parsed)

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        module, offers = self._known(source)
        if isinstance(module, SourceError):
            return ()
        if task.name not in offers:
            every = (rewrite.offers(module, task) for rewrite in self._rewrites.values())
            offers[task.name] = tuple(chain.from_iterable(every))
        return offers[task.name]

    def why_nothing(self, source: Source, task: TaskCard) -> str:
        """Where nothing is offered: what was looked for, and what would help. Empty where something is."""
        module, _ = self._known(source)
        if isinstance(module, SourceError):
            return f"the rewriter cannot read it: {module}"
        if self.offer(source, task):
            return ""
        kernels, launches = ", ".join(module.kernels), module.reached
        if not kernels:
            return (
                "the rewriter found no `@triton.jit` function in it. It reads no module that the file imports: copy "
                "the kernel and the function that launches it into the file"
            )
        if not launches:
            return (
                f"the rewriter found no launch `kernel[grid](...)` of {kernels} in `run`, nor in what it calls: launch "
                "the kernel by its name there"
            )
        return (
            f"no rewrite fits {kernels} ({len(launches)} launches). A language model (--model) or another first kernel "
            "(--seed) would help"
        )

    def carry_out(self, job: Job) -> Coded:
        return Coded(self.implement(job.source, job.strategy))

    def implement(self, source: Source, strategy: Strategy) -> str:
        """The text with the strategy carried out; rewriting is deterministic. Raises OperatorFailed."""
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


KEPT, ROLLED_BACK = "kept", "rolled back"


class StepWalk:
    """From the parent's source, step by step. One attempt, one thread."""

    def __init__(self, brief: Brief, coder: Coder, probe: Probe) -> None:
        self.source: Source = brief.parent.source
        self.kept: list[Strategy] = []
        self._brief, self._coder, self._probe = brief, coder, probe
        self._decisions: list[Decision] = []
        self._steps: list[Step] = []
        self._outcomes: list[str] = []  # one a decision
        self._calls: list[Call] = []
        self._probes = 0
        self._failed: set[str] = set()  # keys that failed on the source as it stands
        self._known = brief.known_sources
        self._started = time.monotonic()

    def offers(self) -> tuple[Strategy, ...]:
        """What may be tried on the source as it stands, without what already failed on it."""
        offered = self._coder.offer(self.source, self._brief.task)
        idle = set() if self.kept else _idle(self._brief.parent)
        return tuple(s for s in offered if s.key not in self._failed and not idle.intersection(kernels_of(s)))

    def take(self, decision: Decision, passing: bool = False) -> bool:
        """Carry out what was chosen. False when it was rolled back. `passing`: it may lead to a known candidate."""
        started = time.monotonic()
        self._calls.extend(decision.calls)
        strategy = decision.offered[decision.chosen]
        paid = len(self._calls)
        source, reason = self._carry_out(strategy, passing)
        free = len(self._calls) == paid  # what a model was paid for is judged
        if source is not None and free and strategy.family != "fusion" and (lost := self._lost_fusions(source)):
            source, reason = None, f"it rules out a fusion that was not tried, through {', '.join(lost)}"
        if source is None:
            self._failed.add(strategy.key)
        else:
            self.source = source
            self.kept.append(strategy)
            self._failed.clear()
        outcome = ROLLED_BACK if source is None else KEPT
        self._note(decision, Step(strategy.key, outcome, reason, time.monotonic() - started))
        return source is not None

    def trail(self) -> tuple[tuple[Strategy, str], ...]:
        """(strategy, outcome) of what this walk has tried so far, oldest first."""
        chosen = [decision.offered[decision.chosen] for decision in self._decisions]
        return tuple(zip(chosen, self._outcomes, strict=True))

    def stop(self, decision: Decision) -> None:
        """Write down that the policy chose to end here."""
        self._calls.extend(decision.calls)
        self._note(decision, Step(decision.offered[decision.chosen].key, KEPT))

    def proposal(self, operator: str, parents: Iterable[tuple[str, int]] = ()) -> Proposal:
        """What was kept, claimed by its first strategy; there must be one."""
        spent = {"probes": self._probes, "wall_s": time.monotonic() - self._started}
        return Proposal(self.source, operator, self.kept[0], tuple(parents), **self._left(), **spent)

    def failure(self, operator: str, reason: str) -> OperatorFailed:
        """The exception to raise when nothing was kept, with what it cost."""
        return OperatorFailed(reason, operator=operator, **self._left())

    def _left(self) -> dict[str, Any]:
        """What the walk leaves behind."""
        return {"decisions": tuple(self._decisions), "steps": tuple(self._steps), "calls": tuple(self._calls)}

    def _note(self, decision: Decision, step: Step) -> None:
        self._decisions.append(dataclasses.replace(decision, calls=()))
        self._steps.append(step)
        self._outcomes.append(f"{step.outcome}: {step.detail}" if step.detail else step.outcome)

    def _lost_fusions(self, source: Source) -> list[str]:
        """Buffers that could be fused away in the source as it stands, were not on the parent, and cannot in `source`.

        Many changes of a kernel make its fusion impossible, and most gain less.
        """
        tried = {entry.strategy.key for entry in self._brief.tried}

        def buffers(one: Source) -> set[str]:
            fusions = (
                s for s in self._coder.offer(one, self._brief.task) if s.family == "fusion" and s.key not in tried
            )
            return {through for s in fusions if (through := fused_through(s))}

        before = buffers(self.source)
        return sorted(before - buffers(source)) if before else []

    def _carry_out(self, strategy: Strategy, passing: bool) -> tuple[Source | None, str]:
        """The new source, or None and the reason."""
        try:
            coded = self._coder.carry_out(Job(self.source, strategy, self._brief, self._probe))
        except OperatorFailed as failure:
            self._steps.extend(failure.steps)
            self._calls.extend(failure.calls)
            return None, failure.reason
        self._steps.extend(coded.steps)
        self._calls.extend(coded.calls)
        self._probes += coded.probes
        source = Source(coded.text, self.source.language)
        if source.sha256 in self._known and not passing:
            return None, f"that is candidate {self._known[source.sha256]} again"
        return source, ""


def _idle(parent: ScoredCandidate) -> set[str]:
    """Kernels of the parent that no timed case launched, such as one for longer rows: a change there shows nowhere.

    Nothing where no case was timed, or where a name is not the one in the source: then all may run.
    """
    measured = parent.evaluation.measurements if parent.evaluation else ()
    ran = {kernel.name for m in measured if m.features for kernel in m.features.kernels}
    try:
        launched = {launch.kernel for launch in KernelModule.parse(parent.source.text).launches}
    except SourceError:
        return set()
    return launched - ran if ran and ran <= launched else set()
