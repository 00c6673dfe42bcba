"""What the workbench needs of the judge, the population and the knowledge base; handed over by the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evo_kernel.types import Evaluation, Knobs, ScoredCandidate, Source
from evo_kernel.types.notes import Evidence, Note, Version, VersionOrder
from evo_kernel.types.promotion import GateVerdict
from operators.knowledge.base import KnowledgeBase


class WorkbenchJudge(Protocol):
    """The judge as an agent at work has it. Thread-safe. What is spent is charged to the run by whoever gives it."""

    @property
    def regress(self) -> float:
        """By how much the gate lets a case become slower than the version to beat: 0.05 is 5 %."""
        ...

    def evaluate(self, source: Source) -> Evaluation:
        """Check, tune and score. Raises InfraError when the machine failed beyond retries."""
        ...

    def probe(self, source: Source) -> Evaluation:
        """Record and check on small cases."""
        ...

    def profile(self, source: Source, case: str | None, knobs: Knobs = ()) -> str:
        """A text table of what each launch does with the GPU, under a setting of the knobs; the source's own where
        that is empty. Raises UserError with a source's fault."""
        ...

    def against_best(self, source: Source, evaluation: Evaluation) -> GateVerdict:
        """What the gate says by this evaluation alone: free, and no promise."""
        ...

    def gate(self, source: Source, evaluation: Evaluation) -> GateVerdict:
        """Whether the source may be committed; measures again before it says yes."""
        ...


class WorkbenchLineage(Protocol):
    """Every committed version. Thread-safe. Raises UserError for a version that does not exist."""

    def versions(self, limit: int, order: VersionOrder = "newest", of: int | None = None) -> Sequence[Version]:
        """`path`: from the first kernel to version `of` (the best one where it is None), oldest first."""
        ...

    def version(self, number: int) -> ScoredCandidate: ...

    def best(self) -> ScoredCandidate | None: ...


class Notebook(Protocol):
    """Notes that outlive an attempt and a restart. Thread-safe. Only founded notes come back."""

    def add(
        self, text: str, author: str, attempt: int | None, evidence: Sequence[Evidence], refutes: int | None = None
    ) -> int:
        """The note's number. With `refutes` the text says why that older note does not hold."""
        ...

    def notes(self, limit: int, query: str = "") -> Sequence[Note]:
        """The latest, newest first; with a query those that hold any of its words, most of them first."""
        ...

    def note(self, number: int) -> Note | None: ...


@dataclass(frozen=True)
class WorkbenchDeps:
    """What a workbench stands on. None leaves the tools out that need it (ablations)."""

    bench: WorkbenchJudge
    lineage: WorkbenchLineage | None = None
    knowledge: KnowledgeBase | None = None
    notebook: Notebook | None = None
