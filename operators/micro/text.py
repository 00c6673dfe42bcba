"""Exact edits of a text: an edit replaces a span, and whatever no edit names comes back byte for byte."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

LINE_LENGTH = 110


@dataclass(frozen=True)
class Edit:
    """Characters `start` to `end` become `text`."""

    start: int
    end: int
    text: str


def splice(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made. Edits at one place are made in the order given; overlaps are an error."""
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < position:
            raise ValueError(f"two edits overlap at character {edit.start}: {edit.text[:60]!r}")
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*pieces, text[position:]])


def wrapped(items: Sequence[str], margin: int = 0) -> str:
    """Items of a list on lines of their own, indented by 4; `margin` is what the whole will be indented by."""
    return textwrap.fill(
        ", ".join(i.replace(" ", "\0") for i in items) + ",",
        LINE_LENGTH - 4 - margin,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\0", " ")


class TextMap:
    """Finds the characters of syntax-tree nodes (whose columns count UTF-8 bytes) and makes edits of them."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines(keepends=True)

    @cached_property
    def starts(self) -> list[int]:
        """The character that each line starts at, and where the text ends."""
        return list(accumulate(map(len, self.lines), initial=0))

    def offset(self, line: int, column: int) -> int:
        """Character offset of a 1-based line and a byte column."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        inside = column if text.isascii() else len(text.encode()[:column].decode())
        return self.starts[line - 1] + inside

    def span(self, node: ast.stmt | ast.expr | ast.arg) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def source_of(self, node: ast.stmt | ast.expr) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def indented(self, text: str, column: int) -> str:
        return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * column)

    def replace(self, node: ast.stmt | ast.expr | ast.arg, text: str) -> Edit:
        """A node's text by another (a statement's lines are given without indentation; they get the node's)."""
        start, end = self.span(node)
        if isinstance(node, ast.stmt):
            text = self.indented(text, node.col_offset).lstrip(" ")
        return Edit(start, end, text)

    def replace_range(self, first: ast.stmt, last: ast.stmt, text: str) -> Edit:
        """Statements of one suite by others, trailing comments included; empty text deletes them."""
        start = self.starts[first.lineno - 1]
        end = self.starts[last.end_lineno or last.lineno]
        return Edit(start, end, self.indented(text, first.col_offset) + "\n" if text.strip() else "")

    def delete(self, statement: ast.stmt) -> Edit:
        """Only where its suite keeps another statement."""
        return self.replace_range(statement, statement, "")

    def insert_before(self, statement: ast.stmt, text: str) -> Edit:
        start = self.starts[statement.lineno - 1]
        return Edit(start, start, self.indented(text, statement.col_offset) + "\n")

    def insert_after(self, statement: ast.stmt, text: str) -> Edit:
        assert statement.end_lineno is not None
        at = self.starts[statement.end_lineno]
        line = self.lines[statement.end_lineno - 1]
        return Edit(at, at, ("" if line.endswith("\n") else "\n") + self.indented(text, statement.col_offset) + "\n")

    def add_arguments(self, call: ast.Call, text: str) -> Edit:
        """Append `a=1, b=2` to a call's arguments."""
        last = max([*call.args, *[k.value for k in call.keywords]], key=lambda n: self.span(n)[1], default=None)
        if last is None:
            end = self.span(call)[1] - 1
            return Edit(end, end, text)
        at = self._past_parentheses(self.span(last)[1], self.span(call)[1] - 1)
        return Edit(at, at, f", {text}")

    def add_parameters(self, node: ast.FunctionDef, text: str) -> Edit:
        """Append `name, NAME: tl.constexpr` to a function's parameters. Behind a default they get one too. No launch
        uses it: each passes what is appended."""
        if node.args.defaults:
            text = ", ".join(f"{name} = None" if ":" in name else f"{name}=None" for name in text.split(", "))
        given = [part for part in ast.walk(node.args) if isinstance(part, ast.arg | ast.expr)]
        spans = [(part.end_lineno or part.lineno, part.end_col_offset or 0) for part in given]
        if not spans:
            at = self.text.index("(", self.offset(node.lineno, node.col_offset)) + 1
            return Edit(at, at, text)
        at = self.offset(*max(spans))
        return Edit(at, at, f", {text}")

    def insert_before_function(self, node: ast.FunctionDef, text: str) -> Edit:
        at = self.starts[self._first_line(node) - 1]
        return Edit(at, at, text + "\n")

    def delete_function(self, node: ast.FunctionDef) -> Edit:
        """The function, its decorators, the comments right above it, and the blank lines after it."""
        first, last = self._first_line(node), node.end_lineno or node.lineno
        while last < len(self.lines) and not self.lines[last].strip():
            last += 1
        return Edit(self.starts[first - 1], self.starts[last], "")

    def _first_line(self, node: ast.FunctionDef) -> int:
        first = min([node.lineno, *[d.lineno for d in node.decorator_list]])
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
        return first

    def _past_parentheses(self, at: int, limit: int) -> int:
        """Past closing parentheses that belong to the argument itself: `f((a + b))`."""
        position = at
        while position < limit and self.text[position] in ") \n":
            position += 1
            if self.text[position - 1] == ")":
                at = position
        return at
