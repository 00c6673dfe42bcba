"""Markdown into passages: a passage is a section, or a part of a long one, with the place it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PASSAGE_CHARS = 2800  # a longer section is split between paragraphs

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """A piece of knowledge and where it can be looked up."""

    source: str  # "evo-kernel/wgmma.md#shapes", "triton-3.9.0/triton.language#dot", "FOLDER/FILE.md#heading"
    title: str  # the headings above it, outermost first: "wgmma › Which products become wgmma"
    text: str  # Markdown, without its heading


def tokens_of(text: str) -> int:
    """About how many tokens a language model sees, rather too many than too few: three bytes a token."""
    return -(-len(text.encode()) // 3)


def passages_of(text: str, file: str) -> Iterator[Passage]:
    """The passages of a Markdown file (plain text is one section). HTML comments are left out."""
    headings: list[tuple[int, str]] = []
    seen: dict[str, int] = {}
    for level, heading, body in _sections(_COMMENT.sub("", text.replace("\r\n", "\n"))):
        if level:
            headings = [(depth, name) for depth, name in headings if depth < level] + [(level, heading)]
        title = " › ".join(name for _, name in headings) or file.rsplit("/", 1)[-1]
        anchor = _slug(headings[-1][1]) if headings else ""
        count = seen[anchor] = seen.get(anchor, -1) + 1
        place = f"{file}#{anchor}" + (f"-{count}" if count else "") if anchor else file
        for part in _parts(body.strip()):
            yield Passage(place, title, part)


def fit(text: str, budget_tokens: int) -> str:
    """As many whole paragraphs of a text as the budget holds, with a mark where something was left out."""
    if tokens_of(text) <= budget_tokens:
        return text
    kept: list[str] = []
    for paragraph in _paragraphs(text):
        if tokens_of("\n\n".join([*kept, paragraph, "[…]"])) > budget_tokens:
            break
        kept.append(paragraph)
    return "\n\n".join([*kept, "[…]"]) if kept else ""


def _sections(text: str) -> Iterator[tuple[int, str, str]]:
    """(level, heading, body) of each section that has a body; level 0 is what comes before the first heading."""
    level, heading, body, fence = 0, "", [], ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark:
            fence = mark[1] if not fence else ("" if mark[1].startswith(fence) else fence)
        found = None if fence else _HEADING.match(line)
        if found is None:
            body.append(line)
            continue
        yield level, heading, "\n".join(body)
        level, heading, body = len(found[1]), found[2], []
    yield level, heading, "\n".join(body)


def _parts(body: str) -> Iterator[str]:
    """A body in parts of at most about PASSAGE_CHARS; paragraphs and code blocks stay whole where they can."""
    part = ""
    for paragraph in _paragraphs(body):
        for start in range(0, len(paragraph), PASSAGE_CHARS):
            piece = paragraph[start : start + PASSAGE_CHARS]
            if part and len(part) + len(piece) > PASSAGE_CHARS:
                yield part
                part = ""
            part = f"{part}\n\n{piece}" if part else piece
    if part:
        yield part


def _paragraphs(body: str) -> list[str]:
    """Split at empty lines, but not inside code blocks."""
    found: list[list[str]] = [[]]
    fence = ""
    for line in body.split("\n"):
        mark = _FENCE.match(line)
        if mark:
            fence = mark[1] if not fence else ("" if mark[1].startswith(fence) else fence)
        if line.strip() or fence:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return ["\n".join(lines) for lines in found if lines]


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
