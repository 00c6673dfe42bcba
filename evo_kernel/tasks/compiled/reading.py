"""Inductor's generated module, read: its kernels as syntax trees with what their decorators say, and its host code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
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
    grid: str  # name of its kind of grid
    warps: int | None  # a template's
    stages: int | None


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
    meta = said.get("inductor_meta")
    return Raw(
        name,
        ast.unparse(decorator.func).rpartition(".")[2],
        function,
        tuple(combines),
        _literal(said.get("size_hints"), {}),
        ast.unparse(said["reduction_hint"]).rpartition(".")[2] if "reduction_hint" in said else "DEFAULT",
        _entry(meta, "grid_type"),
        _literal(said.get("num_warps"), None),
        _literal(said.get("num_stages"), None),
    )


def _literal(node: ast.expr | None, default: Any) -> Any:
    return default if node is None else ast.literal_eval(node)


def _entry(node: ast.expr | None, key: str) -> str:
    """A string of a dictionary that holds other things than literals too."""
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    found = (value for name, value in pairs if isinstance(name, ast.Constant) and name.value == key)
    return next((str(value.value) for value in found if isinstance(value, ast.Constant)), "")


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements one after the other; device guards are opened."""
    for node in body:
        if isinstance(node, ast.With):
            yield from _flat(node.body)
        else:
            yield node
