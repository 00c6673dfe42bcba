"""What a tool is, how its arguments are checked, what a call leaves behind; what tools need of judge and population."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from evo_kernel.types import Evaluation, Knobs, ScoredCandidate, Source
from evo_kernel.types.notes import Evidence, Note, Version, VersionOrder
from evo_kernel.types.promotion import GateVerdict
from operators.knowledge.base import KnowledgeBase
from operators.llm.structured import problem

MAX_OUTPUT = 16_000
"""Characters that one answer of a tool holds at most."""
MAX_ARGUMENTS = 1_000_000  # characters of the JSON text
LARGEST = 2**53  # of whole numbers


class ToolFailed(Exception):
    """A call that could not be carried out. The message says what was wrong and what to do instead."""


@dataclass(frozen=True)
class Submission:
    """A source that passed the gate, and what its author says of it."""

    text: str
    language: str
    idea: str
    strategy: str
    family: str
    parents: tuple[int, ...] = ()  # versions whose ideas are in it, beside the brief's parent


@dataclass(frozen=True)
class ToolResult:
    """What a tool's function gives back: the text, and what is to be remembered of it."""

    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # plain JSON
    charged: Mapping[str, int] = field(default_factory=dict)  # evaluations by purpose
    gpu_s: float = 0.0
    submission: Submission | None = None


@dataclass(frozen=True)
class WorkTool:
    """A tool. `run` takes arguments that fit the schema, and returns within seconds unless it says `slow`."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema of an object
    run: Callable[[Mapping[str, Any]], ToolResult]
    slow: bool = False  # waits for the judge


def schema(required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": {name: dict(one) for name, one in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }


def checked(name: str, parameters: Mapping[str, Any], arguments: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a tool of that name as data that fits its schema. Raises ToolFailed."""
    given: Any = arguments
    if isinstance(arguments, str):
        if len(arguments) > MAX_ARGUMENTS:
            raise ToolFailed(f"the arguments of {name} are longer than {MAX_ARGUMENTS} characters; send less")
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolFailed(f"the arguments of {name} are no JSON ({error}); {_usage(parameters)}") from None
    if not isinstance(given, Mapping):
        raise ToolFailed(f"the arguments of {name} must be one JSON object; {_usage(parameters)}")
    given = {key: _plain(value) for key, value in given.items() if value is not None}
    unknown = sorted(map(str, given.keys() - parameters["properties"].keys()))
    if unknown:
        said = ", ".join(one[:60] for one in map(repr, unknown[:8]))
        raise ToolFailed(f"{name} takes no {said}; {_usage(parameters)}")
    if wrong := problem(given, parameters):
        raise ToolFailed(f"the arguments of {name} do not fit: {wrong}; {_usage(parameters)}")
    return given


def _plain(value: Any) -> Any:
    """JSON that can be stored and counted with: whole numbers as such, of a size that fits, and text that is text.

    Raises ToolFailed. A schema lets 1.0 through as an integer, numbers of any size, and half of a surrogate pair.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ToolFailed("a text holds half of a surrogate pair (\\ud800 to \\udfff), which is no text") from None
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ToolFailed("a number is too large for anything here; write a smaller one")
    return value


def _usage(parameters: Mapping[str, Any]) -> str:
    """How to call it, in a line."""
    needed = set(parameters["required"])
    parts = [
        f"{name}: {_kind(one)}" + ("" if name in needed else " (optional)")
        for name, one in parameters["properties"].items()
    ]
    return f"it takes {{{', '.join(parts)}}}" if parts else "it takes no arguments: {}"


def _kind(one: Mapping[str, Any]) -> str:
    if "enum" in one:
        return "|".join(map(str, one["enum"]))
    kind = one.get("type", "value")
    for least, most, unit in (
        ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " items"), ("minimum", "maximum", ""),
    ):  # fmt: skip
        if least in one and most in one:
            return f"{kind} of {one[least]} to {one[most]}{unit}"
        if least in one or most in one:
            return f"{kind} of at {'least' if least in one else 'most'} {one.get(least, one.get(most))}{unit}"
    return kind


def bounded(text: str, limit: int = MAX_OUTPUT) -> str:
    """The text, its middle left out where it is too long."""
    if len(text) <= limit:
        return text
    said = f"\n[… {len(text) - limit} characters and more were left out here; ask for a part …]\n"
    room = max(limit - len(said), 0)
    return text[: room * 2 // 3] + said + text[len(text) - room // 3 :]


@dataclass(frozen=True)
class CompiledText:
    """What a source's machine code needs and does, as a text; and its listings."""

    text: str
    sass: str
    ptx: str


class WorkbenchJudge(Protocol):
    """The judge as an agent at work has it. Thread-safe. What is spent is charged to the run by whoever gives it."""

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

    def compiled(self, source: Source, case: str | None, knobs: Knobs = ()) -> CompiledText:
        """Compiled for one case, or for the first search case; nothing is run. Raises UserError with a source's fault,
        InfraError."""
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
        """`path`: from the root to version `of` (the best one where it is None), oldest first."""
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
    """What a workbench stands on. Without knowledge (`agents.knowledge`) the tool that searches it is left out."""

    bench: WorkbenchJudge
    lineage: WorkbenchLineage
    knowledge: KnowledgeBase | None
    notebook: Notebook
