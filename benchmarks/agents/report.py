"""The tables of the bench, from what its notebook holds: paired, with 95 % intervals over parents."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.agents.macro import OWN, PLACEBO
from benchmarks.agents.micro import FASTER, REPAIRS
from benchmarks.agents.notebook import Notebook, Row
from benchmarks.agents.situations import NO_MODEL, Situation
from benchmarks.regret import Interval

WITNESSED_BAR = 0.70


def print_no_model(found: Sequence[Situation]) -> None:
    """The table of `--no-model`."""
    best = Interval.of([one.best for one in found])
    tasks = len({one.task.name for one in found})
    print(f"{len(found)} parents of {tasks} tasks, {sum(len(one.actions) for one in found)} actions")
    print(f"the best action gains {best} (log)")
    print(f"{'policy':<18}{'regret (log gain)':>44}{'of what there is':>18}")
    for name, regrets_of in NO_MODEL.items():
        regrets = Interval.of(regrets_of(found))
        left = regrets.mean / best.mean if best.mean > 0 else 0.0
        print(f"{name:<18}{regrets!s:>44}{left:>18.0%}", flush=True)


def print_report(notebook: Notebook, found: Sequence[Situation]) -> None:
    calls = notebook.calls()
    dollars = [row["dollars"] for row in calls if row["dollars"] is not None]
    price = f"${sum(dollars):.2f}" if dollars else "price not known"
    made, tokens = (sum(row[name] for row in calls) for name in ("calls", "tokens"))
    print(f"{notebook.rows[0]['about']['model']}: {made} calls, {tokens} tokens, {price}")
    print_macro(notebook, found)
    print_micro(notebook)


def print_macro(notebook: Notebook, found: Sequence[Situation]) -> None:
    """Regret against policies that need no model, on the same parents; then the placebo."""
    rows = notebook.items("macro").values()
    own, other = ({row["parent"]: row for row in rows if row["variant"] == name} for name in (OWN, PLACEBO))
    asked = [(at, one.id) for at, one in enumerate(found) if one.id in own]
    if not asked:
        return
    print(f"\nmacro: regret in log gain on {len(asked)} parents; difference: the model's minus the policy's")
    mine = [own[name]["regret"] for _, name in asked]
    fallen = sum(not own[name]["by_model"] for _, name in asked)
    print(f"{'the model':<18}{Interval.of(mine)!s:>44}    {fallen} answers could not be used")
    for name, regrets_of in NO_MODEL.items():
        every = regrets_of(found)
        theirs = [every[at] for at, _ in asked]
        less = Interval.of([a - b for a, b in zip(mine, theirs, strict=True)])
        print(f"{name:<18}{Interval.of(theirs)!s:>44}    difference {less}")
        if name == "bandit":
            print(f"bar, macro regret below the bandit's: {_verdict(less)}")
    both = [name for _, name in asked if name in other]
    if both:
        more = Interval.of([other[name]["regret"] - own[name]["regret"] for name in both])
        said = "the evidence is used" if more.low > 0 else "not shown that the evidence is used"
        print(f"placebo: another kernel's evidence changes regret by {more}: {said}")


def _verdict(less: Interval) -> str:
    if less.mean >= 0:
        return "MISSED"
    return "reached" if less.high < 0 else "reached, but the interval holds 0"


def print_micro(notebook: Notebook) -> None:
    """Shares of pairs, and the log gain that a search would keep."""
    rows = list(notebook.items("micro").values())
    if not rows:
        return
    judged = ", ".join(sorted({row["judged"] for row in rows}))
    print(f"\nmicro: {len(rows)} (parent, strategy) pairs; times are {judged}; within {REPAIRS} repairs")
    for name in ("applied", "correct"):
        print(f"{name:<24}{Interval.of([float(row[name]) for row in rows])}")
    good = Interval.of([float(row["correct"] and row["witnessed"]) for row in rows])
    print(f"{'correct and witnessed':<24}{good}")
    print(f"{'faster':<24}{Interval.of([float((row['log_gain'] or 0.0) > FASTER) for row in rows])}")
    print(f"{'log gain kept':<24}{Interval.of([_kept(row) for row in rows])}")
    print(f"{'    the rewriter, as in the tree':<24} {Interval.of([row['reference'] for row in rows])}")
    said = "reached" if good.mean >= WITNESSED_BAR else "MISSED"
    print(f"bar, correct and witnessed at least {WITNESSED_BAR:.0%}: {said}")


def _kept(row: Row) -> float:
    """Log gain, as a search keeps it: 0 where the child is wrong or slower."""
    gain = row["log_gain"]
    return max(0.0, gain) if gain is not None and math.isfinite(gain) else 0.0
