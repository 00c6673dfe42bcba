"""Tools over the workspace: list, read, search, write, edit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from operators.micro.edit_blocks import EditAnswer, EditBlock, apply, feedback
from operators.workbench.tool import ToolFailed, ToolResult, WorkTool, schema
from operators.workbench.workspace import MAX_PATH, Workspace

LINES = 400  # lines that one read returns, unless told
HITS = 60
MAX_EDITS = 40
PATH = {"type": "string", "maxLength": MAX_PATH, "description": "relative to the workspace, such as kernel.py"}


def file_tools(workspace: Workspace) -> Iterator[WorkTool]:
    def listed(arguments: Mapping[str, Any]) -> ToolResult:
        under = arguments.get("under", "").strip("/")
        found = _files(workspace, under)
        rows = [f"{path}  {size} bytes" + ("" if writable else "  (read only)") for path, size, writable in found]
        return ToolResult("\n".join(rows) or f"no files{f' under {under}' if under else ''}")

    def read(arguments: Mapping[str, Any]) -> ToolResult:
        lines = workspace.read(arguments["path"]).split("\n")
        first = arguments.get("from_line", 1)
        if first > len(lines):
            raise ToolFailed(f"{arguments['path']} has {len(lines)} lines; from_line must be one of them")
        count = arguments.get("lines", LINES)
        shown = [f"{n:5d}  {line}" for n, line in enumerate(lines[first - 1 : first - 1 + count], start=first)]
        left = len(lines) - (first - 1 + len(shown))
        return ToolResult(
            "\n".join(shown) + (f"\n[{left} more lines; read on with from_line={first + count}]" if left else "")
        )

    def search(arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(_found(workspace, arguments["text"], arguments.get("path")))

    def write(arguments: Mapping[str, Any]) -> ToolResult:
        name = workspace.write(arguments["path"], arguments["text"])
        return ToolResult(f"wrote {name}, {len(arguments['text'].splitlines())} lines")

    def edit(arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(_edited(workspace, arguments["path"], arguments["edits"]))

    yield WorkTool(
        "list_files", "Files of your workspace, with their sizes.",
        schema(under=PATH | {"description": "only what is in this folder"}), listed,
    )  # fmt: skip
    yield WorkTool(
        "read_file", "A text file of your workspace, with line numbers (which are not part of it).",
        schema(("path",), path=PATH, from_line={"type": "integer", "minimum": 1},
               lines={"type": "integer", "minimum": 1, "maximum": 2000}), read,
    )  # fmt: skip
    yield WorkTool(
        "search_files", "Lines of your workspace's files that hold a text (not a pattern; upper and lower case alike).",
        schema(("text",), text={"type": "string", "minLength": 1, "maxLength": 200},
               path=PATH | {"description": "only in this file or folder"}), search,
    )  # fmt: skip
    yield WorkTool(
        "write_file", "Make a file, or replace all of it. To change a few lines, use edit_file.",
        schema(("path", "text"), path=PATH, text={"type": "string"}), write,
    )  # fmt: skip
    one = schema(
        ("search", "replace"),
        search={"type": "string", "minLength": 1, "description": "whole lines as they stand, enough to fit one place"},
        replace={"type": "string", "description": "the lines that stand there afterwards; empty deletes"},
    )
    yield WorkTool(
        "edit_file", "Change lines of a file. Each edit's `search` must stand in the file exactly once, as whole lines "
        "with their indentation. Edits that fit are made even where others do not.",
        schema(("path", "edits"), path=PATH,
               edits={"type": "array", "minItems": 1, "maxItems": MAX_EDITS, "items": one}), edit,
    )  # fmt: skip


def _edited(workspace: Workspace, path: str, edits: list[Mapping[str, str]]) -> str:
    """What was done. Raises ToolFailed where an edit does not fit; those that do are in."""
    before = workspace.read(path)
    blocks = tuple(EditBlock(tuple(one["search"].split("\n")), tuple(one["replace"].split("\n"))) for one in edits)
    empty = [n for n, block in enumerate(blocks, start=1) if not any(line.strip() for line in block.search)]
    if empty:
        raise ToolFailed(f"edit {empty[0]} searches for blank lines; name the lines that stand by the place")
    blocks = tuple(EditBlock(block.search, () if block.replace == ("",) else block.replace) for block in blocks)
    edited = apply(EditAnswer(blocks=blocks), before)
    if edited.text != before:
        workspace.write(path, edited.text)
    if edited.misfits:
        raise ToolFailed(feedback(edited))
    if edited.text == before:
        raise ToolFailed(f"the edits leave {path} as it was; write the change into `replace`")
    return f"{len(edited.applied)} of {len(edits)} edits are in; {path} has {len(edited.text.splitlines())} lines now"


def _found(workspace: Workspace, text: str, place: str | None) -> str:
    hits: list[str] = []
    for path, _, _ in _files(workspace, (place or "").strip("/")):
        with contextlib.suppress(ToolFailed):  # no text, or gone meanwhile: nothing to find in it
            lines = enumerate(workspace.read(path).split("\n"), start=1)
            hits += [f"{path}:{n}: {line.strip()[:200]}" for n, line in lines if text.lower() in line.lower()]
    more = len(hits) - HITS
    tail = [f"[{more} more lines hold it; search a longer text, or one file]"] if more > 0 else []
    return "\n".join([*hits[:HITS], *tail]) or f"no line holds {text!r}" + (f" in {place}" if place else "")


def _files(workspace: Workspace, under: str) -> list[tuple[str, int, bool]]:
    """Those that are this file, or in this folder; all where it is empty."""
    return [one for one in workspace.files() if not under or f"{one[0]}/".startswith(f"{under}/")]
