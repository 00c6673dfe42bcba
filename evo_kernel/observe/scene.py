"""Pictures as plain data: lines, areas, boxes and texts, written as SVG, or as PNG by matplotlib.

Coordinates are pixels, y grows downwards. Every shape has a kind, which says how it looks in light and in dark. Texts
come from kernels and models, so they are escaped wherever they are written.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from evo_kernel.errors import UserError

LIGHT = {
    "text": "#1c1e21", "muted": "#6a7078", "grid": "#e3e6ea", "axis": "#9aa1a9", "paper": "#ffffff",
    "best": "#0b6bcb", "dot": "#a9b8c7", "champion": "#b35900", "gain": "#2c7a3f", "loss": "#b3261e",
    "edge": "#b6bdc5", "role": "#c9a227", "node": "#eef3f8", "failed": "#f7ebea", "leading": "#dcebfb",
}  # fmt: skip
DARK = LIGHT | {
    "text": "#e8eaed", "muted": "#9aa4ae", "grid": "#30363d", "axis": "#6b747d", "paper": "#14171a",
    "best": "#6cb2ff", "dot": "#566472", "champion": "#ffb066", "gain": "#6fcf84", "loss": "#ff8a80",
    "edge": "#4a535c", "role": "#c9a227", "node": "#20272e", "failed": "#33211f", "leading": "#17344f",
}  # fmt: skip
FONT = "system-ui, sans-serif"
CLEAR = 0.18  # opacity of an area


@dataclass(frozen=True)
class Line:
    points: Sequence[tuple[float, float]]
    kind: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Area:
    """A filled polygon through which what lies behind is seen."""

    points: Sequence[tuple[float, float]]
    kind: str


@dataclass(frozen=True)
class Box:
    """A filled rectangle, or a circle where `round` is half its size. `outline`: the kind of its border."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    outline: str = ""
    round: float = 0.0
    title: str = ""  # shown when the pointer rests on it
    key: str = ""  # what a page finds it by


@dataclass(frozen=True)
class Text:
    x: float
    y: float
    text: str
    kind: str = "text"
    size: float = 12.0
    anchor: str = "start"  # start | middle | end


@dataclass(frozen=True)
class Scene:
    width: float
    height: float
    about: str  # what a reader who does not see it is told
    shapes: Sequence[Line | Area | Box | Text] = field(default_factory=tuple)


def style() -> str:
    """CSS that every SVG here needs, once a page."""
    variables = {name: "".join(f"--{kind}:{colour};" for kind, colour in table.items()) for name, table in
                 (("light", LIGHT), ("dark", DARK))}  # fmt: skip
    kinds = "".join(
        f".picture .f-{kind}{{fill:var(--{kind})}}.picture .s-{kind}{{stroke:var(--{kind})}}" for kind in LIGHT
    )
    return (
        f":root{{{variables['light']}}}@media (prefers-color-scheme: dark){{:root{{{variables['dark']}}}}}"
        f".picture text{{font-family:{FONT}}}{kinds}"
    )


def svg(scene: Scene, alone: bool = True) -> str:
    """SVG text; `alone`: a file of its own, else a part of a page that has `style`."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" aria-label="{escape(scene.about)}"'
        f' viewBox="0 0 {scene.width:.0f} {scene.height:.0f}" width="{scene.width:.0f}" height="{scene.height:.0f}">'
    ]
    if alone:
        parts.append(f"<style>{style()}</style>")
        parts.append('<rect width="100%" height="100%" class="f-paper"/>')
    parts += [_element(shape) for shape in scene.shapes]
    return "\n".join([*parts, "</svg>"]) + "\n" * alone


def _element(shape: Line | Area | Box | Text) -> str:
    if isinstance(shape, Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
        return f'<polyline points="{points}" fill="none" class="s-{shape.kind}" stroke-width="{shape.width}"{dashes}/>'
    if isinstance(shape, Area):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polygon points="{points}" class="f-{shape.kind}" fill-opacity="{CLEAR}"/>'
    if isinstance(shape, Text):
        return (
            f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" class="f-{shape.kind}" font-size="{shape.size}"'
            f' text-anchor="{shape.anchor}">{escape(_printable(shape.text))}</text>'
        )
    outline = f" s-{shape.outline}" if shape.outline else ""
    key = f' data-key="{escape(shape.key)}" tabindex="0"' if shape.key else ""
    title = f"<title>{escape(_printable(shape.title))}</title>" if shape.title else ""
    return (
        f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        f' rx="{shape.round}" class="f-{shape.kind}{outline}"{key}>{title}</rect>'
    )


def _printable(text: str) -> str:
    """Without characters that XML refuses, or that turn the direction of what follows."""
    return "".join(character if character.isprintable() else " " for character in text)


def png(scene: Scene, path: Path, colours: Mapping[str, str] = LIGHT, dpi: int = 144) -> None:
    """Write a PNG. Raises UserError where matplotlib is not installed."""
    try:
        agg, figures, patches = (
            importlib.import_module(f"matplotlib.{name}") for name in ("backends.backend_agg", "figure", "patches")
        )
    except ImportError as error:
        raise UserError("a PNG needs matplotlib: pip install 'evo-kernel[draw]', or write --svg") from error
    figure = figures.Figure(figsize=(scene.width / 96, scene.height / 96), facecolor=colours["paper"])
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    sides = {"start": "left", "middle": "center", "end": "right"}
    for order, shape in enumerate(scene.shapes):
        if isinstance(shape, Line):
            xs, ys = zip(*shape.points, strict=True)
            dashes = "--" if shape.dashed else "-"
            axes.plot(xs, ys, dashes, color=colours[shape.kind], linewidth=shape.width * 0.75, zorder=order)
        elif isinstance(shape, Area):
            xs, ys = zip(*shape.points, strict=True)
            axes.fill(xs, ys, color=colours[shape.kind], alpha=CLEAR, linewidth=0, zorder=order)
        elif isinstance(shape, Text):
            text = _printable(shape.text).replace("$", r"\$")
            axes.text(shape.x, shape.y, text, color=colours[shape.kind], fontsize=shape.size * 0.72,
                      ha=sides[shape.anchor], va="baseline", zorder=order)  # fmt: skip
        else:
            edge = colours[shape.outline] if shape.outline else "none"
            corners = f"round,pad=0,rounding_size={max(shape.round, 0.01)}"
            box = patches.FancyBboxPatch((shape.x, shape.y), shape.width, shape.height, boxstyle=corners)
            box.set(facecolor=colours[shape.kind], edgecolor=edge, zorder=order)
            axes.add_patch(box)
    agg.FigureCanvasAgg(figure)  # no display is asked for
    figure.savefig(path, format="png", dpi=dpi)
