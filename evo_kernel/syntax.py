"""The one place where Python text becomes a syntax tree, and text a literal of Python."""

from __future__ import annotations

import ast
import threading
from typing import Any

# CPython 3.11 counts the depth of a conversion in one place for all threads: a thread switch in the middle of one (a gc
# callback suffices) raises `SystemError: AST constructor recursion depth mismatch` (gh-106905).
_parsing = threading.Lock()


def parse_module(text: str) -> ast.Module:
    """The tree of a module's text. Thread-safe. Raises SyntaxError, and ValueError on NUL bytes."""
    return _parsed(text, "exec")


def parse_expression(text: str) -> ast.expr:
    """The tree of one expression. Thread-safe. Raises as `parse_module` does."""
    return _parsed(text, "eval").body


def _parsed(text: str, mode: str) -> Any:
    try:
        with _parsing:
            return ast.parse(text, mode=mode)
    except MemoryError:  # how CPython 3.11's parser says that its own stack is full: a fault of the text
        raise SyntaxError("too deeply nested, or too long a line of words, for Python's parser") from None


def quoted(text: str) -> str:
    """A Python literal of a module's text that people can read."""
    plain = "\\" not in text and "'''" not in text and not text.endswith("'")
    return f"'''{text}'''" if plain else repr(text)
