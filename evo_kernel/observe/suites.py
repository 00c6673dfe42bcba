"""Results of a suite: one row a task, the figures that benchmarks are compared by, and the report.

fast_p is the share of *all* problems whose kernel is correct and more than p times as fast as a baseline (KernelBench).
It needs measured times; modeled ones have no baseline, and then only the gain over the first kernel is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter

from evo_kernel.observe.document import Block, Heading, Paragraph, Table
from evo_kernel.observe.formatting import dashed

CORRECT, WRONG, NONE = "correct", "wrong", "no verdict"
TIMES = "{:.2f}x"
_Time = Annotated[float | None, BeforeValidator(lambda us: us if us is not None and 0 < float(us) < math.inf else None)]


@dataclass(frozen=True)
class Stock:
    """What a benchmark's own harness says of the kernel that was found. Times are its own, in µs."""

    verdict: Annotated[str, Field(pattern="^(correct|wrong|no verdict)$")]  # the last: `reason` says why
    reason: str = ""
    kernel: str = ""  # sha256 of the source that it was asked about
    sizes: str = "own"  # "own", or "small": what is executed on a CPU
    us: _Time = None
    eager_us: _Time = None
    tf32_us: _Time = None  # eager, with TF32 allowed
    timed: int = 0  # trials
    scaled: Mapping[str, bool] = field(default_factory=dict)  # factor of the inputs -> correct
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def correct(self) -> bool:
        return self.verdict == CORRECT

    @property
    def verified(self) -> bool:
        """Correct with the inputs as they are and at every factor."""
        return self.correct and bool(self.scaled) and all(self.scaled.values())

    @property
    def speedup(self) -> float | None:
        """Eager ÷ kernel; of a kernel that the harness calls correct."""
        return self.eager_us / self.us if self.correct and self.us and self.eager_us else None

    @property
    def verified_speedup(self) -> float | None:
        """Eager in TF32 ÷ kernel; of a kernel that is correct at every factor."""
        return self.tf32_us / self.us if self.verified and self.us and self.tf32_us else None


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


def stock_of(data: object) -> Stock:
    """A stock result from JSON. Raises ValueError for what is none: a child wrote it."""
    return TypeAdapter(Stock).validate_python(data)


def suite_row(data: object) -> SuiteRow:
    """A row from JSON. Raises ValueError."""
    return TypeAdapter(SuiteRow).validate_python(data)


STOCK: Mapping[str, Callable[[Stock], tuple[bool, float | None]]] = {
    "stock, eager": lambda stock: (stock.correct, stock.speedup),
    "stock, scaled inputs, TF32 eager": lambda stock: (stock.verified, stock.verified_speedup),
}
"""Protocols of a benchmark's own harness: whether a kernel passes, and how much faster than its baseline it is."""


@dataclass(frozen=True)
class Figures:
    """A group of rows by one protocol. Shares are of its problems, less those whose kernel the protocol was not asked
    about; None where nothing was measured, or nothing asked."""

    group: str
    baseline: str  # this judge's, or a stock protocol
    own_only: bool  # of kernels that call no torch operation
    problems: int
    correct: float | None
    fast_1: float | None
    fast_2: float | None
    mean_all: float | None  # arithmetic, a problem without a kernel counts 0: a geometric mean of a zero is zero
    geomean_correct: float | None
    gain: float | None  # first kernel ÷ best, geometric mean over the correct, modeled where times are
    not_asked: int = 0  # kernels that the harness was not asked about
    undecided: int = 0  # kernels that it says nothing about; they count as not correct


def figures(rows: Sequence[SuiteRow]) -> list[Figures]:
    """Every group, then all; by each baseline and, where a harness was asked, by its protocols; own kernels apart."""
    groups = list(dict.fromkeys(row.group for row in rows))
    named = sorted({name for row in rows for name in row.baselines_us if row.measured})
    chosen = [(group, [row for row in rows if row.group == group]) for group in groups]
    if len(groups) > 1:
        chosen.append(("all", list(rows)))
    protocols = [FASTEST, *named, *(STOCK if any(row.stock is not None for row in rows) else ())]
    return [
        _figures(group, members, protocol, own_only)
        for group, members in chosen
        for protocol in protocols
        for own_only in (False, True)
    ]


def _figures(group: str, rows: Sequence[SuiteRow], baseline: str, own_only: bool) -> Figures:
    asked, able = STOCK.get(baseline), [row for row in rows if row.correct and row.us(own_only) is not None]
    if asked is None:
        told = [(row, True, row.speedup(baseline, own_only)) for row in able]
        stocks = []
    else:  # about the best kernel alone
        able = [row for row in able if not (own_only and row.torch_operations)]
        told = [(row, *asked(row.stock)) for row in able if row.stock is not None]
        stocks = [row.stock for row in able]
    good = [row for row, passes, _ in told if passes]
    ratios = [ratio for _, passes, ratio in told if passes and ratio is not None]
    count = len(rows) - stocks.count(None)
    measured = count > 0 and any(row.measured for row in rows) and (bool(ratios) or asked is None)
    return Figures(
        group=group,
        baseline=baseline,
        own_only=own_only,
        problems=len(rows),
        correct=len(good) / count if count else None,
        fast_1=sum(ratio > 1 for ratio in ratios) / count if measured else None,
        fast_2=sum(ratio > 2 for ratio in ratios) / count if measured else None,
        mean_all=math.fsum(ratios) / count if measured else None,
        geomean_correct=geomean(ratios),
        gain=geomean([gain for row in good if (gain := row.gain(own_only)) is not None]),
        not_asked=stocks.count(None),
        undecided=sum(stock is not None and stock.verdict == NONE for stock in stocks),
    )


def geomean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def disagreements(rows: Sequence[SuiteRow]) -> dict[str, list[str]]:
    """What the protocols say differently → the problems; nothing where they agree, or one has no verdict."""
    found: dict[str, list[str]] = {
        "this judge passes the kernel, the stock protocol does not": [],
        "the stock protocol passes the kernel, but not with scaled inputs": [],
        "faster than eager by this judge, not by the stock protocol": [],
        "faster than eager by the stock protocol, not by this judge": [],
    }
    judge_only, unscaled, faster_here, faster_there = found.values()
    for row in rows:
        stock = row.stock
        if not row.correct or stock is None or stock.verdict == NONE:
            continue
        if stock.verdict == WRONG:
            judge_only.append(row.label)
        elif stock.scaled and not stock.verified:
            unscaled.append(row.label)
        here, there = row.speedup("eager"), stock.speedup
        if here is not None and there is not None and (here > 1) != (there > 1):
            (faster_here if here > 1 else faster_there).append(row.label)
    return {what: labels for what, labels in found.items() if labels}


def as_data(rows: Sequence[SuiteRow]) -> dict[str, Any]:
    """One object for scripts."""
    told = [asdict(row) | {"gain": row.gain(), "speedup": row.speedup()} for row in rows]
    return {
        "tasks": told,
        "figures": [asdict(one) for one in figures(rows)],
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
        *_stock_blocks(rows),
        Heading("Tasks"),
        Table(head, [_cells(row) for row in rows]),
        *([Heading("Why"), Table(["task", "reason"], told)] if told else []),
    ]


def _figure_table(rows: Sequence[SuiteRow]) -> Table:
    every = figures(rows)
    asked = any(row.stock is not None for row in rows)
    head = ["group", "problems", "baseline", "kernels", "correct", "fast_1", "fast_2", "mean, failures 0",
            "geomean of correct", "gain", *(["not asked", "no verdict"] if asked else [])]  # fmt: skip
    lines = []
    for one in every:
        shares = [_percent(share) for share in (one.correct, one.fast_1, one.fast_2)]
        ratios = [dashed(ratio, TIMES) for ratio in (one.mean_all, one.geomean_correct, one.gain)]
        asking = [str(one.not_asked), str(one.undecided)] if asked else []
        kernels = "own only" if one.own_only else "any"
        lines.append([one.group, str(one.problems), one.baseline, kernels, *shares, *ratios, *asking])
    return Table(head, lines)


def _stock_blocks(rows: Sequence[SuiteRow]) -> list[Block]:
    """What the benchmark's own harness says of each kernel, and where it disagrees. Empty where none was asked."""
    if all(row.stock is None for row in rows):
        return []
    apart = disagreements(rows)
    both = sum(row.correct and row.stock is not None and row.stock.verdict != NONE for row in rows)
    differ = len({label for labels in apart.values() for label in labels})
    where = [Table(["what", "problems"], [[what, ", ".join(labels)] for what, labels in apart.items()])]
    head = ["task", "this judge", "vs eager", "stock", "stock µs", "stock vs eager", "scaled inputs", "vs TF32 eager"]
    return [
        Heading("Kernels by each protocol"),
        Paragraph("Stock: the benchmark's own harness, run on the kernels found (docs/guides/benchmarks.md)."),
        Paragraph(f"The protocols disagree about {differ} of the {both} kernels that all of them judged."),
        *(where if apart else []),
        Table(head, [_stock_cells(row) for row in rows]),
    ]


def _stock_cells(row: SuiteRow) -> list[str]:
    judge = [row.label, row.status, dashed(row.speedup("eager"), TIMES)]
    stock = row.stock
    if stock is None:
        return [*judge, "not asked" if row.correct else "-", "-", "-", "-", "-"]
    failed = [factor for factor, correct in stock.scaled.items() if not correct]
    scaled = "-" if not stock.correct or not stock.scaled else f"wrong at {', '.join(failed)}" if failed else CORRECT
    return [
        *judge,
        stock.verdict if stock.sizes == "own" else f"{stock.verdict} ({stock.sizes} sizes)",
        dashed(stock.us, "{:.1f}"),
        dashed(stock.speedup, TIMES),
        scaled,
        dashed(stock.verified_speedup, TIMES),
    ]


def _cells(row: SuiteRow) -> list[str]:
    return [
        row.label,
        row.status,
        row.first,
        dashed(row.first_us, "{:.1f}"),
        dashed(row.best_us, "{:.1f}"),
        dashed(row.gain(), TIMES),
        dashed(row.speedup(), TIMES),
        _percent(row.light_share),
        _percent(row.own_share),
        dashed(row.us(own_only=True), "{:.1f}"),
        str(row.evaluations),
        f"{row.minutes:.1f}",
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
