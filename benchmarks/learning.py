"""Every way of learning on one tree: the table and the picture of docs/learning.md, in one command.

    python -m benchmarks.learning --out learnt [--tree transitions.gz] [--seconds 1800] [--seeds 5] [--device auto]

Trains imitation, advantage-weighted regression and PPO, each from scratch and without the source, and imitation with
the source, without history and without plan features, `--seconds` each; what has a checkpoint in `--out` already is not
trained again, so the command can be repeated after an interruption. Then the regret of all on the held-out tasks,
beside uniform choice and the bandit, and milliseconds for one decision of the trained policy on one CPU core.
`learning.md` and `learning.svg` lie in `--out`. Whether times are measured or modeled depends on the tree and is
printed with it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from evo_kernel.observe.pictures import BEST, DOT, figure, svg
from operators.learning.shipped import TREE

RECIPES = {  # name -> options of `train policy`
    "imitation": (),
    "awr": ("--method", "awr"),
    "ppo": ("--method", "ppo"),
    "source": ("--source",),
    "no-history": ("--without", "history"),
    "no-plan": ("--without", "plan"),
}
ABLATED = "imitation"  # also evaluated without masks and without the hierarchy


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tree", type=Path, default=TREE, help="the one that comes with evo-kernel if left out")
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--seconds", type=float, default=1800.0, help="of each training")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--episodes", type=int, default=10)
    made.add_argument("--seed", type=int, default=0, help="of training")
    made.add_argument("--device", default="auto")
    chosen = made.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed = [name for name in RECIPES if not trained(name, chosen)]
    policies = [chosen.out / f"{name}.pt" for name in RECIPES if name not in failed]
    asked = ["--seeds", str(chosen.seeds), "--episodes", str(chosen.episodes), "--json"]
    first = evaluated(chosen.tree, [path for path in policies if path.stem == ABLATED], [*asked, "--ablations"])
    others = evaluated(chosen.tree, [path for path in policies if path.stem != ABLATED], asked)
    rows = first["policies"] + others["policies"][3:]  # the first three are uniform and the bandits again
    lines = [f"Times: {first['environments']}.\n{table(rows)}", *(f"\n{one} failed: see above." for one in failed)]
    if policies:
        lines.append(f"\n{decision_ms(chosen.tree, policies[0]):.1f} ms a decision on one core (median).")
    text = "\n".join(lines)
    print(text)
    (chosen.out / "learning.md").write_text(text + "\n")
    (chosen.out / "learning.svg").write_text(svg(picture(rows, first["environments"])))


def trained(name: str, chosen: argparse.Namespace) -> bool:
    out, part = chosen.out / f"{name}.pt", chosen.out / f"{name}.part.pt"
    if out.exists():
        return True
    given = ["--tree", str(chosen.tree), "--out", str(part), "--seconds", str(chosen.seconds)]
    given += ["--seed", str(chosen.seed), "--device", chosen.device, *RECIPES[name]]
    if part.exists():
        given.append("--resume")
    print(f"== {name}", file=sys.stderr, flush=True)
    if evo("train", "policy", *given, stdout=sys.stderr).returncode:
        return False
    part.rename(out)
    return True


def evaluated(tree: Path, policies: list[Path], asked: list[str]) -> dict[str, Any]:
    named = [word for path in policies for word in ("--policy", str(path))]
    ended = evo("train", "evaluate", "--tree", str(tree), *named, *asked, stdout=subprocess.PIPE)
    if ended.returncode:
        sys.exit(f"`train evaluate` failed with exit code {ended.returncode}")
    return json.loads(ended.stdout)


def evo(*words: str, stdout: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evo_kernel.cli.main", *words]
    return subprocess.run(command, check=False, stdout=stdout, text=True, env=os.environ)


def table(rows: list[dict[str, Any]]) -> str:
    found = [
        "",
        "| policy | regret (log gain) | share of uniform's | less than the bandit's |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        regret, share, less = row["regret"], row["share_of_uniform"], row["less_than_bandit"]
        found.append(f"| {row['policy']} | {told(regret)} | {told(share, 2)} | {told(less)} |")
    return "\n".join(found)


def told(interval: dict[str, float], digits: int = 3) -> str:
    low, high = (f"{interval[end]:.{digits}f}" for end in ("low", "high"))
    return f"{interval['mean']:.{digits}f} [{low}, {high}]"


def picture(rows: list[dict[str, Any]], environments: str) -> Figure:
    """A bar a policy, with its interval."""
    drawn, axes = figure(7.0, 0.8 + 0.27 * len(rows))
    axes.set_title(f"Regret on held-out tasks, log gain; {environments}", size="medium")
    means = [row["regret"]["mean"] for row in rows]
    ends = [[mean - max(row["regret"]["low"], 0.0) for mean, row in zip(means, rows, strict=True)],
            [row["regret"]["high"] - mean for mean, row in zip(means, rows, strict=True)]]  # fmt: skip
    colours = [DOT if row["policy"].startswith(("uniform", "bandit")) else BEST for row in rows]
    axes.bar_label(axes.barh([row["policy"] for row in rows], means, xerr=ends, color=colours), fmt=" %.3f")
    axes.invert_yaxis()
    return drawn


def decision_ms(tree_file: Path, path: Path, decisions: int = 50) -> float:
    """Median over states of the held-out tasks with the most offers."""
    import torch

    from operators.learning.tree import Tree
    from operators.macro.trained import TrainedPolicy

    torch.set_num_threads(1)
    tree, policy = Tree.load(tree_file), TrainedPolicy.load(path)
    states = sorted(tree.of("held-out"), key=lambda state: -len(state.offers))[:decisions]
    taken, rng = [], np.random.default_rng(0)
    for state in states:
        if state.offers:
            seen, began = tree.macro_state(state.id), time.perf_counter()
            policy.propensities(seen, state.offers, rng)
            taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


if __name__ == "__main__":
    main()
