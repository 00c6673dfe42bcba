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
from matplotlib.figure import Figure

from benchmarks.calibration.figures import spearman
from evo_kernel.observe.pictures import figure, svg

WINDOW = 5
SHUFFLES = 10_000
NAMES = ("reward", "right")


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("progress", type=Path)
    made.add_argument("--out", type=Path, help="the picture, an SVG")
    chosen = made.parse_args()
    steps = steps_of(chosen.progress.read_text().splitlines())
    if not steps:
        raise SystemExit(f"{chosen.progress} tells of no step of GRPO")
    for name in NAMES:
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


def picture(steps: Sequence[dict[str, Any]]) -> Figure:
    drawn, axes = figure(7.9, 3.5)
    axes.set_title("GRPO: mean over the answers of a step (dots) and of the last five steps (lines)", size="medium")
    for name in NAMES:
        values, at = [step[name] for step in steps], [step["step"] for step in steps]
        (line,) = axes.plot(at, smoothed(values), label={"right": "share right"}.get(name, name))
        axes.plot(at, values, ".", color=line.get_color())
    axes.set_xlabel("step")
    axes.legend(frameon=False)
    axes.grid(axis="y", alpha=0.3)
    return drawn


if __name__ == "__main__":
    main()
