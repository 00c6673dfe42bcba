"""The tables of the bench, from what its notebook holds: paired, with 95 % bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from benchmarks.agents import coding, thinking
from benchmarks.agents.arms import ARMS
from benchmarks.agents.notebook import Notebook, Row
from benchmarks.agents.problems import CATEGORIES
from benchmarks.agents.regret import NO_MODEL, Mean, Situation, mean_of

WITNESSED_BAR = 0.70


def print_report(notebook: Notebook, found: Sequence[Situation]) -> None:
    calls = notebook.calls()
    dollars = [row["dollars"] for row in calls if row["dollars"] is not None]
    tokens = sum(row["tokens_in"] + row["tokens_out"] for row in calls)
    price = f"${sum(dollars):.2f}" if dollars else "price not known"
    print(f"{notebook.rows[0]['about']['model']}: {notebook.spent} calls, {tokens} tokens in parts, {price}")
    print_macro(notebook, found)
    print_micro(notebook)
    print_repair(notebook)
    print_arms(notebook)


def print_macro(notebook: Notebook, found: Sequence[Situation]) -> None:
    """Regret against policies that need no model, on the same parents; then the placebo."""
    own = {row["parent"]: row for row in notebook.items("macro", thinking.OWN).values()}
    other = {row["parent"]: row for row in notebook.items("macro", thinking.PLACEBO).values()}
    if not own:
        return
    by_id = {one.id: at for at, one in enumerate(found)}
    asked = [name for name in own if name in by_id]
    print(f"\nmacro: regret in log gain on {len(asked)} parents; difference: the model's minus the policy's")
    mine = [own[name]["regret"] for name in asked]
    fallen = sum(not own[name]["by_model"] for name in asked)
    print(f"{'the model':<18}{mean_of(mine)!s:>44}    {fallen} answers could not be used")
    for name, regrets_of in NO_MODEL.items():
        every = regrets_of(found)
        theirs = [every[by_id[one]] for one in asked]
        less = mean_of([a - b for a, b in zip(mine, theirs, strict=True)])
        print(f"{name:<18}{mean_of(theirs)!s:>44}    difference {less}")
        if name == "bandit":
            print(f"bar, macro regret below the bandit's: {_verdict(less)}")
    both = [name for name in asked if name in other]
    if both:
        more = mean_of([other[name]["regret"] - own[name]["regret"] for name in both])
        print(f"placebo: another kernel's evidence changes regret by {more}: {_placebo(more)}")


def _verdict(less: Mean) -> str:
    if less.value >= 0:
        return "MISSED"
    return "reached" if less.high < 0 else "reached, but the interval holds 0"


def _placebo(more: Mean) -> str:
    if more.low > 0:
        return "the evidence is used"
    return "not shown that the evidence is used"


def print_micro(notebook: Notebook) -> None:
    """Shares by variant, and each variant's difference from the full prompt on the same pairs."""
    rows = {name: {r["pair"]: r for r in notebook.items("micro", name).values()} for name in coding.VARIANTS}
    full = rows["full"]
    if not full:
        return
    judged = ", ".join(sorted({row["judged"] for some in rows.values() for row in some.values()}))
    print(f"\nmicro: shares of (parent, strategy) pairs; times are {judged}; within {coding.REPAIRS} repairs")
    titles = ("variant", "pairs", "applied", "correct", "correct, witnessed", "faster", "log gain kept")
    print("{:<14}{:>6}{:>9}{:>9}{:>20}{:>8}{:>44}".format(*titles))
    for name, some in rows.items():
        if not some:
            continue
        mine = list(some.values())
        # Without a strategy to carry out there is nothing to witness.
        seen = "" if name == "no hierarchy" else f"{_share(mine, _good):.0%}"
        shares = f"{_share(mine, 'applied'):>9.0%}{_share(mine, 'correct'):>9.0%}{seen:>20}"
        gain = mean_of([_kept(row) for row in mine])
        print(f"{name:<14}{len(mine):>6}{shares}{_share(mine, 'faster'):>8.0%}{gain!s:>44}")
        if name != "full" and (both := [one for one in full if one in some]):
            less = mean_of([_kept(full[one]) - _kept(some[one]) for one in both])
            right = mean_of([float(full[one]["correct"]) - float(some[one]["correct"]) for one in both])
            print(f"    full minus this, same pairs: log gain {less}; correct {right}")
    reference = mean_of([max(0.0, math.log(row["reference"][0])) for row in full.values()])
    print(f"the rewriter's children of these pairs, as measured: log gain kept {reference}")
    bar = mean_of([float(_good(row)) for row in full.values()])
    said = "reached" if bar.value >= WITNESSED_BAR else "MISSED"
    print(f"bar, correct and witnessed at least {WITNESSED_BAR:.0%}: {said}, {bar}")


def _good(row: Row) -> bool:
    return bool(row["correct"] and row["witnessed"])


def _kept(row: Row) -> float:
    """Log gain, as a search keeps it: 0 where the child is wrong or slower."""
    return max(0.0, math.log(row["gain"][0])) if row.get("gain") else 0.0


def _share(rows: Sequence[Row], which: str | Callable[[Row], bool]) -> float:
    return sum(bool(which(row) if callable(which) else row[which]) for row in rows) / len(rows)


def print_repair(notebook: Notebook) -> None:
    """Shares mended with the category told and without, by category, and the paired difference."""
    told = {row["fault"]: row for row in notebook.items("repair", coding.CATEGORY).values()}
    bare = {row["fault"]: row for row in notebook.items("repair", coding.NO_CATEGORY).values()}
    if not told:
        return
    print(f"\nrepair: mended within {1 + coding.REPAIRS} answers")
    for variant, rows in ((coding.CATEGORY, told), (coding.NO_CATEGORY, bare)):
        if rows:
            every = mean_of([float(row["repaired"]) for row in rows.values()])
            print(f"{variant:<14}{every!s:>44}    {_by_category(rows)}")
    both = [one for one in told if one in bare]
    if both:
        more = mean_of([float(told[one]["repaired"]) - float(bare[one]["repaired"]) for one in both])
        fewer = mean_of([float(bare[one]["answers"] - told[one]["answers"]) for one in both])
        print(f"the category brings {more}; answers saved {fewer}")


def _by_category(rows: Mapping[str, Row]) -> str:
    parts = []
    for category in CATEGORIES:
        mine = [row["repaired"] for row in rows.values() if row["category"] == category]
        parts += [f"{category} {sum(mine)}/{len(mine)}"] if mine else []
    return ", ".join(parts)


def print_arms(notebook: Notebook) -> None:
    rows = notebook.items("arms")
    if not rows:
        return
    print("\narms: speed-up over the first kernel by each search, with what it spent")
    for task in dict.fromkeys(row["task"] for row in rows.values()):
        for arm in ARMS:
            row = rows.get(f"{task} {arm}")
            if row is None:
                continue
            gain = f"{math.exp(row['log_gain']):.3f}x ({row['judged']})" if row["log_gain"] is not None else "nothing"
            dollars = f"${row['dollars']:.2f}" if row["dollars"] is not None else "price not known"
            spent = f"{row['calls']} calls, {row['tokens']} tokens, {dollars}, {row['gpu_s']:.0f} GPU s"
            print(f"{task:<12}{arm:<14}{gain:>22}    {spent}; ended by {row['ended']}")
    gains = {arm: [rows[i]["log_gain"] for i in rows if i.endswith(arm)] for arm in ARMS}
    for arm, some in gains.items():
        known = [one for one in some if one is not None]
        if known:
            print(f"{arm:<14}geometric mean over {len(known)} tasks {math.exp(sum(known) / len(known)):.3f}x")
