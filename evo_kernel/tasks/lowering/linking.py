"""Texts with definitions in common, in one module: equal ones are written once, others get names of their own."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from evo_kernel.syntax import parse_module


@dataclass(frozen=True)
class _Definition:
    """A statement at the top of a text, from the end of the one before it on."""

    text: str
    name: str  # of what it defines; empty for an import, which has one name everywhere
    uses: tuple[tuple[int, str], ...]  # where in its text which word stands, as Python reads it


def link(functions: dict[str, str], text: str, taken: Collection[str]) -> dict[str, str]:
    """Add what a text defines to `functions` (name → definition), under names that are not taken; these, by its own.

    A definition that is there already is used, if what it calls is too. Texts are ASCII.
    """
    definitions = _definitions(text)
    names: dict[str, str] = {}

    def named(own: str) -> str:
        if own not in names:
            one = definitions[own]
            others = {word: named(word) for _, word in one.uses if word in definitions and word != own}
            spellings = (own if count == 1 or not one.name else f"{own}_{count}" for count in itertools.count(1))
            tried = ((name, _renamed(one, others | {own: name})) for name in spellings)
            names[own], new = next(
                (name, new) for name, new in tried if name not in taken and functions.get(name, new) == new
            )
            functions[names[own]] = new
        return names[own]

    return {own: named(own) for own in definitions}


def _definitions(text: str) -> dict[str, _Definition]:
    """By name; imports by their text."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    found: dict[str, _Definition] = {}
    begin = 0
    for node in parse_module(text).body:
        assert node.end_lineno is not None and node.end_col_offset is not None
        end = starts[node.end_lineno - 1] + node.end_col_offset
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        name = node.name if isinstance(node, ast.FunctionDef) else target.id if isinstance(target, ast.Name) else ""
        uses = [(starts[line - 1] + column - begin, word) for line, column, word in _words(node)]
        if isinstance(node, ast.FunctionDef):
            uses.append((text.index(f"def {name}(", begin) + len("def ") - begin, name))
        found[name or text[begin:end].strip()] = _Definition(text[begin:end], name, tuple(uses))
        begin = end
    return found


def _words(node: ast.stmt) -> list[tuple[int, int, str]]:
    """Names from outside a definition: line, column and word. Of an assignment, its own too."""
    own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    every = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    if isinstance(node, ast.FunctionDef):
        own |= {one.id for one in every if isinstance(one.ctx, ast.Store)}
        own |= {one.name for one in ast.walk(node) if isinstance(one, ast.FunctionDef)} - {node.name}
    return [(one.lineno, one.col_offset, one.id) for one in every if one.id not in own]


def _renamed(one: _Definition, names: Mapping[str, str]) -> str:
    text = one.text
    for place, word in sorted(one.uses, reverse=True):
        text = text[:place] + names.get(word, word) + text[place + len(word) :]
    return text
