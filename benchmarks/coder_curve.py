"""How a coder's reward went, step by step: a picture, and a line of figures.

    python -m benchmarks.coder_curve coder/progress.jsonl [--out coder.svg]

Reads what `evo-kernel train coder` said. A dot is a step's mean over its answers; the line is the mean of the last
`WINDOW` steps. The trend is Spearman's rank correlation of step and value, with the share of 10,000 shuffles of the
steps that have as high a one. Groups differ between steps, so steps are noisy and the trend is what to look at.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.figures import spearman
from evo_kernel.observe.charts import Axis, ticks
from evo_kernel.observe.scene import Area, Box, Line, Scene, Text, svg

WINDOW = 5
SHUFFLES = 10_000
WIDTH, HEIGHT, LEFT, RIGHT, ABOVE, BELOW = 760.0, 340.0, 52.0, 20.0, 56.0, 44.0  # pixels
KINDS = {"reward": "best", "right": "gain"}


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("progress", type=Path)
    made.add_argument("--out", type=Path, help="the picture, an SVG")
    chosen = made.parse_args()
    steps = steps_of(chosen.progress.read_text().splitlines())
    if not steps:
        raise SystemExit(f"{chosen.progress} tells of no step of GRPO")
    for name in KINDS:
        values = [step[name] for step in steps]
        third = max(1, len(values) // 3)
        rank, chance = trend(values)
        print(
            f"{name}: {len(values)} steps, first {third} {np.mean(values[:third]):.3f}, last {third} "
            f"{np.mean(values[-third:]):.3f}, rank correlation {rank:.2f} (by chance: {chance:.4f})"
        )
    if chosen.out:
        chosen.out.write_text(svg(picture(steps)))


def steps_of(lines: Sequence[str]) -> list[dict[str, Any]]:
    """What was said of each step of GRPO in which something was judged. What a crash undid does not count."""
    steps: dict[int, dict[str, Any]] = {}
    for told in (json.loads(line) for line in lines if line.strip()):
        if told["stage"] == "grpo" and "goes_on_after_s" in told:
            steps = {step: one for step, one in steps.items() if step <= told["step"]}
        elif told["stage"] == "grpo" and not math.isnan(told["reward"]):
            steps[told["step"]] = told
    return list(steps.values())


def smoothed(values: Sequence[float]) -> list[float]:
    """Means of the last `WINDOW`, or fewer at the start."""
    return [float(np.mean(values[max(0, at + 1 - WINDOW) : at + 1])) for at in range(len(values))]


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Spearman's rank correlation with the step, and the share of shuffles in which it is as high."""
    own, steps, rng = np.asarray(values), np.arange(len(values)), np.random.default_rng(0)
    found = spearman(own, steps)
    if math.isnan(found):  # it never changed
        return 0.0, 1.0
    as_high = [spearman(rng.permutation(own), steps) >= found - 1e-12 for _ in range(SHUFFLES)]
    return found, float(np.mean(as_high))


def picture(steps: Sequence[dict[str, Any]]) -> Scene:
    x_axis = Axis(1, max(2, steps[-1]["step"]), LEFT, WIDTH - RIGHT)
    every = [step[name] for step in steps for name in KINDS]
    y_axis = Axis(min(0.0, *every), max(1.0, *every), HEIGHT - BELOW, ABOVE)
    title = "GRPO: mean over the answers of a step (dots) and of the last five steps (lines)"
    shapes: list[Line | Area | Box | Text] = [Text(LEFT, 20, title, size=13)]
    for value in ticks(y_axis.low, y_axis.high):
        shapes.append(Line([(LEFT, y_axis.at(value)), (WIDTH - RIGHT, y_axis.at(value))], "grid"))
        shapes.append(Text(LEFT - 6, y_axis.at(value) + 4, f"{value:g}", "muted", anchor="end"))
    for value in ticks(x_axis.low, x_axis.high, 10):
        shapes.append(Text(x_axis.at(value), HEIGHT - BELOW + 16, f"{value:g}", "muted", anchor="middle"))
    shapes.append(Text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "step", "muted", anchor="middle"))
    for place, (name, kind) in enumerate(KINDS.items()):
        values = [step[name] for step in steps]
        points = [(x_axis.at(step["step"]), y_axis.at(step[name])) for step in steps]
        shapes += [Box(x - 2.5, y - 2.5, 5, 5, kind, round=2.5) for x, y in points]
        shapes.append(
            Line([(x, y_axis.at(one)) for (x, _), one in zip(points, smoothed(values), strict=True)], kind, 2)
        )
        shapes.append(Line([(LEFT + 130 * place, 40), (LEFT + 22 + 130 * place, 40)], kind, 3.0))
        shapes.append(Text(LEFT + 28 + 130 * place, 44, {"right": "share right"}.get(name, name)))
    return Scene(WIDTH, HEIGHT, title, shapes)


if __name__ == "__main__":
    main()
