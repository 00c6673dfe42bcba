"""The one place where Python text becomes a syntax tree, and text a literal of Python."""

from __future__ import annotations

import ast
import threading
from typing import Any

# CPython 3.11 counts the depth of a conversion in one place for all threads: a thread switch in the middle of one (a gc
# callback suffices) raises `SystemError: AST constructor recursion depth mismatch` (gh-106905).
_parsing = threading.Lock()

MAX_DEPTH = 150
"""Levels of nodes below a module. Python's own modules reach 33. `ast.unparse` takes up to six frames a level (a dict),
of the thousand that Python allows."""


def parse_module(text: str) -> ast.Module:
    """The tree of a module's text. Thread-safe. Raises SyntaxError, also where it is nested deeper than MAX_DEPTH, and
    ValueError on NUL bytes."""
    return _parsed(text, "exec")


def parse_expression(text: str) -> ast.expr:
    """The tree of one expression. Thread-safe. Raises as `parse_module` does."""
    return _parsed(text, "eval").body


def _parsed(text: str, mode: str) -> Any:
    try:
        with _parsing:
            tree = ast.parse(text, mode=mode)
    except (MemoryError, RecursionError):  # CPython 3.11's parser: its own stack is full, by a fault of the text
        raise SyntaxError("too deeply nested, or too long a line of words, for Python's parser") from None
    _refuse_depth(tree)
    return tree


def _refuse_depth(tree: ast.AST) -> None:
    """Raises SyntaxError where whoever descends into the tree would run out of Python's stack."""
    level, line = [tree], 1
    for _ in range(MAX_DEPTH + 1):
        line = getattr(level[0], "lineno", line)
        level = [below for node in level for below in _children(node)]
        if not level:
            return
    raise SyntaxError(f"nested deeper than {MAX_DEPTH} levels: give parts of it names", ("the text", line, 0, ""))


def walk(node: ast.AST) -> list[ast.AST]:
    """The nodes of a tree in the order of `ast.walk`, which takes twice as long."""
    found = [node]
    for part in found:
        found += _children(part)
    return found


def _children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def quoted(text: str) -> str:
    """A Python literal of a module's text that people can read."""
    plain = "\\" not in text and "'''" not in text and not text.endswith("'")
    return f"'''{text}'''" if plain else repr(text)
