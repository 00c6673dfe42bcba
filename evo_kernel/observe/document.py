"""A document as blocks, written as one self-contained HTML file or as Markdown. Everything in it is escaped."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evo_kernel.types import escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A picture, which is drawn where it is shown; Markdown has its caption alone."""

    draw: Callable[[], Picture]
    caption: str

    @cached_property
    def data(self) -> str:
        """SVG in base64."""
        from evo_kernel.observe.pictures import svg

        return base64.b64encode(svg(self.draw()).encode()).decode()


@dataclass(frozen=True)
class Code:
    """`folded`: what stands in its place until a reader opens it; empty: it is open."""

    text: str
    language: str = ""
    folded: str = ""


Block = Heading | Paragraph | Table | Figure | Code


def html(title: str, blocks: Sequence[Block]) -> str:
    """One file without anything from elsewhere, and without scripts."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    named = [(type(block).__name__, block) for block in blocks]
    return escaped(environment.get_template("document.html").render(title=title, blocks=named))


def save(path: Path, title: str, blocks: Sequence[Block]) -> None:
    """Write it as its file's name says: .html or .md."""
    path.write_text(html(title, blocks) if path.suffix == ".html" else markdown(blocks), encoding="utf-8")


def markdown(blocks: Sequence[Block]) -> str:
    """The same without pictures."""
    return escaped("\n\n".join(_markdown(block) for block in blocks) + "\n")


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Figure(_, caption):
            return f"*{_plain(caption)}*"
        case Table(head, rows):
            lines = [head, ["---"] * len(head), *rows]
            return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
        case Code(text, language, folded):
            fence = "```"
            while fence in text:
                fence += "`"
            above = f"{_plain(folded)}\n\n" if folded else ""
            return f"{above}{fence}{language}\n{text.rstrip()}\n{fence}"


def _plain(text: str) -> str:
    """Text that Markdown takes as text: no tags, no links, no emphasis."""
    for character in "\\`*_[]<>":
        text = text.replace(character, f"\\{character}" if character not in "<>" else escape(character))
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|") if text != "---" else text
