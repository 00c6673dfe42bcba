"""Pictures of a run, by matplotlib: how the best grew, what each edit brought, and the lineage.

Texts come from kernels and models: they are drawn as they are, without mathematics and without control characters.
"""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evo_kernel.errors import UserError

BEST, DOT, CHAMPION, GAIN, LOSS, EDGE = "#0b6bcb", "#a9b8c7", "#b35900", "#2c7a3f", "#b3261e", "#b6bdc5"
NODE, FAILED, LEADING, ROLE = "#eef3f8", "#f7ebea", "#dcebfb", "#c9a227"
DRAWN = 3000
"""Nodes that a picture may have: beyond, nobody can look at it."""
LARGEST = 60_000  # pixels of one side of a PNG
ACROSS, DOWN = 2.0, 0.5  # inches between generations, and between rows

Node = Mapping[str, Any]


def figure(width: float = 7.5, height: float = 3.2) -> tuple[Figure, Axes]:
    """An empty picture of so many inches."""
    made = Figure(figsize=(width, height), layout="constrained")
    axes = made.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return made, axes


def save(picture: Figure, target: Path | io.BytesIO, kind: str) -> None:
    """Write it as `kind`: svg, with text that can be searched, or png."""
    dpi = min(144.0, LARGEST / max(picture.get_size_inches()))
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none"}):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names may be in any script
        picture.savefig(target, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)


def svg(picture: Figure) -> str:
    buffer = io.BytesIO()
    save(picture, buffer, "svg")
    return buffer.getvalue().decode()


def printable(text: str) -> str:
    """Without characters that XML refuses, or that turn the direction of what follows."""
    return "".join(character if character.isprintable() else " " for character in text)


def trajectory(dots: Sequence[tuple[float, float]], best: Sequence[tuple[float, float]], across: str) -> Figure:
    """Scores: candidates as dots, the best so far as a staircase, its last step marked. `across`: what x counts."""
    picture, axes = figure()
    axes.set(xlabel=across, ylabel="score")
    if not best:
        axes.set_title("nothing passed yet", loc="left")
        return picture
    if dots:
        axes.scatter(*zip(*dots, strict=True), s=5, color=DOT, rasterized=True)
    xs, ys = zip(*best, strict=True)
    end = max(x for x, _ in (*dots, *best))
    axes.step([*xs, end], [*ys, ys[-1]], where="post", color=BEST)
    axes.plot(xs[-1:], ys[-1:], "o", color=CHAMPION)
    axes.annotate(f"{ys[-1]:.2f}", (xs[-1], ys[-1]), (6, 4), textcoords="offset points", color=CHAMPION)
    axes.set_xlim(left=min(0.0, *xs))
    axes.set_ylim(bottom=0.0)
    axes.grid(axis="y", alpha=0.3)
    return picture


def gains(rows: Sequence[tuple[str, float | None]]) -> Figure:
    """Bars on a logarithmic axis: (edit, gain; None where not known)."""
    picture, axes = figure(height=0.9 + 0.32 * len(rows))
    for number, (_, value) in enumerate(rows):
        if value is not None:
            axes.barh(number, math.log(value), 0.5, color=GAIN if value >= 1.0 else LOSS)
            axes.text(max(math.log(value), 0.0), number, f" {value:.2f}x", va="center", size="small")
    names = [printable(name) if len(name) <= 40 else f"{printable(name[:39])}…" for name, _ in rows]
    axes.set_yticks(range(len(rows)), names, parse_math=False)
    axes.invert_yaxis()
    axes.axvline(0.0, color=EDGE, linewidth=1)
    axes.set_xlabel("log gain")
    return picture


@dataclass(frozen=True)
class Ancestry:
    """What is drawn of a lineage: candidates, and how many descendants of each are not."""

    nodes: Sequence[Node]
    folded: Mapping[int, int]
    path: frozenset[int]  # of the champion
    donors: Sequence[tuple[int, int]] = ()  # (donor, child): parents beside the main one


def ancestry(
    nodes: Sequence[Node], leading: Iterable[int], path: Iterable[int], donors: Sequence[tuple[int, int]], whole: bool
) -> Ancestry:
    """Candidates on the ways to `leading` ones (all, if `whole`). Raises UserError where that is too much to draw."""
    tree = nx.DiGraph()  # of main parents
    tree.add_nodes_from(node["candidate"] for node in nodes)
    tree.add_edges_from((node["parent"], node["candidate"]) for node in nodes if node["parent"])
    ends = {candidate for candidate in (*leading, *path) if candidate in tree}
    shown = set(tree) if whole else ends.union(*(nx.ancestors(tree, candidate) for candidate in ends))
    if len(shown) > DRAWN:
        raise UserError(
            f"{len(shown)} candidates are too many to draw: leave out --all, or write a graph: --to lineage.graphml"
        )
    folded: Counter[int] = Counter()
    for branch in nx.weakly_connected_components(tree.subgraph(set(tree) - shown)):
        folded.update({above: len(branch) for above in tree.predecessors(min(branch))})  # the oldest hangs on it
    kept = [node for node in nodes if node["candidate"] in shown]
    pairs = [(donor, child) for donor, child in donors if donor in shown and child in shown]
    return Ancestry(kept, folded, frozenset(path), pairs)


def places(drawn: Ancestry) -> dict[int, tuple[int, int]]:
    """(generation, row) of each node, so that no two branches share a row; the path comes first."""
    children: dict[int, list[int]] = {}
    known = {node["candidate"] for node in drawn.nodes}
    for node in drawn.nodes:
        above = node["parent"] if node["parent"] in known else 0
        children.setdefault(above or 0, []).append(node["candidate"])
    for below in children.values():
        below.sort(key=lambda candidate: (candidate not in drawn.path, candidate))
    found: dict[int, tuple[int, int]] = {}
    row, stack = 0, [(candidate, 0, False) for candidate in reversed(children.get(0, []))]
    while stack:
        candidate, depth, new_row = stack.pop()
        row += new_row or (depth == 0 and bool(found))
        found[candidate] = (depth, row)
        below = children.get(candidate, [])
        stack += [(child, depth + 1, number > 0) for number, child in reversed(list(enumerate(below)))]
    return found


def lineage(drawn: Ancestry, label: str) -> Figure:
    """Generations from left to right, the champion's path on top, dead ends folded into +n. `label`: of scores."""
    at = places(drawn)
    width = ACROSS * (1 + max((x for x, _ in at.values()), default=0))
    height = DOWN * (2 + max((y for _, y in at.values()), default=0))
    picture = Figure(figsize=(width, height))
    axes = picture.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(-0.05, width / ACROSS - 0.05), ylim=(height / DOWN - 0.5, -0.5))
    axes.set_axis_off()
    for node in drawn.nodes:
        candidate, parent = node["candidate"], node["parent"]
        if parent in at:
            (x, y), (right, lower) = at[parent], at[candidate]
            leads = candidate in drawn.path and parent in drawn.path
            axes.plot(
                [x, right - 0.1, right - 0.1, right], [y, y, lower, lower], color=BEST if leads else EDGE, zorder=1
            )
    for donor, child in drawn.donors:
        axes.plot(*zip(at[donor], at[child], strict=True), "--", color=ROLE, zorder=1)
    for node in drawn.nodes:
        _draw_node(axes, node, at[node["candidate"]], drawn)
    axes.text(0.0, height / DOWN - 0.8, f"scores are {label}; +n: descendants that led nowhere", size=8)
    return picture


def _draw_node(axes: Axes, node: Node, place: tuple[int, int], drawn: Ancestry) -> None:
    candidate, score, leads = node["candidate"], node["score"], node["candidate"] in drawn.path
    hidden = f"  +{drawn.folded[candidate]}" if candidate in drawn.folded else ""
    name = printable(f"{candidate}  {node['strategy'] or node['operator']}"[:26])
    says = f"{score:.3f}" if score is not None else node["status"] or "not judged"
    colour = LEADING if leads else NODE if score is not None else FAILED
    box = {"boxstyle": "round", "facecolor": colour, "edgecolor": BEST if leads else EDGE}
    text, found_by = f"{name}\n{says}{hidden}", f"candidate-{candidate}"
    axes.text(*place, text, size=8, va="center", bbox=box, parse_math=False, gid=found_by)
