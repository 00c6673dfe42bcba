"""The short form of an edit: numbered lines. Made for models with a context of a thousand tokens.

The source is shown with `@N` and a line break before each line, counted from 1. An edit is a list of hunks, each a
header and the new lines, which carry no numbers:

    @12@14      lines 12 to 14 become what follows
    @20@20      line 20 goes (nothing follows)
    @3+         what follows stands after line 3 (@0+: before the first)

Numbers are those of the source as it was shown; hunks stand in order and do not overlap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

HEADER = re.compile(r"@(\d{1,4})(?:@(\d{1,4})|(\+))")
MOST_HUNKS = 200


class BadLines(ValueError):
    """An edit that does not fit its source; the message says why."""


@dataclass(frozen=True)
class Hunk:
    """Lines `first` to `last` (from 1, both included) become `lines`; an insertion has last = first - 1."""

    first: int
    last: int
    lines: tuple[str, ...]


def numbered(text: str) -> str:
    """The source as a model is shown it."""
    return "".join(f"@{number}\n{line}" for number, line in enumerate(text.rstrip("\n").split("\n"), start=1))


def written(parent: str, child: str) -> str:
    """The edit that makes `child` of `parent`; empty where they are the same."""
    old, new = parent.rstrip("\n").split("\n"), child.rstrip("\n").split("\n")
    said: list[str] = []
    for kind, low, high, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        said.append(f"@{low}+" if kind == "insert" else f"@{low + 1}@{high}")
        said.extend(new[start:stop])
    return "\n".join(said)


def is_edit(text: str) -> bool:
    """Whether a completion is meant as this form: its first line is a header."""
    return HEADER.fullmatch(text.strip("\n").split("\n", 1)[0].rstrip()) is not None


def parsed(text: str) -> tuple[Hunk, ...]:
    """Raises BadLines."""
    hunks: list[Hunk] = []
    lines: list[str] = []
    for line in text.strip("\n").split("\n"):
        found = HEADER.fullmatch(line.rstrip())
        if found is None:
            if not hunks:
                raise BadLines(f"an edit starts with a header such as `@12@14` or `@3+`, not {line[:40]!r}")
            lines.append(line)
            continue
        if hunks:
            hunks[-1] = Hunk(hunks[-1].first, hunks[-1].last, tuple(lines))
        first = int(found[1]) + (found[3] is not None)
        last = first - 1 if found[3] else int(found[2])
        if found[3] is None and last < first:
            raise BadLines(f"lines {first} to {last} are no range")
        hunks.append(Hunk(first, last, ()))
        lines = []
        if len(hunks) > MOST_HUNKS:
            raise BadLines(f"an edit has at most {MOST_HUNKS} hunks")
    hunks[-1] = Hunk(hunks[-1].first, hunks[-1].last, tuple(lines))
    return tuple(hunks)


def applied(text: str, parent: str) -> str:
    """The child that an edit makes of `parent`. Raises BadLines."""
    old = parent.rstrip("\n").split("\n")
    new: list[str] = []
    at = 0  # lines of the parent that are behind us
    for hunk in parsed(text):
        if hunk.first - 1 < at or max(hunk.last, hunk.first - 1) > len(old) or hunk.first < 1:
            raise BadLines(
                f"lines {hunk.first} to {hunk.last} are out of order, or not in a source of {len(old)} lines"
            )
        new += [*old[at : hunk.first - 1], *hunk.lines]
        at = hunk.last
    return "\n".join([*new, *old[at:]]) + "\n"
