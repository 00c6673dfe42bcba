"""Parts of a prompt, each within a budget of tokens and cut by a rule of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BYTES_A_TOKEN = 4
"""An estimate that is near for English and code with every tokeniser in use, and needs none of them."""


def tokens(text: str) -> int:
    """Estimated tokens of a text: its UTF-8 bytes / 4, rounded up."""
    return -(-len(text.encode()) // BYTES_A_TOKEN)


@dataclass(frozen=True)
class Budgets:
    """Tokens that each part may take. What a part does when it does not fit stands behind it."""

    task: int = 3000  # the middle of the reference goes; cases go from the end, search cases last
    hardware: int = 400  # lines go from the end
    api: int = 1500  # lines go from the end
    source: int = 8000  # functions that the strategy does not name shrink to their signatures
    evidence: int = 1000  # the fastest cases and the smallest kernels go first
    inspirations: int = 4000  # shared evenly; the middle of a difference goes
    tried: int = 700  # the oldest go first
    paid: int = 400  # strategies that moved least go first
    trail: int = 400  # the oldest go first
    profile: int = 800  # lines go from the end
    knowledge: int = 1500  # whole passages go, the least fitting first
    guide: int = 1800  # lines go from the end
    offers: int = 2500  # none may go: summaries do, last offers first


@dataclass(frozen=True)
class Part:
    """A titled part of a prompt; one without text is left out."""

    title: str
    text: str


def joined(parts: Sequence[Part]) -> str:
    return "\n\n".join(f"## {part.title}\n{part.text.strip()}" for part in parts if part.text.strip())


def first_lines(text: str, budget: int) -> str:
    """The first whole lines that fit, and how many were left out."""
    if budget <= 0 or not text.strip():
        return ""
    if tokens(text) <= budget:
        return text
    lines = text.split("\n")
    kept = _fitting(lines, budget - tokens(_left_out(len(lines))))
    return "\n".join([*lines[:kept], _left_out(len(lines) - kept)])


def one_line(text: str, budget: int) -> str:
    """The text in one line, its end left out where it does not fit."""
    line = " ".join(text.split())
    if tokens(line) <= budget:
        return line
    room = max(budget * BYTES_A_TOKEN - 4, 0)
    return line.encode()[:room].decode(errors="ignore") + "…" if room else ""


def without_middle(text: str, budget: int) -> str:
    """The first two thirds of the budget from the start, the rest from the end; what was between is named."""
    if budget <= 0 or not text.strip():
        return ""
    if tokens(text) <= budget:
        return text
    lines = text.split("\n")
    room = max(budget - tokens(_left_out(len(lines))) - 1, 0)
    head = _fitting(lines, room * 2 // 3)
    tail = min(_fitting(lines[::-1], room - room * 2 // 3), len(lines) - head)
    return "\n".join([*lines[:head], _left_out(len(lines) - head - tail), *lines[len(lines) - tail :]])


def rows(header: Sequence[str], entries: Sequence[str], budget: int) -> str:
    """`header` lines and the first entries that fit, one a line, and how many were left out."""
    if budget <= 0 or not entries:
        return ""
    room = budget - tokens("\n".join(header))
    kept = _fitting(entries, room)
    if kept < len(entries):
        kept = _fitting(entries, room - tokens(_left_out(len(entries))))
        return "\n".join([*header, *entries[:kept], _left_out(len(entries) - kept)])
    return "\n".join([*header, *entries])


def _fitting(lines: Sequence[str], budget: int) -> int:
    """How many of the first lines fit."""
    size = 0
    for number, line in enumerate(lines):
        size += len(line.encode()) + 1
        if size > budget * BYTES_A_TOKEN:
            return number
    return len(lines)


def _left_out(count: int) -> str:
    return f"[{count} more left out]"
