"""What the workbench needs of the judge, the population and the knowledge base; handed over by the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from evo_kernel.types import Evaluation, Gain, Knobs, ScoredCandidate, Source


@dataclass(frozen=True)
class GateVerdict:
    """What the commit gate says. `reason`: a sentence an agent can act on, never of hidden cases."""

    passed: bool
    reason: str
    gain: Gain | None = None  # over the version to beat; None where there is none, or nothing was timed
    charged: Mapping[str, int] = field(default_factory=dict)  # evaluations by purpose that deciding has cost
    gpu_s: float = 0.0


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


@dataclass(frozen=True)
class Version:
    """A committed version in a list."""

    number: int  # candidate
    parent: int | None
    operator: str
    strategy: str  # "" where none is claimed
    status: str  # "" until it is judged
    score: float | None
    log_gain: float | None  # log(parent ÷ this); None where one of the two has no time


Order = Literal["newest", "best", "path"]


class WorkbenchLineage(Protocol):
    """Every committed version. Thread-safe. Raises UserError for a version that does not exist."""

    def versions(self, limit: int, order: Order = "newest", of: int | None = None) -> Sequence[Version]:
        """`path`: from the first kernel to version `of` (the best one where it is None), oldest first."""
        ...

    def version(self, number: int) -> ScoredCandidate: ...

    def best(self) -> ScoredCandidate | None: ...


class KnowledgePassage(Protocol):
    """A piece of knowledge and where it is from."""

    @property
    def source(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


class KnowledgeSource(Protocol):
    """What can be looked up. Thread-safe."""

    def search(self, query: str, k: int = 4, budget_tokens: int = 2000) -> Sequence[KnowledgePassage]: ...


@dataclass(frozen=True)
class Evidence:
    """What a note rests on: an evaluation of this attempt (`E12.3`) or of a version (`C17`), as it was found."""

    evaluation: str
    samples: int  # the fewest of any case; 0 where times are modeled, or nothing was timed
    status: str
    score: float | None = None


@dataclass(frozen=True)
class Note:
    """What an agent wants later ones to know. `refuted`: why it no longer stands; empty while it does."""

    number: int
    text: str
    author: str
    attempt: int | None
    evidence: tuple[Evidence, ...]
    refuted: str = ""


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
    knowledge: KnowledgeSource | None = None
    notebook: Notebook | None = None
