"""A folder of an agent's own, and texts that it may only read. No path leads out of it, links included.

An agent that has a shell runs as the same user: the walls are against mistakes, not against it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from evo_kernel.errors import InfraError
from operators.workbench.tool import ToolFailed

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
                raise ToolFailed(self._missing(name))
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

    def _missing(self, name: str) -> str:
        paths = [path for path, _, _ in self.files()]
        near = difflib.get_close_matches(name, paths, 3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        return f"there is no file {name}; {hint}list_files shows the {len(paths)} that there are"

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
