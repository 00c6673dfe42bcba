"""Charts of a run: how the best grew, and what each edit of the champion's path brought."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.observe.scene import Box, Line, Scene, Text

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 720.0, 300.0, 58.0, 40.0, 16.0
DOTS = 2000
"""Dots that are drawn at most: more are thinned, the best-so-far line never is."""


@dataclass(frozen=True)
class Axis:
    """From data to pixels; logarithmic for ratios over a decade."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low or 1.0)
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round values within an interval."""
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / count))
    step *= next((factor for factor in (1, 2, 5) if span / (step * factor) <= count + 0.5), 10)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def trajectory(
    dots: Sequence[tuple[float, float]], best: Sequence[tuple[float, float]], across: str, upward: str = "score"
) -> Scene:
    """Candidates as dots, the best so far as a staircase, the last step marked. `across`: what x counts."""
    every = [*dots, *best]
    if not best:
        return Scene(WIDTH, 40, "nothing passed yet", [Text(8, 24, "nothing passed yet", "muted")])
    xs, ys = [x for x, _ in every], [y for _, y in every]
    x_axis = Axis(min(0.0, *xs), max(xs) or 1.0, LEFT, WIDTH - 12)
    y_axis = Axis(min(0.0, *ys), max(ys) * 1.06, HEIGHT - BELOW, ABOVE)
    shapes = _frame(x_axis, y_axis, across, upward)
    step = max(1, len(dots) // DOTS)
    shapes += [Box(x_axis.at(x) - 1.5, y_axis.at(y) - 1.5, 3, 3, "dot", round=1.5) for x, y in dots[::step]]
    points: list[tuple[float, float]] = []
    for x, y in best:
        if points:
            points.append((x_axis.at(x), points[-1][1]))
        points.append((x_axis.at(x), y_axis.at(y)))
    points.append((x_axis.end, points[-1][1]))
    shapes.append(Line(points, "best", 2.0))
    x, y = best[-1]
    shapes.append(Box(x_axis.at(x) - 4, y_axis.at(y) - 4, 8, 8, "champion", round=4, title=f"{upward} {y:.3f}"))
    last = f"{upward} {y:.2f}"
    shapes.append(Text(min(x_axis.at(x) + 8, WIDTH - 90), y_axis.at(y) - 6, last, "champion"))
    about = f"{upward} over {across}: from {best[0][1]:.3f} to {y:.3f} in {len(best)} improvements"
    return Scene(WIDTH, HEIGHT, about, shapes)


def _frame(x_axis: Axis, y_axis: Axis, across: str, upward: str) -> list[Line | Box | Text]:
    shapes: list[Line | Box | Text] = []
    for value in ticks(y_axis.low, y_axis.high):
        y = y_axis.at(value)
        shapes.append(Line([(LEFT, y), (WIDTH - 12, y)], "grid"))
        shapes.append(Text(LEFT - 6, y + 4, f"{value:g}", "muted", anchor="end"))
    for value in ticks(x_axis.low, x_axis.high, 8):
        shapes.append(Text(x_axis.at(value), HEIGHT - BELOW + 16, f"{value:g}", "muted", anchor="middle"))
    shapes.append(Line([(LEFT, HEIGHT - BELOW), (WIDTH - 12, HEIGHT - BELOW)], "axis"))
    shapes.append(Text((LEFT + WIDTH) / 2, HEIGHT - 6, across, "muted", anchor="middle"))
    return [*shapes, Text(8, ABOVE - 3, upward, "muted")]


def gains(rows: Sequence[tuple[str, float | None, float | None]]) -> Scene:
    """One bar an edit, log-scaled: (edit, gain when it was made, gain that it still is; None where not known)."""
    tall, left = 30.0, 300.0
    known = [abs(math.log(value)) for _, *values in rows for value in values if value]
    reach = max([*known, math.log(1.1)])
    zero, scale = left + (WIDTH - left) * 0.25, (WIDTH - left) * 0.62 / reach
    shapes: list[Line | Box | Text] = []
    for number, (name, made, still) in enumerate(rows):
        y = 8 + number * tall
        shapes.append(Text(left - 10, y + 16, _short(name), size=11, anchor="end"))
        for value, at, high in ((made, y + 4, 12.0), (still, y + 18, 6.0)):
            if value is None:
                continue
            length = math.log(value) * scale
            kind = "gain" if value >= 1.0 else "loss"
            bar = Box(min(zero, zero + length), at, max(abs(length), 1.0), high, kind, round=2, title=f"{value:.3f}x")
            shapes.append(bar)
        if made is not None:
            shapes.append(Text(zero + max(math.log(made) * scale, 0) + 6, y + 15, f"{made:.2f}x", "muted", 11))
    height = 16 + len(rows) * tall
    shapes.append(Line([(zero, 4), (zero, height - 8)], "axis"))
    return Scene(WIDTH, height, "gain of each edit, as a factor of time", shapes)


def _short(text: str, longest: int = 40) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
