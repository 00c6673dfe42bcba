"""A kernel as what the harnesses of KernelBench and TritonBench accept.

KernelBench: a file that defines `ModelNew`, built by the problem's own constructor (same arguments, same seed: same
weights). It computes by the kernel's `run`, which gets forward's arguments and then the module's tensors in the order
of the task's inputs.

TritonBench: a `.py` file that defines the benchmark's function, and a line of jsonl with `predict`. A call of the
task's form goes to the kernel's `run`; any other call of the test (other flags, other options) goes to the reference,
which the file carries, and `left` says how many those are. Its first step for channel G (EVAL/eval_G/0_call_acc.py,
process_code) keeps the imports and the functions of what is predicted and drops the rest: classes, constants,
statements. So all of the file is imports and functions, and what must run when it is loaded runs in decorators.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.syntax import parse_module, quoted

FORBIDDEN = {"try:": r"\btry\s*:", "except": r"\bexcept\b", "pass": r"\bpass\b"}
"""What its static checker refuses anywhere outside comments (src/kernelbench/kernel_static_checker.py)."""


@dataclass(frozen=True)
class KernelBenchSolution:
    """What one file is made of."""

    level: int
    problem: int
    kernel: str  # the text of a module with run(*inputs), see standalone.py
    skeleton: str  # the problem's constructors, without what computes
    places: Sequence[str]  # of the module's tensors, dotted, in the order of run's last arguments

    def file_name(self, sample: int) -> str:
        return f"level_{self.level}_problem_{self.problem}_sample_{sample}_kernel.py"

    def text(self) -> str:
        """The module: the kernel, and `ModelNew` around it. The problem's names live in a function of their own."""
        return (
            f"{self.kernel.rstrip()}\n\n\n"
            "def _problem():\n"
            f"{textwrap.indent(self.skeleton, '    ')}\n"
            "    return Model\n\n\n"
            f"_PLACES = {list(self.places)!r}\n\n\n"
            "def _at(module, place):\n"
            '    for name in place.split("."):\n'
            "        module = getattr(module, name)\n"
            "    return module\n\n\n"
            "class ModelNew(_problem()):\n"
            "    def forward(self, *inputs):\n"
            "        return run(*inputs, *(_at(self, place).detach() for place in _PLACES))\n"
        )


def refused_by_kernelbench(text: str) -> list[str]:
    """What the harness's static checker would refuse the file for."""
    code = re.sub(r"#.*", "", text)
    return [name for name, pattern in FORBIDDEN.items() if re.search(pattern, code)]


PREDICTIONS = "predictions.jsonl"

_HEAD = '''
import functools
import inspect
import linecache

import torch
from torch.utils import _pytree


@functools.lru_cache(maxsize=None)
def _names(which):
    """The names of a module: the kernel's, or the reference's for other calls than those of its form."""
    text = _kernel() if which == "kernel" else _reference()
    linecache.cache[f"<{which}>"] = (len(text), None, text.splitlines(True), f"<{which}>")
    names = {"__name__": f"_{which}"}
    exec(compile(text, f"<{which}>", "exec"), names)
    return names


def _answer(plain, form, writes, result, args, kwargs):
    """The kernel's result where the call has the form, else the reference's."""
    bound = inspect.signature(plain).bind(*args, **kwargs)
    bound.apply_defaults()
    out = None
    if "out" in bound.arguments and bound.signature.parameters["out"].default is None:
        out, bound.arguments["out"] = bound.arguments["out"], None
    leaves = _pytree.tree_leaves((bound.args, bound.kwargs))
    if [_told(leaf) for leaf in leaves] != form:
        return plain(*args, **kwargs)
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    made = _names("kernel")["run"](*given)
    made = made if isinstance(made, (tuple, list)) else [made]
    for position, number in writes:
        given[position].copy_(made[number])
    return result(given, made) if out is None else out.copy_(made[0])


def _told(leaf):
    if isinstance(leaf, torch.Tensor):
        return None
    return "device" if isinstance(leaf, torch.device) or leaf in ("cpu", "cuda", "meta") else repr(leaf)


def _of_the_reference(function):
    return _names("reference")[function.__name__]
'''


@dataclass(frozen=True)
class TritonBenchSolution:
    """What one file is made of."""

    name: str  # of the problem: the file's name
    entry: str  # the benchmark's function
    kernel: str  # the text of a module with run(*inputs), see standalone.py
    reference: str  # the part of the problem's file that defines the function
    form: Sequence[str | None]  # per leaf of a call's arguments: None where a tensor is, else repr of the value
    test: str  # the rest of the problem's file, after its line of '#'
    instruction: str  # what channel T's harness finds the problem by in jsonl; empty where its catalogue has none
    label: str = ""  # what channel G's finds it by
    result: str = "made[0]"  # what the function returns, of `made`, the kernel's outputs, and `given`, its tensors
    writes: Sequence[tuple[int, int]] = ()  # argument tensors that it writes to, and the outputs that hold these

    def code(self) -> str:
        """The module that is predicted."""
        others = "".join(f"\n\n@_of_the_reference\ndef {name}():\n    ...\n" for name in self.others())
        return (
            f"{_HEAD}\n\ndef _kernel():\n    return {quoted(self.kernel)}\n"
            f"\n\ndef _reference():\n    return {quoted(self.reference)}\n{others}\n\n{self._defined()}"
        )

    def _defined(self) -> str:
        """The benchmark's function; of an autograd function, its class with another `apply`."""
        name, _, method = self.entry.partition(".")
        how = f"{list(self.form)!r}, {list(self.writes)!r}, lambda given, made: {self.result}"
        if not method:
            plain = f'_names("reference")[{name!r}]'
            return f"def {name}(*args, **kwargs):\n    return _answer({plain}, {how}, args, kwargs)\n"
        return (
            "def _answering(function):\n"
            '    whole = _names("reference")[function.__name__]\n'
            f"    plain = whole.{method}\n"
            f"    answer = lambda *args, **kwargs: _answer(plain, {how}, args, kwargs)\n"
            f"    return type(whole.__name__, (whole,), {{{method!r}: staticmethod(answer)}})\n\n\n"
            f"@_answering\ndef {name}():\n    ...\n"
        )

    def others(self) -> list[str]:
        """What else the test uses of the reference part: other functions, constants, imported modules."""
        used = {node.id for node in ast.walk(parse_module(self.test)) if isinstance(node, ast.Name)}
        entry = self.entry.partition(".")[0]
        return sorted((used & _bound(parse_module(self.reference))) - {entry, "torch"})

    def file(self, cut: str) -> str:
        """As the harness's first step leaves it for its second: the code, the line of '#', and the test."""
        return f"{self.code()}\n{cut}\n{self.test}"

    def line(self) -> dict[str, str]:
        """Its line of predictions; the first key is where channel T's harness looks for the description."""
        line = {"instruction": self.instruction, "predict": self.code()}
        return line | {"label": self.label} if self.label else line


def _bound(module: ast.Module) -> set[str]:
    """Names that a module's own statements bind, in `try` and `if` too."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            waiting += ast.iter_child_nodes(node)
    return found
