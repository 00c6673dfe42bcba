"""Helpers on syntax trees: names, calls, spelling, copies with substitutions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from evo_kernel.syntax import parse_expression, walk

Node = TypeVar("Node", bound=ast.AST)

KEEPS_NAN = "propagate_nan=tl.PropagateNan.ALL"
"""How `tl.maximum` and `tl.minimum` are told to be NaN where an operand is; without it they drop NaN."""
LARGER_OR_NAN = "larger_or_nan"
"""The jitted function of generated modules by which `tl.reduce` takes such a maximum."""


def spell(node: ast.AST) -> str:
    """The expression or statement in canonical spelling: equal spelling means equal syntax."""
    return ast.unparse(node)


def called(node: ast.AST) -> str:
    """Dotted name of what a call calls (`tl.load`), or "" when `node` is no plain call."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return ""
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return f"{node.func.value.id}.{node.func.attr}"
    return node.func.id if isinstance(node.func, ast.Name) else spell(node.func)


def names_read(*nodes: ast.AST) -> set[str]:
    """Names whose value the nodes use (an augmented assignment reads its target)."""
    found = set()
    for node in nodes:
        for part in walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                found.add(part.id)
            elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
                found.add(part.target.id)
    return found


def names_written(*nodes: ast.AST) -> set[str]:
    """Names that the nodes assign, loop targets included."""
    parts = (part for node in nodes for part in walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument by keyword or position; None when it is not given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and position < len(call.args):
        return call.args[position]
    return None


def int_value(node: ast.AST | None) -> int | None:
    """The value of an integer literal, else None."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def mapped(node: Node, change: Callable[[ast.AST], ast.AST | None]) -> Node:
    """A copy of a syntax tree. Where `change` gives a node for a part, that stands there, and nothing in it is asked.

    (Faster than copy.deepcopy, which follows every attribute.)
    """
    if (made := change(node)) is not None:
        return made  # type: ignore[return-value]
    fields = {
        name: [mapped(item, change) if isinstance(item, ast.AST) else item for item in value]
        if isinstance(value, list)
        else (mapped(value, change) if isinstance(value, ast.AST) else value)
        for name, value in ast.iter_fields(node)
    }
    return ast.copy_location(type(node)(**fields), node)


def mapped_call(call: ast.Call, change: Callable[[ast.AST], ast.AST | None]) -> ast.Call:
    """The same of the parts of a call."""
    func, arguments = mapped(call.func, change), [mapped(argument, change) for argument in call.args]
    return ast.Call(func, arguments, [mapped(keyword, change) for keyword in call.keywords])


def assignment(target: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(target, ast.Store())], value, lineno=0)


def copy_of(node: Node) -> Node:
    return mapped(node, lambda part: None)


def substitute(node: Node, names: Mapping[str, ast.expr | str]) -> Node:
    """A copy of `node` with reads of names replaced by expressions (given as trees or text)."""
    trees = {name: parse_expression(value) if isinstance(value, str) else value for name, value in names.items()}

    def change(part: ast.AST) -> ast.expr | None:
        return trees.get(part.id) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) else None

    return mapped(node, change)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a suite and of the suites in it, in text order."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, name, ()))


def own_part(statement: ast.stmt) -> ast.AST:
    """What a statement itself assigns, without the statements inside it."""
    return ast.Module([], []) if hasattr(statement, "body") else statement


def fresh_name(wish: str, taken: Iterable[str]) -> str:
    """`wish`, or `wish_2`, `wish_3` ... when it is taken (`x_2_ptr` for `x_ptr`, so that it stays a pointer's name)."""
    used = set(taken)
    if wish not in used:
        return wish
    tail = "_ptr" if wish.endswith("_ptr") else ""
    stem, number = re.sub(r"_\d+$", "", wish.removesuffix(tail)), 2
    while (name := f"{stem}_{number}{tail}") in used:
        number += 1
    return name


def self_root(node: ast.expr) -> str | None:
    """The first name of a chain like `x.view(-1)` or `x`."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
