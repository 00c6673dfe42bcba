"""The lineage as a picture: generations from left to right, the champion's path on top, dead ends folded."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.observe.scene import Box, Line, Scene, Text, style, svg

ACROSS, DOWN, WIDE, TALL, MARGIN = 190.0, 46.0, 160.0, 34.0, 16.0
DRAWN = 3000
"""Nodes that a picture may have: beyond, nobody can look at it, and a page grows slow."""

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Ancestry:
    """What is drawn: candidates, and how many descendants of each are not."""

    nodes: Sequence[Node]
    folded: Mapping[int, int]
    path: frozenset[int]  # of the champion
    donors: Sequence[tuple[int, int]] = ()  # (donor, child): parents beside the main one


def ancestry(
    nodes: Sequence[Node], leading: Iterable[int], path: Iterable[int], donors: Sequence[tuple[int, int]], whole: bool
) -> Ancestry:
    """Candidates on the ways to `leading` ones (all, if `whole`). Raises UserError where that is too much to draw."""
    parents = {node["candidate"]: node["parent"] for node in nodes}
    shown: set[int] = set(parents) if whole else set()
    for candidate in (*leading, *path):
        at: int | None = candidate
        while at and at not in shown:
            shown.add(at)
            at = parents.get(at)
    if len(shown) > DRAWN:
        raise UserError(
            f"{len(shown)} candidates are too many to draw: leave out --all, or write a graph: --to lineage.graphml"
        )
    folded: dict[int, int] = {}
    for candidate in parents:
        at = candidate
        while at and at not in shown:
            at = parents.get(at)
        if at and at != candidate:
            folded[at] = folded.get(at, 0) + 1
    kept = [node for node in nodes if node["candidate"] in shown]
    pairs = [(donor, child) for donor, child in donors if donor in shown and child in shown]
    return Ancestry(kept, folded, frozenset(path), pairs)


def places(drawn: Ancestry) -> dict[int, tuple[float, float]]:
    """Left upper corner of each node: x by depth, y so that no two branches share a row; the path comes first."""
    children: dict[int, list[int]] = {}
    known = {node["candidate"] for node in drawn.nodes}
    for node in drawn.nodes:
        above = node["parent"] if node["parent"] in known else 0
        children.setdefault(above or 0, []).append(node["candidate"])
    for below in children.values():
        below.sort(key=lambda candidate: (candidate not in drawn.path, candidate))
    found: dict[int, tuple[float, float]] = {}
    row, stack = 0, [(candidate, 0, False) for candidate in reversed(children.get(0, []))]
    while stack:
        candidate, depth, new_row = stack.pop()
        row += new_row or (depth == 0 and bool(found))
        found[candidate] = (MARGIN + depth * ACROSS, MARGIN + row * DOWN)
        below = children.get(candidate, [])
        stack += [(child, depth + 1, number > 0) for number, child in reversed(list(enumerate(below)))]
    return found


def scene(drawn: Ancestry, label: str) -> Scene:
    """The picture."""
    at = places(drawn)
    shapes: list[Line | Box | Text] = []
    for node in drawn.nodes:
        candidate, parent = node["candidate"], node["parent"]
        if parent in at:
            kind = "best" if candidate in drawn.path and parent in drawn.path else "edge"
            shapes.append(_branch(at[parent], at[candidate], kind))
    for donor, child in drawn.donors:
        (x, y), (right, lower) = at[donor], at[child]
        shapes.append(Line([(x + WIDE / 2, y + TALL), (right + WIDE / 2, lower)], "role", dashed=True))
    for node in drawn.nodes:
        shapes += _node(node, at[node["candidate"]], drawn)
    width = max((x for x, _ in at.values()), default=0.0) + WIDE + 60
    height = max((y for _, y in at.values()), default=0.0) + TALL + 40
    shapes.append(Text(MARGIN, height - 10, f"scores are {label}; +n: descendants that led nowhere", "muted", 11))
    return Scene(width, height, f"lineage of {len(drawn.nodes)} candidates", shapes)


def _branch(parent: tuple[float, float], child: tuple[float, float], kind: str) -> Line:
    (x, y), (right, lower) = parent, child
    middle = right - (ACROSS - WIDE) / 2
    points = [(x + WIDE, y + TALL / 2), (middle, y + TALL / 2), (middle, lower + TALL / 2), (right, lower + TALL / 2)]
    return Line(points, kind, 2.0 if kind == "best" else 1.0)


def _node(node: Node, place: tuple[float, float], drawn: Ancestry) -> list[Box | Text]:
    (x, y), candidate = place, node["candidate"]
    name = node["strategy"] or node["operator"]
    passed = node["score"] is not None
    says = f"{node['score']:.3f}" if passed else node["status"] or "not judged"
    kind = "leading" if candidate in drawn.path else "node" if passed else "failed"
    outline = "best" if candidate in drawn.path else "edge"
    title = "\n".join(f"{key}: {value}" for key, value in details(node).items())
    found: list[Box | Text] = [
        Box(x, y, WIDE, TALL, kind, outline, round=5, title=title, key=str(candidate)),
        Text(x + 8, y + 14, f"{candidate}  {name}"[:26], size=11),
        Text(x + 8, y + 28, says, "muted", 11),
    ]
    if hidden := drawn.folded.get(candidate):
        found.append(Text(x + WIDE - 6, y + 28, f"+{hidden}", "muted", 11, "end"))
    return found


def details(node: Node) -> dict[str, str]:
    """What is told of a candidate, by name; what is not known is left out."""
    names = ("candidate", "parent", "operator", "strategy", "family", "region", "status", "score", "cell", "island",
             "generation", "reason")  # fmt: skip
    found = {name: node[name] for name in names if node.get(name) not in (None, "")}
    return {name: f"{value:.4f}" if isinstance(value, float) else str(value) for name, value in found.items()}


SCRIPT = """
const view=document.getElementById("view"),picture=view.querySelector("svg"),told=document.getElementById("told");
const data=JSON.parse(document.getElementById("data").textContent);
const box=picture.viewBox.baseVal;let scale=1;
function zoom(factor){scale=Math.min(4,Math.max(.1,scale*factor));
 picture.setAttribute("width",box.width*scale);picture.setAttribute("height",box.height*scale);}
function tell(node){const key=node&&node.dataset&&node.dataset.key;if(!key)return;told.replaceChildren();
 for(const [name,value] of Object.entries(data[key]||{})){const term=document.createElement("dt");
  const text=document.createElement("dd");term.textContent=name;text.textContent=value;told.append(term,text);}}
picture.addEventListener("click",event=>tell(event.target));
picture.addEventListener("focusin",event=>tell(event.target));
view.addEventListener("wheel",event=>{if(!event.ctrlKey)return;event.preventDefault();
 zoom(event.deltaY<0?1.1:1/1.1);},{passive:false});
for(const [name,factor] of [["closer",1.25],["farther",.8]])
 document.getElementById(name).addEventListener("click",()=>zoom(factor));
"""
CSS = """
body{margin:0;display:grid;grid-template-columns:1fr minmax(14rem,22rem);height:100vh;background:var(--paper);
color:var(--text);font:14px/1.45 system-ui,sans-serif}
#view{overflow:auto}aside{overflow:auto;padding:.8rem;border-left:1px solid var(--grid)}
dt{color:var(--muted)}dd{margin:0 0 .5rem;overflow-wrap:anywhere}rect[data-key]{cursor:pointer}
rect[data-key]:focus{stroke:var(--champion);stroke-width:3;outline:none}
@media(max-width:40rem){body{grid-template-columns:1fr;grid-template-rows:1fr auto}aside{max-height:40vh}}
"""


def page(drawn: Ancestry, task: str, label: str) -> str:
    """One self-contained HTML file: scroll, zoom, click or tab to a candidate. It loads nothing."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    data = json.dumps({str(node["candidate"]): details(node) for node in drawn.nodes})
    for character in "<>&\u2028\u2029":  # nothing in it can end its element
        data = data.replace(character, f"\\u{ord(character):04x}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(task)}: lineage</title><style>{style()}{CSS}</style></head><body>\n"
        f'<main id="view">{svg(scene(drawn, label), alone=False)}</main>\n'
        f'<aside><h1>{escape(task)}</h1><p><button id="closer">closer</button> '
        '<button id="farther">farther</button></p><dl id="told"><dt>click a candidate</dt></dl></aside>\n'
        f'<script id="data" type="application/json">{data}</script>\n<script>{SCRIPT}</script>\n</body></html>\n'
    )
