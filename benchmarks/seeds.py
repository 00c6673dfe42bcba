"""The naive first kernels of the built-in tasks: their times, their baselines, and what the model says of them.

    python -m benchmarks.seeds [--tasks softmax,matmul]

With a GPU each first kernel is checked and timed through its plans, untuned, beside every baseline by the same clock,
and the modeled time stands next to the measured one. Without a GPU only the modeled column is filled.
"""

from __future__ import annotations

import argparse
import math

from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.types import Evaluation, Purpose


def judged(name: str, device: str) -> Evaluation:
    task = load(name)
    with open_judge(task, device=device, settings=JudgeSettings(tune_plans=0)) as judge:
        return judge.evaluate(first_kernel(task), Purpose.SCORE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help="comma-separated names; all if not given")
    options = parser.parse_args()
    ratios = []
    print(f"{'task':14} {'case':22} {'measured µs':>11} {'modeled µs':>10} {'ratio':>6} {'light':>6}  baselines µs")
    for name in options.tasks.split(",") if options.tasks else builtin_names():
        modeled = {m.case: m for m in judged(name, "cpu").measurements}
        found = judged(name, "auto")
        measured = {m.case: m for m in found.measurements} if found.environment.kind == "measured" else {}
        for case, guess in modeled.items():
            real = measured.get(case)
            line = f"{found.reason[:11] or '-':>11} {guess.median_us:10.1f}"
            if real is not None:
                ratio = guess.median_us / real.median_us
                ratios.append(abs(math.log(ratio)))
                light = f"{real.light_share:.0%}" if real.light_share is not None else "-"
                baselines = ", ".join(f"{which} {us:.1f}" for which, us in sorted(real.baselines_us.items()))
                line = f"{real.median_us:11.1f} {guess.median_us:10.1f} {ratio:6.2f} {light:>6}  {baselines}"
            print(f"{name:14} {case:22} {line}", flush=True)
    if ratios:
        print(f"modeled off by a factor of {math.exp(sum(ratios) / len(ratios)):.2f} (geometric mean, either way)")


if __name__ == "__main__":
    main()
