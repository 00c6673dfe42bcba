"""What the importers of benchmarks share: reading a checkout, naming one of its problems, what its kernels may call."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from evo_kernel import user_cache
from evo_kernel.errors import LoweringError, TaskError
from evo_kernel.tasks.task import describe, did_you_mean, without_data


@dataclass(frozen=True)
class Entry:
    """One problem of a checkout."""

    spec: str  # what a TASK is called on the command line, from any folder
    task: str  # name of its task
    group: str  # its level, channel or type
    name: str  # its number, or its name within the group
    label: str  # what reports call it
    title: str
    path: Path


def read_text(path: Path) -> str:
    """Raises TaskError."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe may never end
            raise TaskError(f"{path} is no regular file. Check the file out again.")
        return path.read_text(encoding="utf-8-sig")  # Python too passes over a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {describe(error)}. Check the file out again.") from error


def remembered(write: Callable[..., str]) -> Callable[..., str]:
    """Keep the text of each task, in this process and in the user's cache folder: writing one may take seconds.

    `write(entry, *texts)` depends on its arguments, on the code of `evo_kernel.tasks` and on PyTorch alone.
    """

    @lru_cache(maxsize=512)
    def text(entry: Entry, *texts: str) -> str:
        versions = [torch.__version__, sys.version, user_cache.code_hash(Path(__file__).parents[1])]
        return user_cache.kept([entry.spec, *texts, *versions], "task", lambda: write(entry, *texts))

    return text


def parted(rest: str, group: str) -> tuple[Path, str | None, str | None]:
    """CHECKOUT, GROUP and PROBLEM of `CHECKOUT[/GROUP[/PROBLEM]]`. `group`: a regular expression. Raises TaskError."""
    match = re.fullmatch(rf"(.*?)(?:/({group})(?:/([^/]+))?)?/?", rest, re.DOTALL)
    assert match is not None, "the first group takes anything"
    return existing(match[1]), match[2], match[3]


def existing(root: str) -> Path:
    """A folder. Raises TaskError."""
    path = Path(root or ".").expanduser()
    if not path.is_dir():
        raise TaskError(f"There is no folder {path}. Name a local checkout of the benchmark.")
    return path


def chosen(groups: Mapping[str, Sequence[Entry]], group: str | None, problem: str | None, example: str) -> list[Entry]:
    """All problems, those of a group, or one of them by name or file. Raises TaskError."""
    if group is None:
        return [entry for found in groups.values() for entry in found]
    if group not in groups:
        raise TaskError(f"The checkout has no {group}. It has {', '.join(groups)}; write for example {example}.")
    if problem is None:
        return list(groups[group])
    named = [entry for entry in groups[group] if problem in (entry.name, entry.path.name, entry.path.stem)]
    if not named:
        hint = did_you_mean(problem, [entry.name for entry in groups[group]])
        where = groups[group][0].path.parent if groups[group] else group
        raise TaskError(f"{where} has no problem {problem!r}.{hint} `evo-kernel tasks import` lists them.")
    return named


def task_text(
    description: str,
    imported: str,
    held: Mapping[str, str],
    cases: Mapping[str, Sequence[Mapping[str, Any]]],
    allow: str,
    more: str,
    made: str,
) -> str:
    """An imported problem as a task file. A text decides its task's identity: do not change what it says.

    `held`: texts of constants; `more`: lines after ALLOW; `made`: `name = Class(...)`, whose methods are the task's.
    """
    name = made.partition(" ")[0]
    constants = "".join(f"{key} = {text}\n\n" for key, text in held.items())
    return (
        f"{description!r}\n\n{imported}\n\n{constants}CASES = {dict(cases)!r}\nALLOW = {allow!r}\n{more}\n{made}\n"
        f"inputs = {name}.inputs\nreference = {name}.reference()\n"
    )


def allow_of(reference: Callable[[], Callable[..., Any]], inputs: Callable[[], Sequence[Sequence[Any]] | None]) -> str:
    """`kernels` where every operation of the reference has a kernel to start from, else `mixed`.

    `inputs`: of each check case, tensors or their specs; None where it is not worth trying.
    """
    from evo_kernel.tasks.lowering.lower import lower_function

    try:
        if (cases := inputs()) is None:
            return "mixed"
        lower_function(reference(), [[without_data(value) for value in case] for case in cases], allow_aten=False)
    except (LoweringError, TaskError):
        return "mixed"
    except Exception:  # noqa: BLE001  the problem's own code may raise anything; checking the task will say it
        return "mixed"
    return "kernels"
