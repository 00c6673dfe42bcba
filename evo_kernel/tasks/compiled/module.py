"""The module of a reference's compiled kernels: as few branches as serve all cases, each generated and cleaned.

Inductor's host code is written in PyTorch's own words: sizes, buffers, launches, library calls.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from evo_kernel.errors import LoweringError
from evo_kernel.syntax import parse_expression
from evo_kernel.tasks.compiled.inductor import generate, kernels_both_ways
from evo_kernel.tasks.compiled.kernels import BOTH_WAYS, SUM_PARTS, Cleaned, clean
from evo_kernel.tasks.compiled.reading import GeneratedModule, read
from evo_kernel.tasks.lowering.lower import all_sizes, branches, ones
from evo_kernel.tasks.lowering.module import Branch, LoweredLaunch, numbered, render
from evo_kernel.tasks.lowering.trace import RESERVED, Traced

_IGNORED = {"assert_size_stride", "assert_alignment", "args.clear", "torch.cuda.set_device", "get_raw_stream"}
_LIBRARY = {"bias_addmm": "addmm"}
"""Library calls that Inductor has a name of its own for."""
_TOTAL = re.compile(
    r"(workspace\w+)\[.+\]\.view\(.+, ([^,]+)\)\.sum\(dim=0(?:, keepdim=False)?\)"
    r"(?:\.view\(\[(.+)\]\))?(?:\.to\((torch\.b?float16)\))?"
)
"""The sums of columns from those of programs, as Inductor has PyTorch compute them."""
SHORT = 24
"""Characters of a size expression that is written where it is used; a longer one gets a name."""
_TAIL = 3
"""Arguments by which a template's launch is told its grid."""


@dataclass(frozen=True)
class Start:
    """A launch before its kernel is known in our words."""

    kernel: str  # Inductor's name
    args: tuple[str, ...]
    tail: tuple[str, ...] = ()  # its grid, of a template
    parts: str = ""  # the tensor that is made for what its programs have of columns


@dataclass
class Host:
    """The body of `run` while it is read."""

    traced: Traced
    read: GeneratedModule
    steps: list[str | Start] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # names of sizes that the text mentions
    library: list[str] = field(default_factory=list)  # calls that stay PyTorch's
    _known: dict[str, str] = field(default_factory=dict)  # Inductor's name → text here
    _shapes: dict[str, str] = field(default_factory=dict)  # `arg0_1_size` → argument, and strides
    _names: set[str] = field(default_factory=set)  # bound in run
    _numbers: set[str] = field(default_factory=set)  # of Inductor's names, those of sizes
    _parts: Counter[str] = field(default_factory=Counter)  # Inductor's name of parts → how many were added up
    _flat: set[str] = field(default_factory=set)  # of Inductor's names, sums whose shape PyTorch 2.11 does not write

    def __post_init__(self) -> None:
        self._names |= {*self.traced.names, *self.traced.size_names, *RESERVED}
        for node in self.read.host:
            self._step(node)

    def _step(self, node: ast.stmt) -> None:
        match node:
            case ast.Delete():
                return
            case ast.Assign(targets=[ast.Tuple(elts=given)], value=ast.Name(id="args")):
                self._known |= dict(zip(map(ast.unparse, given), self.traced.tensors, strict=True))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, value)
            case ast.Expr(value=ast.Call() as call):
                self._call(call)
            case ast.Return(value=ast.Tuple(elts=values)):
                (output,) = self.traced.graph.graph.find_nodes(op="output")
                for value, result in zip(values, output.args[0], strict=False):
                    if ast.unparse(value) in self._flat and result.meta["val"].dim() != 1:
                        raise LoweringError("torch.compile returns a sum in a shape that is not known here.")
                self.steps.append(f"return {', '.join(self.text(value) for value in values)}".rstrip())
            case _:
                raise LoweringError(f"torch.compile's host code has `{ast.unparse(node)[:80]}`, not known here.")

    def _assign(self, name: str, value: ast.expr) -> None:
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=argument), attr="size" | "stride" as what), args=[]):
                self._shapes[name] = f"{self._known[argument]}.{'shape' if what == 'size' else 'stride()'}"
                return
            case ast.Subscript(value=ast.Name(id=shape), slice=ast.Constant(value=dim)) if shape in self._shapes:
                symbol = sympy.Symbol(name)
                known = next((s for s in self.traced.symbols if s.name == symbol.name), None)
                self._known[name] = f"{self._shapes[shape]}[{dim}]" if known is None else self.traced.size_name(known)
                self._numbers.add(name)
                return
            case ast.Call(func=function) if ast.unparse(function) in _IGNORED:
                return
            case ast.Call() if name.startswith("workspace"):
                self._parts[name] = 0
                return
        if any(isinstance(part, ast.Name) and part.id in self._parts for part in ast.walk(value)):
            return self._total(name, ast.unparse(value))
        text = self.text(value)
        number = self._is_number(value)
        if number and len(text) <= SHORT:
            self._known[name] = text
        else:
            short = re.sub(r"^triton_\w+_(?=([xyz]|r\d_)numel$)", "", name)  # as its kernel calls it
            self.steps.append(f"{self._fresh(name, short)} = {text}")
        if number:
            self._numbers.add(name)

    def _fresh(self, name: str, base: str) -> str:
        """A new name in `run` for one of Inductor's."""
        fresh = self._known[name] = numbered(self._names, base)
        self._names.add(fresh)
        return fresh

    def _total(self, name: str, text: str) -> None:
        found = _TOTAL.fullmatch(text)
        if found is None:
            raise LoweringError(f"torch.compile adds up parts by `{text[-80:]}`, which is not known here.")
        workspace, columns, shape, dtype = found.groups()
        if not shape:
            self._flat.add(name)
        parts, columns = self.named(workspace), self.text(parse_expression(columns))
        shape = self.text(parse_expression(f"({shape},)")) if shape else f"({columns},)"
        options = f"dtype={dtype or 'torch.float32'}, device={self.traced.device}"
        self.steps.append(f"{self._fresh(name, name)} = torch.empty({shape}, {options})")
        args = (f"{parts}[{self._parts[workspace]}]", self._known[name], columns, f"{parts}.shape[1]")
        self.steps.append(Start(SUM_PARTS.base, args))
        self._parts[workspace] += 1

    def _is_number(self, node: ast.expr) -> bool:
        """Whether an expression is arithmetic on sizes: no buffers, no calls but of max, min and math."""
        for part in ast.walk(node):
            match part:
                case ast.Name(id=name) if name in self._known and name not in self._numbers:
                    return False
                case ast.Call(func=ast.Name(id="max" | "min" | "int" | "float" | "abs")):
                    continue
                case ast.Call(func=ast.Attribute(value=ast.Name(id="math"))):
                    continue
                case ast.Call() | ast.Subscript():
                    return False
        return True

    def _call(self, call: ast.Call) -> None:
        name = ast.unparse(call.func)
        if name in _IGNORED:
            return
        if name.endswith(".run") and name.removesuffix(".run") in self.read.kernels:
            kernel = name.removesuffix(".run")
            grid = self.read.kernels[kernel].grid
            both_ways = [arg.id for arg in call.args if isinstance(arg, ast.Name) and arg.id in self._parts]
            parts = self._fresh(both_ways[0], "parts") if both_ways and grid == BOTH_WAYS else ""
            args = [self.text(arg) for arg in call.args]
            cut = len(args) - (_TAIL if grid == "FixedGrid" else 0)
            self.steps.append(Start(kernel, tuple(args[:cut]), tuple(args[cut:]), parts))
        else:
            self.steps.append(self.text(call))

    def text(self, node: ast.expr) -> str:
        """An expression of Inductor's host code as ours. Raises LoweringError at names that mean nothing here."""
        return ast.unparse(_Words(self).visit(parse_expression(ast.unparse(node))))

    def named(self, name: str) -> str:
        """What a name of Inductor's host code is here."""
        text = self._known.get(name, name)
        if name not in self._known and name not in ("torch", "math") and not hasattr(builtins, name):
            raise LoweringError(f"torch.compile's host code uses `{name}`, which is not known here.")
        self.used |= {found.id for found in ast.walk(parse_expression(text)) if isinstance(found, ast.Name)}
        return text


class _Words(ast.NodeTransformer):
    """Names and functions of Inductor's host code → ours."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in ("inf", "nan"):
            return parse_expression(f"float('{node.id}')")
        return parse_expression(self._host.named(node.id))

    def visit_Call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        if name == "device":
            return parse_expression(self._host.traced.device)
        args = [self.visit(arg) for arg in node.args]
        keywords = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords]
        if name == "empty_strided_cuda":
            return self._empty(*args)
        if name == "reinterpret_tensor":
            return _viewed(*args)
        if name.startswith(("extern_kernels.", "aten.", "torch.ops.")):
            return ast.Call(self._library(name, [keyword.arg for keyword in keywords]), args, keywords)
        return ast.Call(self.visit(node.func), args, keywords)

    def _library(self, name: str, keywords: Sequence[str | None]) -> ast.expr:
        if name.startswith("extern_kernels."):
            short = name.removeprefix("extern_kernels.")
            short = _LIBRARY.get(short, short)
            packet = getattr(torch.ops.aten, short, None)
            overload = "out" if "out" in keywords else "default"
            if packet is None or overload not in packet.overloads():
                raise LoweringError(f"torch.compile calls {name}, which is no operation of PyTorch.")
            name = f"torch.ops.aten.{short}.{overload}"
        name = f"torch.ops.{name}" if name.startswith("aten.") else name
        if not name.startswith("torch.ops.aten."):
            raise LoweringError(f"torch.compile calls {name}, which is no operation of PyTorch's aten.")
        self._host.library.append(name.removeprefix("torch.ops."))
        return parse_expression(name)

    def _empty(self, shape: ast.expr, strides: ast.expr, dtype: ast.expr) -> ast.expr:
        """Plain `torch.empty` where the strides are those of the shape."""
        plain = isinstance(shape, ast.Tuple) and isinstance(strides, ast.Tuple) and _contiguous(shape, strides)
        what = "empty({shape}" if plain else "empty_strided({shape}, {strides}"
        text = what.format(shape=ast.unparse(shape), strides=ast.unparse(strides))
        return parse_expression(f"torch.{text}, dtype={ast.unparse(dtype)}, device={self._host.traced.device})")


def _viewed(value: ast.expr, shape: ast.expr, strides: ast.expr, offset: ast.expr | None = None) -> ast.expr:
    """The same memory in another shape; an offset counts from where the tensor begins."""
    name, layout = ast.unparse(value), f"{ast.unparse(shape)}, {ast.unparse(strides)}"
    begins = "0" if offset is None else ast.unparse(offset)
    begins = "" if begins == "0" else f", {name}.storage_offset() + {begins}"
    return parse_expression(f"{name}.as_strided({layout}{begins})")


def _contiguous(shape: ast.Tuple, strides: ast.Tuple) -> bool:
    """Whether the strides are the products of the sizes after them. Texts that differ may still be equal."""
    wanted: Any = sympy.Integer(1)
    for size, stride in zip(reversed(shape.elts), reversed(strides.elts), strict=True):
        try:
            given, number = _expression(stride), _expression(size)
        except (ValueError, SyntaxError, TypeError, sympy.SympifyError):
            return False
        if sympy.simplify(given - wanted) != 0:
            return False
        wanted = wanted * number
    return True


_SIGNS: Any = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def _expression(node: ast.expr) -> Any:
    """A size as sympy reads it; only names, integers, and + - * are read."""
    match node:
        case ast.Constant(value=int() as value):
            return sympy.Integer(value)
        case ast.Name(id=name):
            return sympy.Symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_expression(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_expression(left), _expression(right))
    return sympy.Symbol(ast.unparse(node).replace(" ", ""))


def compiled_function(
    reference: Callable[..., Any],
    cases: Sequence[Sequence[Any]],
    *,
    name: str = "",
    allow_aten: bool = False,
    templates: bool = True,
    precision: str = "ieee",
    simplify: bool = False,
    exact: bool = False,
) -> str:
    """The text of a module that computes `reference` for inputs like each of `cases` (tensors, meta ones welcome).

    `templates`: matrix products and convolutions are Inductor's Triton templates, else calls of libraries. `simplify`:
    sums of products are computed without the products, which torch.compile does not do. `exact`: sizes are numbers, as
    torch.compile has them, and every case has a branch; it takes a tenth of the time. Raises LoweringError where
    Inductor leaves operations to libraries and `allow_aten` is false, or writes what has no plain form yet.
    """
    modules: list[tuple[Branch, list[Sequence[Any]]]] = []
    functions: dict[str, str] = {}
    ordered = sorted(cases, key=lambda case: (ones(case), -_magnitude(case)))

    def written(case: Sequence[Any], fixed: frozenset[tuple[int, int]], both: bool = True) -> tuple[Traced, Branch]:
        """Without kernels that sum both ways where they have a form that is not known here."""
        begun = kernels_both_ways()
        fixed = all_sizes(case) if exact else fixed
        try:
            traced, text = generate(reference, case, fixed, templates, both, simplify)
            return traced, _branch(traced, text, allow_aten, precision == "tf32", functions)
        except LoweringError:
            if kernels_both_ways() == begun:
                raise
            return written(case, fixed, both=False)

    for (_, branch), served in branches(ordered, written):
        modules.append((branch, served))
    label = name or getattr(reference, "__name__", "reference")
    title = f"Kernels of {label} as torch.compile's back end generates them, cleaned."
    return render(title, modules, list(functions.values()))


def _magnitude(case: Sequence[Any]) -> float:
    """The log of the product of its tensors' sizes: a few rows times a very large matrix, for which templates have
    narrow tiles, are less than two large ones."""
    return sum(math.log(max(1, x.numel())) for x in case if isinstance(x, torch.Tensor))


def _branch(traced: Traced, text: str, allow_aten: bool, tf32: bool, functions: dict[str, str]) -> Branch:
    """What is printed of a trace; the functions that its kernels call are added to `functions`."""
    found = read(text)
    host = Host(traced, found)
    if host.library and not allow_aten:
        raise LoweringError(
            f"torch.compile leaves {', '.join(dict.fromkeys(host.library))} to a library. Give the task a first kernel "
            'of your own (SEED = "kernel.py"), or set ALLOW = "mixed" to keep such operations as PyTorch calls.'
        )
    cleaned = {
        name: clean(raw, [step.tail for step in host.steps if isinstance(step, Start) and step.kernel == name], tf32)
        for name, raw in found.kernels.items()
    }
    cleaned[SUM_PARTS.base] = SUM_PARTS
    branch = Branch(traced, used=host.used & set(traced.size_names))
    for step in host.steps:
        if isinstance(step, Start):
            kernel = cleaned[step.kernel]
            launch = _launch(kernel, step, traced.device)
            branch.defaults.setdefault(launch.kernel, dict(kernel.knobs))
            branch.lines.append(launch)
        else:
            branch.lines.append(step)
    for name, helper in (item for kernel in cleaned.values() for item in kernel.helpers.items()):
        if functions.setdefault(name, helper) != helper:
            raise LoweringError(f"torch.compile's kernels combine by two functions of one name, {name}.")
    return branch


def _launch(kernel: Cleaned, step: Start, device: str) -> LoweredLaunch:
    if len(step.args) != len(kernel.params):
        raise LoweringError(
            f"torch.compile's kernel {kernel.base} takes {len(kernel.params)} arguments and is given {len(step.args)}."
        )
    grid = kernel.grid(step.args, step.tail)
    args = (*step.args, *kernel.row_blocks(step.args))
    before = ""
    if step.parts:
        before = f"{step.parts} = torch.empty({kernel.parts(step.args)}, dtype=torch.float32, device={device})"
    return LoweredLaunch(f"{kernel.base}\0{kernel.text}", grid, args, tuple(kernel.knobs), before=before)
