"""Inductor's generated module, read: its kernels as syntax trees with what their decorators say, and its host code.

`tidied` and `used` take out what the kernels say twice or for nothing: casts to the same dtype, values that nothing
reads.
"""

from __future__ import annotations

import ast
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo_kernel.errors import LoweringError
from evo_kernel.syntax import parse_module

CONSTANTS = "Make them inputs of the task, or do without --first compiled: lowering takes up to 64 constants."
"""What to do where a reference holds tensors of its own."""


@dataclass(frozen=True)
class Raw:
    """One kernel as Inductor writes it."""

    name: str
    kind: str  # of the heuristics it is decorated with: pointwise, reduction, persistent_reduction, template
    function: ast.FunctionDef
    combines: tuple[ast.FunctionDef, ...]  # functions that its scans and reductions combine by
    size_hints: Mapping[str, int]  # iteration dimension ("x", "y", "r0_") → size of the traced case, a power of two
    hint: str  # of a reduction: INNER, OUTER, DEFAULT
    tiles: str  # of a pointwise kernel: SQUARE, DEFAULT
    facts: Mapping[str, Any]  # what Inductor counted: loads, reductions, ...
    grid: str  # name of its kind of grid
    warps: int | None  # a template's
    stages: int | None
    double: bool  # whether anything is float64


@dataclass(frozen=True)
class GeneratedModule:
    """The whole module."""

    kernels: Mapping[str, Raw]
    host: tuple[ast.stmt, ...]  # of `call`, without the checks and device guards around it


def read(text: str) -> GeneratedModule:
    """Take Inductor's text apart. Raises LoweringError where it holds what is no Triton kernel."""
    tree = parse_module(text)
    kernels = {raw.name: raw for raw in _kernels(tree)}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    if len(calls) != 1:
        raise LoweringError("torch.compile's text has no function `call`; this version of PyTorch writes it otherwise.")
    return GeneratedModule(kernels, tuple(_flat(calls[0].body)))


def _kernels(tree: ast.Module) -> Iterator[Raw]:
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="async_compile"), attr=language), args=[_, given, *_]
                ),
            ):
                if language != "triton" or not isinstance(given, ast.Constant) or not isinstance(given.value, str):
                    raise LoweringError(
                        "torch.compile leaves a part of the reference to the CPU: what follows from tensors that are "
                        f"no inputs (torch.tensor(...), constants). {CONSTANTS}"
                    )
                yield _raw(name, given.value)


def _raw(name: str, text: str) -> Raw:
    functions = [node for node in parse_module(text).body if isinstance(node, ast.FunctionDef)]
    function, combines = functions[-1], functions[:-1]
    decorator = next((d for d in function.decorator_list if isinstance(d, ast.Call)), None)
    if decorator is None:
        raise LoweringError(f"torch.compile's kernel {name} says nothing of its grid; its form is not known here.")
    said = {keyword.arg: keyword.value for keyword in decorator.keywords}
    facts = _literals(said.get("inductor_meta"))
    return Raw(
        name,
        ast.unparse(decorator.func).rpartition(".")[2],
        function,
        tuple(combines),
        _literal(said.get("size_hints"), {}),
        _member(said.get("reduction_hint")),
        _member(said.get("tile_hint")),
        facts,
        facts.get("grid_type", ""),
        _literal(said.get("num_warps"), None),
        _literal(said.get("num_stages"), None),
        "fp64" in text or "tl.float64" in text,
    )


def _literal(node: ast.expr | None, default: Any) -> Any:
    return default if node is None else ast.literal_eval(node)


def _member(node: ast.expr | None) -> str:
    """The name of an enumeration's member."""
    return "DEFAULT" if node is None else ast.unparse(node).rpartition(".")[2]


def _literals(node: ast.expr | None) -> dict[str, Any]:
    """The entries of a dictionary whose values are literals; it holds other things too."""
    found = {}
    for name, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
        with contextlib.suppress(ValueError):
            found[_literal(name, "")] = ast.literal_eval(value)
    return found


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements one after the other; device guards are opened."""
    for node in body:
        if isinstance(node, ast.With):
            yield from _flat(node.body)
        else:
            yield node


def tidied(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Without casts of a value to the dtype that it was just cast to, and without `[:]` of one dimension.

    Only names that are assigned once count: each stands for one value wherever it is read.
    """
    module = ast.Module(list(body), [])
    times = Counter(n.id for n in ast.walk(module) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    dtypes: dict[str, str] = {}
    same: dict[str, str] = {}  # name → the name that it repeats
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if times[name] == 1:
                if (dtype := _cast_to(value)) is not None:
                    dtypes[name] = dtype
    for node in ast.walk(module):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=given), attr="to")),
            ) if name in dtypes and dtypes.get(given) == dtypes[name]:
                same[name] = given
    return _Renamed(same).visit(module).body


def _cast_to(node: ast.expr) -> str | None:
    """The dtype that an expression casts to, or None."""
    match node:
        case ast.Call(func=ast.Attribute(attr="to"), args=[dtype], keywords=[]):
            return ast.unparse(dtype)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="cast"), args=[_, dtype], keywords=[]):
            return ast.unparse(dtype)
    return None


class _Renamed(ast.NodeTransformer):
    def __init__(self, same: dict[str, str]) -> None:
        self._same = same

    def visit_Name(self, node: ast.Name) -> Any:
        name = node.id
        while isinstance(node.ctx, ast.Load) and name in self._same:
            name = self._same[name]
        return ast.Name(name, node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        match node.slice:
            case ast.Slice(lower=None, upper=None, step=None):
                return node.value
        return node


def used(body: list[ast.stmt]) -> list[ast.stmt]:
    """Without assignments that nothing reads."""
    while True:
        module = ast.Module(body, [])
        read = {n.id for n in ast.walk(module) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        dropped = _Unread(read)
        body = dropped.visit(module).body
        if not dropped.any:
            return body


class _Unread(ast.NodeTransformer):
    def __init__(self, read: set[str]) -> None:
        self._read, self.any = read, False

    def visit_Assign(self, node: ast.Assign) -> Any:
        match node.targets:
            case [ast.Name(id=name)] if name not in self._read:
                self.any = True
                return None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if isinstance(node.target, ast.Name) and node.target.id not in self._read:
            self.any = True
            return None
        return node
