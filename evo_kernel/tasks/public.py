"""The text of a task file as agents may see it: without its confirm cases, which are hidden from whoever proposes."""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_module

_KIND = "confirm"


def public_text(text: str) -> str:
    """`text` with the values of confirm cases emptied.

    Handles `CASES = {..., "confirm": VALUE}` and `CASES["confirm"] = VALUE` by cutting VALUE out; any other
    module-level statement outside functions that names the kind is left out whole.
    """
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    spans: list[tuple[int, int, int, int, bytes]] = []
    for statement in parse_module(text).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            continue
        if not _mentions(statement):
            continue
        values = _hidden_values(statement)
        nodes: list[ast.AST] = list(values) or [statement]
        spans += [(*_span(node), b"[]" if values else b"pass") for node in nodes]
    for first, start, last, end, filler in sorted(spans, reverse=True):
        tail = lines[last][end:]
        lines[first : last + 1] = [lines[first][:start] + filler + tail]
    return b"".join(lines).decode()


def _mentions(statement: ast.stmt) -> bool:
    """Whether the statement names the kind: as a string (but a docstring may), or as a keyword."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant) and node.value == _KIND:
            return True
        if isinstance(node, ast.keyword) and node.arg == _KIND:
            return True
    return False


def _hidden_values(statement: ast.stmt) -> list[ast.expr]:
    """The expressions that hold the confirm cases; empty where they cannot be told from the rest."""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Dict):
        return [
            item
            for key, item in zip(value.keys, value.values, strict=True)
            if isinstance(key, ast.Constant) and key.value == _KIND
        ]
    if isinstance(value, ast.Call):
        return [keyword.value for keyword in value.keywords if keyword.arg == _KIND]
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        return [statement.value]
    return []


def _span(node: ast.AST) -> tuple[int, int, int, int]:
    """First line, first byte, last line, end byte; lines from 0."""
    assert isinstance(node, (ast.expr, ast.stmt))
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.lineno - 1, node.col_offset, node.end_lineno - 1, node.end_col_offset
