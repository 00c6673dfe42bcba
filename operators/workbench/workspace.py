"""A folder of an agent's own, and texts that it may only read. No path leads out of it, links included.

Every access walks from the folder's own descriptor, one component at a time, and follows no link: what an agent with
a shell puts into the folder cannot point a tool elsewhere, not even between a check and the use.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from evo_kernel.errors import InfraError
from operators.workbench.tool import ToolFailed

MAX_FILE_BYTES = 400_000
MAX_FILES = 200
MAX_TOTAL_BYTES = 8_000_000
MAX_PATH = 200  # characters
MAX_DEPTH = 6
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        with self._parent(name) as (parent, last):
            try:
                descriptor = os.open(last, _READ, dir_fd=parent)
            except OSError as error:
                raise ToolFailed(self._missing(name, error)) from None
            try:  # of a folder no file object can be made: look first
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ToolFailed(f"{name} is no file; list_files shows what there is")
                with open(descriptor, "rb", closefd=False) as file:
                    data = file.read(MAX_FILE_BYTES + 1)
            finally:
                os.close(descriptor)
        if len(data) > MAX_FILE_BYTES:
            raise ToolFailed(f"{name} is larger than {MAX_FILE_BYTES} bytes, which no tool reads")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ToolFailed(f"{name} is no UTF-8 text; only text can be read here") from None

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
        with self._parent(name, make=True) as (parent, last):
            beside = f".{last}.writing"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beside, dir_fd=parent)
                with open(os.open(beside, flags, 0o600, dir_fd=parent), "w", encoding="utf-8", newline="") as file:
                    file.write(text)
                os.rename(beside, last, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as error:
                raise ToolFailed(f"{name} cannot be written: {error.strerror}; choose another path") from None

    @contextlib.contextmanager
    def _parent(self, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """(descriptor of the folder that holds it, its last component). Raises ToolFailed."""
        *folders, last = PurePosixPath(name).parts
        here = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=here)
                try:
                    below = os.open(part, _FOLDER, dir_fd=here)
                except OSError as error:
                    raise ToolFailed(self._missing(name, error)) from None
                os.close(here)
                here = below
            yield here, last
        finally:
            os.close(here)

    def _missing(self, name: str, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            paths = [path for path, _, _ in self.files()]
            near = difflib.get_close_matches(name, paths, 3)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            return f"there is no file {name}; {hint}list_files shows the {len(paths)} that there are"
        return f"{name} cannot be opened ({error.strerror}): links and folders are not followed here"

    def _walk(self) -> Iterator[tuple[str, int]]:
        """(path, bytes) of plain files, hidden ones left out."""
        for folder, folders, names, descriptor in os.fwalk(self.folder, follow_symlinks=False):
            depth = len(Path(folder).relative_to(self.folder).parts)
            folders[:] = sorted(one for one in folders if not one.startswith(".")) if depth < MAX_DEPTH else []
            for name in names:
                with contextlib.suppress(OSError):
                    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode) and not name.startswith("."):
                        yield Path(folder, name).relative_to(self.folder).as_posix(), found.st_size


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
