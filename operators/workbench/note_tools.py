"""Tools over notes: write one with its evidence, list, search, refute. An unfounded note is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.types.notes import Evidence, Note
from operators.workbench.formatting import evidence_of
from operators.workbench.judge_tools import Used
from operators.workbench.protocols import Notebook, WorkbenchLineage
from operators.workbench.tool import ToolFailed, ToolResult, WorkTool, schema

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
        lineage: WorkbenchLineage | None,
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
            schema(("text", "evidence"), text=text, evidence=CITED), self._write,
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

    def _write(self, arguments: Mapping[str, Any]) -> ToolResult:
        return self._added(arguments["text"], arguments["evidence"], None)

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
        if found is None and version is not None and self._lineage is not None:
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
