"""Pictures of a run, by matplotlib: how the best grew, and what each edit brought.

Texts come from kernels and models: they are drawn as they are, without mathematics and without control characters.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BEST, DOT, CHAMPION, GAIN, LOSS, EDGE = "#0b6bcb", "#a9b8c7", "#b35900", "#2c7a3f", "#b3261e", "#b6bdc5"


def figure(height: float = 3.2) -> tuple[Figure, Axes]:
    """An empty picture, so many inches high."""
    made = Figure(figsize=(7.5, height), layout="constrained")
    axes = made.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return made, axes


def svg(picture: Figure) -> str:
    """With text that can be searched."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none"}):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names may be in any script
        picture.savefig(buffer, format="svg", metadata={"Date": None})
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
