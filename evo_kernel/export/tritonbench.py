"""A kernel as what TritonBench's harness accepts: a `.py` file, and a line of jsonl with `predict`.

The file defines the benchmark's function. A call of the task's form goes to the kernel's `run`; any other call of the
test (other flags, other options) goes to the reference, which the file carries, and `left` says how many those are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo_kernel.errors import UserError

PREDICTIONS = "predictions.jsonl"


@dataclass(frozen=True)
class Solution:
    """What one file is made of."""

    name: str  # of the problem: the file's name
    entry: str  # the benchmark's function
    kernel: str  # the text of a module with run(*inputs)
    reference: str  # the part of the problem's file that defines the function
    form: Sequence[str | None]  # per leaf of a call's arguments: None where a tensor is, else repr of the value
    test: str  # the rest of the problem's file, after its line of '#'
    instruction: str  # what the harness finds the problem by in jsonl; empty where its catalogue has none

    def code(self) -> str:
        """The module that is predicted."""
        name, _, method = self.entry.partition(".")
        defined = f"def {name}" if not method else f"class {name}:\n    @staticmethod\n    def {method}"
        indent = "    " if not method else "        "
        return f"""{self.kernel.rstrip()}


import inspect
import linecache

import torch
from torch.utils import _pytree

_REFERENCE = {self.reference!r}
_FORM = {list(self.form)!r}
_names = {{"__name__": "_reference"}}
linecache.cache["<reference>"] = (len(_REFERENCE), None, _REFERENCE.splitlines(True), "<reference>")
exec(compile(_REFERENCE, "<reference>", "exec"), _names)
_plain = _names[{name!r}]{f".{method}" if method else ""}


def _form_and_tensors(args, kwargs):
    bound = inspect.signature(_plain).bind(*args, **kwargs)
    bound.apply_defaults()
    if "out" in bound.arguments:
        bound.arguments["out"] = None
    leaves = _pytree.tree_leaves((bound.args, bound.kwargs))
    form = [None if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
    return form, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _answer(args, kwargs):
    form, tensors = _form_and_tensors(args, kwargs)
    if form != _FORM:
        return _plain(*args, **kwargs)
    made, out = run(*tensors), kwargs.get("out")
    return made if out is None else out.copy_(made)


{defined}(*args, **kwargs):
{indent}return _answer(args, kwargs)
"""

    def file(self, cut: str) -> str:
        """As the harness's first step leaves it for its second: the code, the line of '#', and the test."""
        return f"{self.code()}\n{cut}\n{self.test}"


def write_solution(solution: Solution, folder: Path, cut: str) -> Path:
    """Write NAME.py, and add its line to predictions.jsonl. Raises UserError where the file is there already."""
    path = folder / f"{solution.name}.py"
    if path.exists():
        raise UserError(f"{path} exists already; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(solution.file(cut), encoding="utf-8")
    with (folder / PREDICTIONS).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"instruction": solution.instruction, "predict": solution.code()}) + "\n")
    return path
