"""What a suite of tasks came to: one row a task, and the figures that benchmarks are compared by.

fast_p is the share of *all* problems whose kernel is correct and more than p times as fast as a baseline (KernelBench).
It needs measured times; modeled ones have no baseline, and then only the gain over the first kernel is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evo_kernel.observe.document import Block, Heading, Paragraph, Table
from evo_kernel.observe.harness_comparison import Stock, disagreements, side_by_side, standings

FASTEST = "fastest"
"""Stands for whichever listed baseline is fastest on a case: what a score is relative to."""


@dataclass(frozen=True)
class SuiteRow:
    """One task of a suite. Times are geometric means over its search cases, in µs."""

    task: str
    label: str
    group: str
    status: str  # "confirmed", "passed", "nothing passed", "failed" (no search: `reason` says why), "waiting"
    reason: str = ""
    environment: str = ""  # label
    measured: bool = False
    first: str = "none"  # kind of the first kernel: kernels, mixed, torch, none
    first_us: float | None = None
    best_us: float | None = None
    own_us: float | None = None  # where the best calls torch operations: of the fastest that calls none
    baselines_us: Mapping[str, float] = field(default_factory=dict)
    light_share: float | None = None
    own_share: float | None = None  # of the time, in the candidate's own kernels; 1.0 where no torch operation is left
    torch_operations: tuple[str, ...] = ()
    evaluations: int = 0
    minutes: float = 0.0
    cut: bool = False  # its search was cut short, before it could confirm its best: there is more to do
    stock: Stock | None = None  # None: its benchmark's harness was not asked, or has none

    @property
    def correct(self) -> bool:
        return self.status in ("confirmed", "passed")

    def us(self, own_only: bool = False) -> float | None:
        """Of the best; `own_only`: of the fastest that calls no torch operation, which may be the best itself."""
        return self.own_us if own_only and self.torch_operations else self.best_us

    def gain(self, own_only: bool = False) -> float | None:
        """First kernel ÷ best; `own_only` as for `us`."""
        us = self.us(own_only)
        return self.first_us / us if self.first_us and us else None

    def speedup(self, baseline: str = FASTEST, own_only: bool = False) -> float | None:
        """Baseline ÷ best, of measured times; `own_only` as for `us`."""
        us = self.us(own_only)
        if not self.measured or not us or not self.baselines_us:
            return None
        if baseline == FASTEST:
            return min(self.baselines_us.values()) / us
        return self.baselines_us[baseline] / us if baseline in self.baselines_us else None


@dataclass(frozen=True)
class Figures:
    """A group of rows against one baseline. Shares are of all its problems; None where nothing was measured."""

    group: str
    baseline: str
    own_only: bool  # of kernels that call no torch operation
    problems: int
    correct: float
    fast_1: float | None
    fast_2: float | None
    mean_all: float | None  # arithmetic, a problem without a kernel counts 0: a geometric mean of a zero is zero
    geomean_correct: float | None
    gain: float | None  # first kernel ÷ best, geometric mean over the correct, modeled where times are


def figures(rows: Sequence[SuiteRow]) -> list[Figures]:
    """Every group, then all; against the fastest baseline and each other; with library calls and without."""
    groups = list(dict.fromkeys(row.group for row in rows))
    named = sorted({name for row in rows for name in row.baselines_us if row.measured})
    chosen = [(group, [row for row in rows if row.group == group]) for group in groups]
    if len(groups) > 1:
        chosen.append(("all", list(rows)))
    return [
        _figures(group, members, baseline, own_only)
        for group, members in chosen
        for baseline in (FASTEST, *named)
        for own_only in (False, True)
    ]


def _figures(group: str, rows: Sequence[SuiteRow], baseline: str, own_only: bool) -> Figures:
    good = [row for row in rows if row.correct and row.us(own_only) is not None]
    ratios = [ratio for row in good if (ratio := row.speedup(baseline, own_only)) is not None]
    measured = any(row.measured for row in rows)
    count = len(rows)
    return Figures(
        group=group,
        baseline=baseline,
        own_only=own_only,
        problems=count,
        correct=len(good) / count,
        fast_1=sum(ratio > 1 for ratio in ratios) / count if measured else None,
        fast_2=sum(ratio > 2 for ratio in ratios) / count if measured else None,
        mean_all=math.fsum(ratios) / count if measured else None,
        geomean_correct=geomean(ratios),
        gain=geomean([gain for row in good if (gain := row.gain(own_only)) is not None]),
    )


def geomean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def as_data(rows: Sequence[SuiteRow]) -> dict[str, Any]:
    """One object for scripts."""
    told = [asdict(row) | {"gain": row.gain(), "speedup": row.speedup()} for row in rows]
    return {
        "tasks": told,
        "figures": [asdict(one) for one in figures(rows)],
        "protocols": [asdict(one) for one in standings(rows)],
        "disagreements": disagreements(rows),
    }


def report(title: str, rows: Sequence[SuiteRow]) -> list[Block]:
    """The report: figures, then a table of all tasks, then why some have none."""
    labels = sorted({row.environment for row in rows if row.environment})
    head = ["task", "state", "first kernel", "first µs", "best µs", "gain", "vs fastest baseline", "share of light",
            "own kernels", "own only µs", "evaluations", "minutes"]  # fmt: skip
    told = [[row.label, row.reason] for row in rows if row.reason]
    told += [
        [row.label, f"stock: {why}"] for row in rows if row.stock for why in (row.stock.reason, *row.stock.notes) if why
    ]
    return [
        Heading(title, 1),
        Paragraph(f"Times are {' and '.join(labels) or 'not there yet'}."),
        _figure_table(rows),
        *side_by_side(rows),
        Heading("Tasks"),
        Table(head, [_cells(row) for row in rows]),
        *([Heading("Why"), Table(["task", "reason"], told)] if told else []),
    ]


def _figure_table(rows: Sequence[SuiteRow]) -> Table:
    head = ["group", "problems", "baseline", "kernels", "correct", "fast_1", "fast_2", "mean, failures 0",
            "geomean of correct", "gain"]  # fmt: skip
    lines = []
    for one in figures(rows):
        kernels = "own only" if one.own_only else "any"
        shares = [_percent(share) for share in (one.correct, one.fast_1, one.fast_2)]
        ratios = [_times(ratio) for ratio in (one.mean_all, one.geomean_correct, one.gain)]
        lines.append([one.group, str(one.problems), one.baseline, kernels, *shares, *ratios])
    return Table(head, lines)


def _cells(row: SuiteRow) -> list[str]:
    return [
        row.label,
        row.status,
        row.first,
        _number(row.first_us),
        _number(row.best_us),
        _times(row.gain()),
        _times(row.speedup()),
        _percent(row.light_share),
        _percent(row.own_share),
        _number(row.us(own_only=True)),
        str(row.evaluations),
        f"{row.minutes:.1f}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
