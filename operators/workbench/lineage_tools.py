"""Tools to look things up: the lineage and its sources, the knowledge base, notes with their evidence."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.types import ScoredCandidate
from evo_kernel.types.notes import Evidence, Note, VersionOrder
from operators.knowledge.base import KnowledgeBase
from operators.prompts.evidence import evidence_of, strategy_line, told, version_line
from operators.workbench.judge_tools import Used
from operators.workbench.tool import Notebook, ToolFailed, ToolResult, WorkbenchLineage, WorkTool, schema
from operators.workbench.workspace import PATH, Workspace

VERSIONS = 20
NUMBER = {"type": "integer", "minimum": 1, "description": "the number of a version: 17 for C17"}


def lineage_tools(workspace: Workspace, lineage: WorkbenchLineage) -> Iterator[WorkTool]:
    def listed(arguments: Mapping[str, Any]) -> ToolResult:
        order: VersionOrder = arguments.get("order", "best")
        with _asking():
            found = lineage.versions(arguments.get("limit", VERSIONS), order, arguments.get("of"))
        return ToolResult("\n".join(version_line(one) for one in found) or "no version is judged yet")

    def shown(arguments: Mapping[str, Any]) -> ToolResult:
        relative = _version(lineage, arguments["version"])
        if "save_to" in arguments:
            name = workspace.write(arguments["save_to"], relative.source.text)
            return ToolResult(f"C{relative.candidate} is in {name} now, {len(relative.source.text.splitlines())} lines")
        path = ", then ".join(strategy_line(one) for one in relative.strategies[-12:]) or "none, it is a root"
        verdict = told(relative.evaluation, f"C{relative.candidate}") if relative.evaluation else "not judged yet"
        return ToolResult(f"{verdict}\nstrategies on the way, oldest first: {path}\n\n{relative.source.text}")

    def differing(arguments: Mapping[str, Any]) -> ToolResult:
        before = _version(lineage, arguments["older"])
        if ("newer" in arguments) == ("path" in arguments):
            raise ToolFailed("name either `newer`, a version, or `path`, a file of your workspace")
        if "path" in arguments:
            name, text = arguments["path"], workspace.read(arguments["path"])
        else:
            other = _version(lineage, arguments["newer"])
            name, text = f"C{other.candidate}", other.source.text
        lines = difflib.unified_diff(
            before.source.text.split("\n"), text.split("\n"), f"C{before.candidate}", name, lineterm=""
        )
        return ToolResult("\n".join(lines) or "they are the same")

    yield WorkTool(
        "lineage", "Committed versions with their scores (baseline ÷ kernel, larger is faster) and gains. order: best "
        "first, newest first, or path: from its root to version `of` (the best if left out).",
        schema(order={"type": "string", "enum": ["best", "newest", "path"]},
               limit={"type": "integer", "minimum": 1, "maximum": 100}, of=NUMBER), listed,
    )  # fmt: skip
    yield WorkTool(
        "show_version", "A version's verdict, strategies and source. save_to writes the source to a file of your "
        "workspace instead of showing it.",
        schema(("version",), version=NUMBER, save_to=PATH), shown,
    )  # fmt: skip
    yield WorkTool(
        "diff_versions", "What changed from one version to another, or to a file of your workspace.",
        schema(("older",), older=NUMBER, newer=NUMBER, path=PATH), differing,
    )  # fmt: skip


def knowledge_tools(knowledge: KnowledgeBase) -> Iterator[WorkTool]:
    def searched(arguments: Mapping[str, Any]) -> ToolResult:
        found = knowledge.search(arguments["query"], arguments.get("k", 4), 3000)
        parts = [f"### {one.title} ({one.source})\n{one.text}" for one in found]
        return ToolResult("\n\n".join(parts) or "nothing fits; try other words, or the name of what you would call")

    yield WorkTool(
        "knowledge", "Search notes on kernels for this GPU and the API of the installed Triton and Gluon.",
        schema(("query",), query={"type": "string", "minLength": 1, "maxLength": 500},
               k={"type": "integer", "minimum": 1, "maximum": 8}), searched,
    )  # fmt: skip


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """A user's error is the agent's here: it named a version that does not exist."""
    try:
        yield
    except UserError as error:
        raise ToolFailed(str(error)) from None


def _version(lineage: WorkbenchLineage, number: int) -> ScoredCandidate:
    with _asking():
        return lineage.version(number)


MAX_NOTE = 1200  # characters
SHOWN = MOST = 20  # notes in a list, and that an attempt may write
CITED = {
    "type": "array",
    "minItems": 1,
    "maxItems": 12,
    "description": "what it rests on",
    "items": schema(
        ("evaluation", "samples"),
        evaluation={"type": "string", "maxLength": 40, "description": "of this attempt (E12.3), or a version (C17)"},
        samples={"type": "integer", "minimum": 0, "description": "the sample count that its answer named"},
    ),
}
_VERSION = re.compile(r"^C(\d{1,9})$")


class Notes:
    """`author`: the operator; `attempt`: whose notes these are."""

    def __init__(
        self,
        notebook: Notebook,
        used: Used,
        lineage: WorkbenchLineage,
        attempt: int,
        author: str,
    ) -> None:
        self._notebook, self._used, self._lineage = notebook, used, lineage
        self._attempt, self._author = attempt, author

    def tools(self) -> Iterator[WorkTool]:
        text = {"type": "string", "minLength": 10, "maxLength": MAX_NOTE}
        yield WorkTool(
            "note", "Write down a finding for later attempts. It must cite the evaluations it rests on, with their "
            f"sample counts. At most {MOST} an attempt.",
            schema(("text", "evidence"), text=text, evidence=CITED),
            lambda given: self._added(given["text"], given["evidence"], None),
        )  # fmt: skip
        yield WorkTool(
            "notes", "The latest notes of all attempts with what they rest on; with a query, those that fit it.",
            schema(query={"type": "string", "maxLength": 200}, limit={"type": "integer", "minimum": 1, "maximum": 50}),
            self._list,
        )  # fmt: skip
        yield WorkTool(
            "refute_note", "Say that a note does not hold, and by which evaluations that was found.",
            schema(("note", "why", "evidence"), note={"type": "integer", "minimum": 1}, why=text, evidence=CITED),
            self._refute,
        )  # fmt: skip

    def _refute(self, arguments: Mapping[str, Any]) -> ToolResult:
        older = self._notebook.note(arguments["note"])
        if older is None:
            raise ToolFailed(f"there is no note {arguments['note']}; notes lists them")
        if older.refuted:
            raise ToolFailed(f"note {older.number} is refuted already: {older.refuted}")
        return self._added(arguments["why"], arguments["evidence"], older.number)

    def _list(self, arguments: Mapping[str, Any]) -> ToolResult:
        query = arguments.get("query", "")
        found = self._notebook.notes(arguments.get("limit", SHOWN), query)
        nothing = f"no note fits {query!r}; without a query all are listed" if query.strip() else "no notes yet"
        return ToolResult("\n".join(note_line(one) for one in found) or nothing)

    def _added(self, text: str, cited: Sequence[Mapping[str, Any]], refutes: int | None) -> ToolResult:
        written = self._used.counts.get("note", 0)
        if written >= MOST:
            raise ToolFailed(f"this attempt has written its {MOST} notes; keep to what matters most")
        evidence = tuple(self._founded(one["evaluation"].strip(), one["samples"]) for one in cited)
        number = self._notebook.add(text, self._author, self._attempt, evidence, refutes)
        self._used.counts["note"] = written + 1
        said = f"note {number} is kept" if refutes is None else f"note {refutes} is refuted by note {number}"
        return ToolResult(said, {"note": number, "text": text[:300]} | ({"refutes": refutes} if refutes else {}))

    def _founded(self, name: str, samples: int) -> Evidence:
        """The evidence as it really is. Raises ToolFailed where there is none, or its count is another."""
        found = self._used.citable.get(name)
        version = _VERSION.match(name)
        if found is None and version is not None:
            try:
                found = evidence_of(self._lineage.version(int(version[1])))
            except UserError as error:
                raise ToolFailed(f"{name}: {error}") from None
        if found is None:
            known = ", ".join(list(self._used.citable)[-6:]) or "none yet"
            raise ToolFailed(
                f"{name!r} is no evaluation of this attempt and no judged version, so the note is unfounded; "
                f"known are {known}. Evaluate first, or cite what you have"
            )
        if found.samples != samples:
            raise ToolFailed(f"{name} rests on {found.samples} samples a case, not {samples}; cite the true count")
        return found


def note_line(note: Note) -> str:
    cited = ", ".join(
        f"{one.evaluation}: {one.status}"
        + (f" {one.score:.3f}" if one.score is not None else "")
        + (f", n={one.samples}" if one.samples else "")
        for one in note.evidence
    )
    fate = f" REFUTED: {note.refuted}" if note.refuted else ""
    return f"note {note.number} ({note.author}; {cited}): {note.text}{fate}"
