"""The one place where Python text becomes a syntax tree."""

from __future__ import annotations

import ast
import threading

# CPython 3.11 counts the depth of a conversion in one place for all threads: a thread switch in the middle of one (a gc
# callback suffices) raises `SystemError: AST constructor recursion depth mismatch` (gh-106905).
_parsing = threading.Lock()


def parse_module(text: str) -> ast.Module:
    """The tree of a module's text. Thread-safe. Raises SyntaxError, and ValueError on NUL bytes."""
    with _parsing:
        return ast.parse(text)


def parse_expression(text: str) -> ast.expr:
    """The tree of one expression. Thread-safe. Raises as `parse_module` does."""
    with _parsing:
        return ast.parse(text, mode="eval").body
