"""Protocols between packages: Operator, Judge, Population, TurnStore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from evo_kernel.deadline import Deadline
from evo_kernel.types.attempts import Brief, Call, Credit, Proposal, Recorded, ScoredCandidate
from evo_kernel.types.evaluations import Environment, Evaluation, Purpose
from evo_kernel.types.kernels import Source

Probe = Callable[[Source], Evaluation]
"""Cheap evaluation for an operator at work: record + check on small cases, purpose PROBE."""


@runtime_checkable
class Operator(Protocol):
    """A variation operator. Thread-safe: `propose` runs in `width` threads at once."""

    name: str

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        """Think and edit. Raises OperatorFailed (and nothing else on purpose)."""
        ...

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        """Whether the plan shows that the claimed strategy really happened."""
        ...

    def learn(self, credit: Credit) -> None:
        """Take in what came of an earlier proposal. Called in the order of `tell`, and again by replay on resume."""
        ...


@runtime_checkable
class Resumes(Protocol):
    """An operator whose attempts outlive a session."""

    def holds(self, brief: Brief) -> bool:
        """Whether it has begun this attempt, and can go on with it."""
        ...


class Judge(Protocol):
    """Scores sources of one task. Thread-safe."""

    environment: Environment

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        """Never raises for a broken kernel; raises InfraError when the machine failed beyond retries.

        `remeasure`: measure again, closely, what may be known already; the knobs are taken as they are.
        `against`: the champion that a confirmation is to be timed beside, its knobs written in. The evaluation tells
        what was found; whether its kernel stands is for who promotes it: types/promotion.py.
        `effort`: knob settings to try, in multiples of what is usual.
        `deadline`: tuning ends with what it has by then; raises CutShort where there is no verdict in time.
        """
        ...

    def close(self) -> None: ...


class Population(Protocol):
    """Memory of the search: the lineage. Thread-safe."""

    @property
    def task_identity(self) -> str: ...

    def ask(self) -> Brief: ...

    def record(self, brief: Brief, proposal: Proposal) -> Recorded: ...

    def tell(self, recorded: Recorded, evaluation: Evaluation, witnessed: bool = False) -> Sequence[Credit]: ...

    def fail(
        self, brief: Brief, operator: str, reason: str, proposal: Proposal | None = None, exhausted: bool = False
    ) -> None:
        """An attempt that ended without a candidate, with what it cost.

        `exhausted`: the brief's parent has nothing left to try; it is not chosen again in this session, but beside
        other elites. An attempt that left nothing leaves no row: a stretch of them is one event.
        """
        ...

    def pending(self) -> Sequence[Recorded]:
        """Candidates without a verdict in this environment, oldest first: judged before anything new."""
        ...

    def untuned(self) -> Sequence[Recorded]:
        """Roots that were measured once, as they are: a session may have ended before it tuned them."""
        ...

    def credits(self) -> Iterable[Credit]:
        """The latest credits (thousands), in the order of `tell`: how operators are rebuilt on resume."""
        ...

    def best(self) -> ScoredCandidate | None:
        """The fastest candidate in this environment that no confirmation refuted."""
        ...

    def champion(self) -> ScoredCandidate | None:
        """The fastest confirmed candidate in this environment."""
        ...

    def relative(self, candidate: int) -> ScoredCandidate:
        """Any candidate, as it was scored in this environment."""
        ...

    def recorded(self, candidate: int) -> Recorded:
        """The ticket of a candidate that is already durable: how a champion is told its confirmation."""
        ...

    def dry(self) -> bool:
        """Whether every parent is exhausted, by itself and beside every elite."""
        ...

    def elites(self) -> Sequence[Recorded]:
        """The fastest candidate of every cell, fastest first."""
        ...

    def confirmation_due(self) -> bool:
        """Whether a session ended before it could confirm what it had found."""
        ...

    def note_confirmation(self, due: bool) -> None:
        """It is due from now on; or it was made."""
        ...

    def confirmation_s(self) -> float | None:
        """What a confirmation took at most in this environment; None where there was none."""
        ...

    def unsettled(self) -> Recorded | None:
        """The ticket of a candidate that should be measured again: noise leaves open whether it leads its cell."""
        ...


class TurnStore(Protocol):
    """Where turns and memories of agents are kept: with them an attempt survives a kill.

    Durable before `append` and `remember` return. Thread-safe. Data is plain JSON.

    `keeps_calls`: whether calls of appended turns are booked by it, so that they need not come home with a proposal's
    messages in memory.
    """

    keeps_calls: bool

    def append(
        self,
        attempt: int,
        kind: str,
        data: Mapping[str, Any],
        calls: Sequence[Call] = (),
        charged: Mapping[str, int] | None = None,
        gpu_s: float = 0.0,
    ) -> None:
        """The next turn of an attempt, with what was spent since the one before."""
        ...

    def turns(self, attempt: int) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """(kind, data) in their order."""
        ...

    def remember(self, attempt: int, kind: str, data: Mapping[str, Any]) -> None:
        """One memory of a kind an attempt: a second one is passed over."""
        ...

    def memories(self, limit: int) -> Sequence[tuple[int, str, Mapping[str, Any], float]]:
        """(attempt, kind, data, Unix time) of the latest, oldest first."""
        ...
