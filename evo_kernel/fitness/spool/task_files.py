"""A task as text that travels, and back: the task file, the modules beside it that it imports, and its seed."""

from __future__ import annotations

import ast
import uuid
from collections.abc import Iterator
from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.fitness.spool.messages import MOST_FILES, TaskText
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.builtin import builtin_names
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.packaged import names_function
from evo_kernel.tasks.task import Task, identity_of


def packed(task: Task) -> TaskText:
    """Raises UserError for a task that needs what cannot travel with it."""
    case = task.narrowed_to
    text = TaskText(name=task.name.removesuffix(f"@{case}"), identity=task.identity, case=case)
    if task.origin in builtin_names():
        return text.model_copy(update={"builtin": True})
    home = task.path.parent
    files: dict[str, str] = {}
    texts = [task.text]
    while texts:
        for path in _beside(texts.pop(), home):
            name = path.relative_to(home).as_posix()
            if name not in files:
                files[name] = path.read_text(encoding="utf-8")
                texts.append(files[name])
    if (seed := _seed(task.text)) is not None and not task.origin:
        if Path(seed).is_absolute() or ".." in Path(seed).parts:
            raise UserError(f"{task.path}: SEED {seed!r} is not in the task's folder. Put it there: it has to travel.")
        files[Path(seed).as_posix()] = (home / seed).read_text(encoding="utf-8")
    if len(files) > MOST_FILES:
        raise UserError(f"{task.path} imports {len(files)} files beside it; {MOST_FILES} may travel. Make them fewer.")
    return TaskText.model_validate(text.model_dump() | {"text": task.text, "files": files})


def unpacked(text: TaskText, folder: Path) -> Task:
    """The task again; its files below `folder`, where processes of the judge find them. **Runs the task file.**

    Raises UserError where it is not what it says it is.
    """
    if text.builtin:
        task = load(text.name) if text.name in builtin_names() else None
        if task is None or task.identity != text.identity:
            raise UserError(
                f"the built-in task {text.name} is another one here: install the same evo-kernel on both sides"
            )
        return task.narrowed(text.case) if text.case else task
    home = folder / text.key
    path = home / f"{text.name}.py"
    if identity_of(text.text) != text.identity:  # before anything of it runs
        raise UserError(f"the text of task {text.name} is not the one whose identity it has: send it again")
    for name, content in {**text.files, path.name: text.text}.items():
        _place(home / name, content.encode())
    task = load(path)
    return task.narrowed(text.case) if text.case else task


def _place(place: Path, content: bytes) -> None:
    """Seen whole or not at all, and written once: processes of other judges of the task may be reading it."""
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        hidden = place.with_name(f".{uuid.uuid4().hex}")
        hidden.write_bytes(content)
        hidden.rename(place)


def _beside(text: str, home: Path) -> Iterator[Path]:
    """Modules in the task's folder that a text imports."""
    for node in ast.walk(parse_module(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for first in {name.partition(".")[0] for name in names}:
            if (home / f"{first}.py").is_file():
                yield home / f"{first}.py"
            elif (home / first / "__init__.py").is_file():
                yield from (home / first).rglob("*.py")


def _seed(text: str) -> str | None:
    """The file that SEED names, where it is written out."""
    for statement in parse_module(text).body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "SEED" for t in statement.targets
        ):
            value = statement.value.value if isinstance(statement.value, ast.Constant) else None
            if isinstance(value, str) and "\n" not in value and not names_function(value):
                return value
    return None
