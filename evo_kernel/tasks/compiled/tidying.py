"""What Inductor's kernels say twice or for nothing, taken out: values that nothing reads, casts to the same dtype."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from typing import Any


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
