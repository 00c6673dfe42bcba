"""The workspace of an agent, a folder from which no path leads out, and tools to list, read, search, write, edit.

An agent that has a shell runs as the same user: the walls are against mistakes, not against it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evo_kernel.errors import InfraError
from operators.micro.edit_blocks import EditAnswer, EditBlock, apply, feedback
from operators.workbench.tool import ToolFailed, ToolResult, WorkTool, schema

MAX_FILE_BYTES = 400_000
MAX_FILES = 200
MAX_TOTAL_BYTES = 8_000_000
MAX_PATH = 200  # characters
MAX_DEPTH = 6


class Workspace:
    """`fixed`: path → text of what may only be read. Not thread-safe: the workbench's lock guards it.

    What stood in the folder before is removed: a workspace begins with `files`, and a resumed one with what its
    conversation left (`restore`). `adopt`: keep what stands there (an external agent's folder, being served).
    Raises InfraError where the folder cannot be written.
    """

    def __init__(
        self, folder: Path, files: Mapping[str, str], fixed: Mapping[str, str] | None = None, adopt: bool = False
    ) -> None:
        self.folder = folder
        self.fixed = {_clean(path): text for path, text in (fixed or {}).items()}
        self._changes: dict[str, str] = {}
        if not adopt:
            shutil.rmtree(folder, ignore_errors=True)
        with self._ours():
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in self.fixed.items():
                self._put(path, text)
            if not adopt:
                for path, text in files.items():
                    self._put(_clean(path), text)

    def restore(self, changes: Mapping[str, str]) -> None:
        """Apply changes that an earlier session made. Raises InfraError."""
        with self._ours():
            for path, text in changes.items():
                self._put(_clean(path), text)
        self._changes.clear()

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """What is written here is not the agent's doing: where that fails, the machine has. Raises InfraError."""
        try:
            yield
        except (OSError, ToolFailed) as error:
            raise InfraError(f"the workspace {self.folder} cannot be used: {error}") from error

    def take_changes(self) -> dict[str, str]:
        """What was written since the last call of this."""
        changes, self._changes = self._changes, {}
        return changes

    def files(self) -> list[tuple[str, int, bool]]:
        """(path, bytes, whether it may be written), sorted; links and what is no plain file are left out."""
        found = [(path, len(text.encode()), False) for path, text in self.fixed.items()]
        found += [(path, size, True) for path, size in self._walk() if path not in self.fixed]
        return sorted(found)

    def read(self, path: str) -> str:
        """The whole text of a file. Raises ToolFailed."""
        name = _clean(path)
        if name in self.fixed:
            return self.fixed[name]
        place = self._place(name)
        try:
            if not place.exists():
                paths = [path for path, _, _ in self.files()]
                near = difflib.get_close_matches(name, paths, 3)
                hint = f"did you mean {' or '.join(near)}? " if near else ""
                raise ToolFailed(f"there is no file {name}; {hint}list_files shows the {len(paths)} that there are")
            if not place.is_file():  # a pipe would be waited for
                raise ToolFailed(f"{name} is no file; list_files shows what there is")
            if place.stat().st_size > MAX_FILE_BYTES:
                raise ToolFailed(f"{name} is larger than {MAX_FILE_BYTES} bytes, which no tool reads")
            return place.read_bytes().decode()
        except UnicodeDecodeError:
            raise ToolFailed(f"{name} is no UTF-8 text; only text can be read here") from None
        except OSError as error:
            raise ToolFailed(f"{name} cannot be read: {error.strerror}") from None

    def write(self, path: str, text: str) -> str:
        """Make or replace a file; its clean path. Raises ToolFailed."""
        name = _clean(path)
        if name in self.fixed:
            raise ToolFailed(f"{name} may only be read; write to a path of your own, such as kernel.py")
        size = _encoded(name, text)
        present = dict(self._walk())
        if name not in present and len(present) >= MAX_FILES:
            raise ToolFailed(f"the workspace holds {MAX_FILES} files already; use one of them again")
        if sum(present.values()) - present.get(name, 0) + size > MAX_TOTAL_BYTES:
            raise ToolFailed(f"the workspace may hold {MAX_TOTAL_BYTES} bytes in all; write less, or empty a file")
        self._put(name, text)
        self._changes[name] = text
        return name

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- within ---------------------------------------------------------------------------------------------------

    def _put(self, name: str, text: str) -> None:
        """Write beside and rename: a reader sees the old text or the new one, and no link is written through."""
        _encoded(name, text)
        place = self._place(name, last=False)
        beside = place.with_name(f".{place.name}.writing")
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside.unlink(missing_ok=True)
            beside.write_text(text, encoding="utf-8", newline="")
            beside.replace(place)
        except OSError as error:
            raise ToolFailed(f"{name} cannot be written: {error.strerror}; choose another path") from None

    def _place(self, name: str, last: bool = True) -> Path:
        """Raises ToolFailed where a link stands on the way: at the last component, too, unless told."""
        place, folder = self.folder / name, self.folder.resolve()
        found = place.resolve() if last else place.parent.resolve() / place.name
        if found != folder / name:
            raise ToolFailed(f"{name} cannot be opened: links and folders are not followed here")
        return place

    def _walk(self) -> Iterator[tuple[str, int]]:
        """(path, bytes) of plain files, hidden ones left out."""
        for folder, folders, names in os.walk(self.folder):
            below = Path(folder).relative_to(self.folder)
            deep = len(below.parts) >= MAX_DEPTH
            folders[:] = [] if deep else sorted(one for one in folders if not one.startswith("."))
            for name in names:
                place = Path(folder, name)
                with contextlib.suppress(OSError):
                    if not name.startswith(".") and place.is_file() and not place.is_symlink():
                        yield (below / name).as_posix(), place.stat().st_size


def _clean(path: str) -> str:
    """A relative path in one spelling. Raises ToolFailed for any that leads out, is hidden, or is too long."""
    if not path or len(path) > MAX_PATH or any(ord(sign) < 32 for sign in path) or "\\" in path:
        raise ToolFailed(f"{path[:60]!r} is no path: write a relative one such as kernel.py or notes/plan.md")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ToolFailed("the path is no valid text; write a relative one such as kernel.py") from None
    if path.startswith(("/", "~")):
        raise ToolFailed(f"{path!r} leads out of the workspace: paths are relative to it, such as kernel.py")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ToolFailed(f"{path!r} leads out of the workspace: `..` is not allowed")
    if not parts or len(parts) > MAX_DEPTH or any(part.startswith(".") for part in parts):
        raise ToolFailed(f"{path!r} cannot be used: name a file that is not hidden, at most {MAX_DEPTH} folders deep")
    return "/".join(parts)


def _encoded(name: str, text: str) -> int:
    """Bytes of the text. Raises ToolFailed where it is too long, or no text."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ToolFailed(f"what is to be written to {name} is no valid text (a lone surrogate)") from None
    if size > MAX_FILE_BYTES:
        raise ToolFailed(f"{name} would be larger than {MAX_FILE_BYTES} bytes; write less")
    return size


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
