"""A document as blocks, written as one self-contained HTML file or as Markdown. Everything in it is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from evo_kernel.observe.scene import Scene, style, svg

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
CSS = """
body{margin:0 auto;max-width:60rem;padding:1rem;font:15px/1.5 system-ui,sans-serif;color:var(--text);
background:var(--paper)}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid var(--grid)}
table{border-collapse:collapse;display:block;overflow-x:auto;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--grid)}
th:first-child,td:first-child{text-align:left}
pre{overflow:auto;padding:.7rem;background:var(--node);border-radius:6px;font-size:13px;max-height:36rem}
.picture{max-width:100%;height:auto}figcaption,small{color:var(--muted)}figure{margin:1rem 0}
.add{color:var(--gain)}.del{color:var(--loss)}summary{cursor:pointer}
"""


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
    """A picture; Markdown has its caption alone."""

    scene: Scene
    caption: str


@dataclass(frozen=True)
class Code:
    """`folded`: what stands in its place until a reader opens it; empty: it is open."""

    text: str
    language: str = ""
    folded: str = ""


Block = Heading | Paragraph | Table | Figure | Code


def html(title: str, blocks: Sequence[Block]) -> str:
    """One file without anything from elsewhere, and without scripts."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style()}{CSS}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Figure(scene, caption):
            return f"<figure>{svg(scene, alone=False)}<figcaption>{escape(caption)}</figcaption></figure>"
        case Table(head, rows):
            columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
            lines = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            return f"<table><thead><tr>{columns}</tr></thead>\n<tbody>{lines}</tbody></table>"
        case Code(text, language, folded):
            code = f'<pre tabindex="0"><code>{_diff(text) if language == "diff" else escape(text)}</code></pre>'
            return f"<details><summary>{escape(folded)}</summary>{code}</details>" if folded else code


def _diff(text: str) -> str:
    kinds = {"+": "add", "-": "del"}
    lines = [(kinds.get(line[:1], ""), escape(line)) for line in text.splitlines()]
    return "\n".join(f'<span class="{kind}">{line}</span>' if kind else line for kind, line in lines)


def markdown(blocks: Sequence[Block]) -> str:
    """The same without pictures."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Figure(scene, caption):
            return f"*{_plain(caption)}: {_plain(scene.about)}*"
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
