"""What changed between two sources, line by line."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from evo_kernel.dashboard.formatting import lines_of

LONGEST = 3000  # lines; beyond that comparing may take minutes


@dataclass(frozen=True)
class DiffLine:
    kind: str  # "same", "added", "gone", "gap"
    text: str


def diff_lines(before: str, after: str) -> list[DiffLine] | None:
    """With three lines around each change; empty when nothing changed, None when a text is too long to compare."""
    old, new = lines_of(before), lines_of(after)
    if len(old) > LONGEST or len(new) > LONGEST or max(len(before), len(after)) > 100 * LONGEST:
        return None
    kinds = {"+": "added", "-": "gone", " ": "same", "@": "gap"}
    told = difflib.unified_diff(old, new, lineterm="", n=3)
    return [DiffLine(kinds[line[0]], line) for number, line in enumerate(told) if number >= 2]
