"""The text of a task file as agents may see it: without its confirm cases, which are hidden from whoever proposes."""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_module

_KIND = "confirm"


def public_text(text: str) -> str:
    """`text` with the values of confirm cases emptied.

    `CASES = {..., "confirm": VALUE}` (or `dict(..., confirm=VALUE)`) loses VALUE; any other module-level statement
    outside functions that names the kind is left out whole.
    """
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    spans: list[tuple[int, int, int, int, bytes]] = []
    for statement in parse_module(text).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            continue
        if not _mentions(statement):
            continue
        values = _hidden_values(getattr(statement, "value", None))
        nodes: list[ast.expr | ast.stmt] = [*values] or [statement]
        spans += [(*_span(node), b"[]" if values else b"pass") for node in nodes]
    for first, start, last, end, filler in sorted(spans, reverse=True):
        tail = lines[last][end:]
        lines[first : last + 1] = [lines[first][:start] + filler + tail]
    return b"".join(lines).decode()


def _mentions(statement: ast.stmt) -> bool:
    """Whether the statement names the kind: as a string (but a docstring may), or as a keyword."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    return any(_KIND in (getattr(node, "value", None), getattr(node, "arg", None)) for node in ast.walk(statement))


def _hidden_values(value: ast.expr | None) -> list[ast.expr]:
    """The expressions that hold the confirm cases; empty where they cannot be told from the rest."""
    match value:
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return [item for key, item in pairs if isinstance(key, ast.Constant) and key.value == _KIND]
        case ast.Call(keywords=keywords):
            return [keyword.value for keyword in keywords if keyword.arg == _KIND]
    return []


def _span(node: ast.expr | ast.stmt) -> tuple[int, int, int, int]:
    """First line, first byte, last line, end byte; lines from 0."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.lineno - 1, node.col_offset, node.end_lineno - 1, node.end_col_offset
