"""Whether a tree holds text of a benchmark: what is trained on it must not have seen what it is compared on.

Texts are compared as lines of code, without comments, docstrings and spacing: a tree is contaminated where WINDOW
successive lines of a state or a reference also stand, one after another, in a file of the benchmark. Imports are left
out, for they are alike everywhere. That an *operation* (a softmax) is in both is not contamination in this sense, and
cannot be avoided; a figure on a benchmark says so where it matters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evo_kernel.syntax import parse_module
from operators.learning.tree import Tree

WINDOW = 6
"""Lines: shorter runs (loads, an accumulator, a store) are the same in unrelated kernels."""


@dataclass(frozen=True)
class Overlap:
    """A problem of the tree and a file of the benchmark with common code, and the first line of it."""

    problem: str
    file: str
    line: str


def overlaps(tree: Tree, folder: Path) -> list[Overlap]:
    """The first of each problem with each Python file under `folder` (or with that file), sorted."""
    theirs: dict[tuple[str, ...], str] = {}
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    for path in files:
        for window in _windows(path.read_text(encoding="utf-8", errors="replace")):
            theirs.setdefault(window, str(path))
    found: dict[tuple[str, str], Overlap] = {}
    for problem, text in _texts(tree):
        for window in _windows(text):
            if (file := theirs.get(window)) is not None:
                found.setdefault((problem, file), Overlap(problem, file, window[0]))
    return [found[key] for key in sorted(found)]


def _texts(tree: Tree) -> Iterable[tuple[str, str]]:
    yield from ((name, one.card.reference) for name, one in tree.problems.items())
    yield from dict.fromkeys((one.task, one.text) for one in tree.states.values())


def _windows(text: str) -> Iterable[tuple[str, ...]]:
    lines = code_lines(text)
    return (tuple(lines[at : at + WINDOW]) for at in range(len(lines) - WINDOW + 1))


def code_lines(text: str) -> list[str]:
    """Lines of code, spelled alike; no comments, docstrings and imports. None of what is no Python."""
    try:
        tree = parse_module(text)
    except (SyntaxError, ValueError):
        return []
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not _says_nothing(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return [line.strip() for line in ast.unparse(tree).splitlines() if line.strip()]


def _says_nothing(node: ast.stmt) -> bool:
    """Whether it says nothing about whose it is."""
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return alone or isinstance(node, ast.Import | ast.ImportFrom)
