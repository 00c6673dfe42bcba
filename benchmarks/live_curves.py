"""What live searches found, by the number of judged children: the report of `benchmarks.live_policies`.

A gain is log(time of the task's first kernel, tuned ÷ time of the fastest of the first n children), geometric mean over
search cases, in natural logarithm: 0.1 is 10 %. A kernel's time is that of its latest score, as in a run's own
standings, so a lucky measurement that a second one took back does not count; the first kernel's latest score is tuned
(a wide search measures it untuned first). With no child that is faster the gain is 0, the first kernel's own.

Per policy: the gain after all evaluations, and its mean over the evaluations (the area under the curve: who finds it
sooner). Means and 95 % intervals (Student's t) are over seeds; differences are paired by seed, above zero is better.
Only seeds that every policy ended are counted, and over all tasks only those that every task has.

`live.md`, `live.json`, and a picture a task, `live-TASK.svg`, lie beside the populations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from evo_kernel.observe.pictures import figure, svg
from operators.learning.evaluation import Interval
from populations.reading import PopulationReader

FIRST = 1
ALL = "all tasks"
BASELINES = ("uniform", "bandit")
WHAT = "log gain over the first kernel, tuned"


@dataclass(frozen=True)
class Search:
    """One that ended. `gains`: the best log gain so far after 0, 1, … children; `charged`: by the run's own budget."""

    task: str
    policy: str
    seed: int
    gains: tuple[float, ...]
    children: float
    charged: float
    gpu_s: float
    seconds: float
    setup_s: float
    kind: str = ""  # "measured" | "modeled"

    @property
    def final(self) -> float:
        return self.gains[-1]

    @property
    def area(self) -> float:
        """The mean over evaluations."""
        return math.fsum(self.gains[1:]) / (len(self.gains) - 1)


# ---- reading ---------------------------------------------------------------------------------------------------------


def judged(path: Path) -> list[float | None]:
    """Of each child with a verdict, in the order of the first verdicts: log time by its latest score, or None."""
    with PopulationReader(path) as reader:
        return _times_of_children(reader)


def first_verdict_at(path: Path) -> float:
    """Unix time at which the first kernel was judged: what comes before is setup."""
    with PopulationReader(path) as reader:
        return reader.connection.execute("SELECT at FROM evaluations ORDER BY id LIMIT 1").fetchone()[0]


def read_search(path: Path, row: Mapping[str, Any], evaluations: int) -> Search:
    """Raises ValueError where the first kernel has no time: then nothing is a gain."""
    with PopulationReader(path) as reader:
        first, times = _scored(reader).get(FIRST), _times_of_children(reader)
        rows = reader.connection.execute("SELECT charged, gpu_s FROM evaluations").fetchall()
        environment = reader.environment
    if first is None:
        raise ValueError(f"{path}: the first kernel did not pass, there is nothing to compare with")
    return Search(
        task=row["task"],
        policy=row["policy"],
        seed=row["seed"],
        gains=best_so_far(first, times, evaluations),
        children=min(len(times), evaluations),
        charged=sum(sum(json.loads(charged).values()) for charged, _ in rows),
        gpu_s=sum(gpu_s for _, gpu_s in rows),
        seconds=row["seconds"],
        setup_s=row["setup_s"],
        kind=environment.kind if environment else "",
    )


def _scored(reader: PopulationReader) -> dict[int, float | None]:
    """Candidate -> log time by its latest score, None where that did not pass; in the order of first verdicts."""
    sql = "SELECT candidate, status, log_us FROM evaluations WHERE purpose = 'score' AND status != 'infra_error'"
    found: dict[int, float | None] = {}
    for candidate, status, log_us in reader.connection.execute(f"{sql} ORDER BY id"):
        found[candidate] = log_us if status == "passed" else None  # a key keeps its first place
    return found


def _times_of_children(reader: PopulationReader) -> list[float | None]:
    found = reader.connection.execute("SELECT id FROM candidates WHERE parent IS NOT NULL")
    children = {number for (number,) in found}
    return [log_us for candidate, log_us in _scored(reader).items() if candidate in children]


def best_so_far(first: float, times: Sequence[float | None], evaluations: int) -> tuple[float, ...]:
    """Log gains over `first` (a log time) after 0 to `evaluations` children; the last counts on where there are fewer.
    None: a child that did not pass."""
    gains = [0.0]
    for number in range(evaluations):
        log_us = times[number] if number < len(times) else None
        gains.append(max(gains[-1], first - log_us) if log_us is not None else gains[-1])
    return tuple(gains)


# ---- what is compared ------------------------------------------------------------------------------------------------


def whole(searches: Sequence[Search], policies: Sequence[str]) -> dict[str, dict[str, list[Search]]]:
    """Task -> policy -> searches by seed, of seeds that all policies ended; then all tasks together, if several."""
    by_key = {(one.task, one.seed, one.policy): one for one in searches}
    tasks = list(dict.fromkeys(one.task for one in searches))
    all_seeds = sorted({one.seed for one in searches})

    def seeds(*among: str) -> list[int]:
        return [seed for seed in all_seeds if all((task, seed, name) in by_key for task in among for name in policies)]

    found = {
        task: {name: [by_key[task, seed, name] for seed in seeds(task)] for name in policies}
        for task in tasks
        if seeds(task)
    }
    if len(tasks) > 1 and seeds(*tasks):
        found[ALL] = {
            name: [averaged([by_key[task, seed, name] for task in tasks]) for seed in seeds(*tasks)]
            for name in policies
        }
    return found


def averaged(searches: Sequence[Search]) -> Search:
    """The same seed and policy over tasks, each task alike."""
    count, first = len(searches), searches[0]

    def mean(value: Callable[[Search], float]) -> float:
        return math.fsum(map(value, searches)) / count

    return Search(
        task=ALL,
        policy=first.policy,
        seed=first.seed,
        gains=tuple(math.fsum(together) / count for together in zip(*(one.gains for one in searches), strict=True)),
        children=mean(lambda one: one.children),
        charged=mean(lambda one: one.charged),
        gpu_s=mean(lambda one: one.gpu_s),
        seconds=mean(lambda one: one.seconds),
        setup_s=mean(lambda one: one.setup_s),
        kind=first.kind,
    )


def pairs_of(policies: Sequence[str]) -> list[tuple[str, str]]:
    """(policy, what it is held against)."""
    found = [(name, "bandit") for name in policies if name not in BASELINES] + [("bandit", "uniform")]
    return [(one, other) for one, other in found if one in policies and other in policies]


def figures(by_policy: Mapping[str, Sequence[Search]]) -> dict[str, Any]:
    """All numbers of a task."""
    rows, policies = {}, list(by_policy)
    for name, searches in by_policy.items():
        costs = ("children", "charged", "gpu_s", "seconds", "setup_s")
        rows[name] = {
            "final": Interval.of([one.final for one in searches]),
            "area": Interval.of([one.area for one in searches]),
            "curve": [Interval.of(values) for values in zip(*(one.gains for one in searches), strict=True)],
            **{cost: math.fsum(getattr(one, cost) for one in searches) / len(searches) for cost in costs},
        }
    differences = {
        f"{one} - {other}": {
            what: Interval.of(
                [getattr(a, what) - getattr(b, what) for a, b in zip(by_policy[one], by_policy[other], strict=True)]
            )
            for what in ("final", "area")
        }
        for one, other in pairs_of(policies)
    }
    seeds = [one.seed for one in by_policy[policies[0]]]
    return {"seeds": seeds, "policies": rows, "differences": differences}


# ---- telling ---------------------------------------------------------------------------------------------------------


def report(out: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write all files; the Markdown."""
    if not rows:
        return f"{out} holds no search that ended"
    evaluations = min(row["evaluations"] for row in rows)  # one number, unless somebody joined two files
    policies = [*BASELINES, *dict.fromkeys(row["policy"] for row in rows if row["policy"] not in BASELINES)]
    policies = [name for name in policies if any(row["policy"] == name for row in rows)]
    searches, faults = [], []
    for row in rows:
        try:
            searches.append(read_search(out / f"{row['name']}.db", row, evaluations))
        except ValueError as fault:
            faults.append(f"\nLeft out: {fault}.\n")
    groups = whole(searches, policies)
    kinds = ", ".join(sorted({one.kind for one in searches}))
    told = {name: figures(group) for name, group in groups.items()}
    text = f"Gains are {kinds}; {evaluations} judged children a search.\n"
    text += "".join(f"\n{table(name, one)}" for name, one in told.items()) or "No seed was ended by every policy yet.\n"
    text += "".join(faults)
    (out / "live.md").write_text(text)
    data = {"kind": kinds, "evaluations": evaluations, "tasks": told}
    (out / "live.json").write_text(json.dumps(data, default=_plain, indent=1))
    for name, one in told.items():
        (out / f"live-{name.replace(' ', '-')}.svg").write_text(svg(picture(name, one, kinds)))
    return text


def _plain(value: Any) -> Any:
    assert isinstance(value, Interval)
    ends = [end if math.isfinite(end) else None for end in (value.low, value.high)]
    return {"mean": value.mean, "low": ends[0], "high": ends[1]}


def table(name: str, told: Mapping[str, Any]) -> str:
    lines = [
        f"### {name}, {len(told['seeds'])} seed{'s' * (len(told['seeds']) != 1)}",
        "",
        "| policy | final gain (log) | | mean over evaluations (log) | s a search | of it setup | GPU s | charged |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for policy, row in told["policies"].items():
        costs = f"{row['seconds']:.0f} | {row['setup_s']:.0f} | {row['gpu_s']:.1f} | {row['charged']:.0f}"
        final = row["final"]
        lines.append(
            f"| {policy} | {told_as(final)} | {math.exp(final.mean):.2f}x | {told_as(row['area'])} | {costs} |"
        )
    for pair, one in told["differences"].items():
        lines.append(f"| {pair} | {told_as(one['final'])} | | {told_as(one['area'])} | | | | |")
    return "\n".join(lines) + "\n"


def told_as(interval: Interval) -> str:
    if not math.isfinite(interval.low):
        return f"{interval.mean:.3f}"
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def picture(name: str, told: Mapping[str, Any], kinds: str) -> Figure:
    """A curve a policy, with the band of its interval, which is cut off at the frame: gains are not below 0, and few
    seeds have wide ones."""
    policies, count = told["policies"], len(told["seeds"])
    means = [one.mean for row in policies.values() for one in row["curve"]]
    highs = [one.high for row in policies.values() for one in row["curve"]]
    top = max(0.01, min(max(highs), 2.0 * max(means)))
    drawn, axes = figure(7.9, 3.8)
    band = f"mean of {count} seeds, band: 95 % interval" if count > 1 else "1 seed"
    axes.set_title(f"{name}, {kinds}: {band}", loc="left", size="medium")
    axes.set(ylim=(0.0, top), xlabel="judged children", ylabel=WHAT)
    for policy, row in policies.items():
        (line,) = axes.plot([one.mean for one in row["curve"]], label=policy)
        if count > 1:
            low, high = ([getattr(one, end) for one in row["curve"]] for end in ("low", "high"))
            axes.fill_between(range(len(low)), low, high, color=line.get_color(), alpha=0.18, gid=f"band {policy}")
    axes.secondary_yaxis("right", functions=(np.exp, lambda x: np.log(np.maximum(x, 1e-9)))).set_ylabel("as a factor")
    axes.legend(frameon=False)
    axes.grid(axis="y", alpha=0.3)
    return drawn
