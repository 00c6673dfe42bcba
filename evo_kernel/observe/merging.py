"""An edit taken back out of a text that went on: a merge of three texts, line by line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def without_edit(texts: Sequence[str], edit: int) -> str | None:
    """The last text without the change from `texts[edit - 1]` to `texts[edit]`; None where later changes need it."""
    return merge(texts[edit], texts[-1], texts[edit - 1])


def merge(base: str, one: str, other: str) -> str | None:
    """Both changes of a base in one text; None where they touch the same lines, or lines side by side."""
    lines = base.splitlines(keepends=True)
    changes = sorted([*_changes(lines, one), *_changes(lines, other)])
    merged: list[str] = []
    at, last = -1, None  # where the change before ended
    for change in changes:
        begin, end, new = change
        if change == last:
            continue  # both made the same change
        if begin <= at:
            return None
        merged += [*lines[max(at, 0) : begin], *new]
        at, last = end, change
    return "".join([*merged, *lines[max(at, 0) :]])


def _changes(lines: Sequence[str], text: str) -> list[tuple[int, int, list[str]]]:
    """(first line, line after the last, new lines) of every change of a text against lines."""
    new = text.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, lines, new, autojunk=False)
    return [(i, j, new[k:m]) for kind, i, j, k, m in matcher.get_opcodes() if kind != "equal"]
