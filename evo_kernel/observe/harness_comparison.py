"""The same kernels by three protocols, side by side: this project's judge, a benchmark's own harness, and that harness
with scaled inputs and an eager baseline in TF32. Where they disagree, the problems are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from evo_kernel.observe.document import Block, Heading, Paragraph, Table

HEAD = ("task", "this judge", "vs eager", "stock", "stock µs", "stock vs eager", "scaled inputs", "vs TF32 eager")
CORRECT, WRONG, NONE = "correct", "wrong", "no verdict"


@dataclass(frozen=True)
class Stock:
    """What a benchmark's own harness says of the kernel that was found. Times are its own, in µs."""

    verdict: str  # CORRECT, WRONG, or NONE: the harness could not tell, and `reason` says why
    reason: str = ""
    kernel: str = ""  # sha256 of the source that it was asked about
    sizes: str = "own"  # "own", or "small": what is executed on a CPU
    us: float | None = None
    eager_us: float | None = None
    tf32_us: float | None = None  # eager, with TF32 allowed
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


def stock_of(data: Mapping[str, Any]) -> Stock:
    """A stock result from JSON. Raises TypeError, ValueError, KeyError for what is none: a child wrote it."""
    if data["verdict"] not in (CORRECT, WRONG, NONE):
        raise ValueError(f"unknown verdict {data['verdict']!r}")
    times = {name: _time(data.get(name)) for name in ("us", "eager_us", "tf32_us")}
    return Stock(
        verdict=data["verdict"],
        reason=str(data.get("reason", "")),
        kernel=str(data.get("kernel", "")),
        sizes=str(data.get("sizes", "own")),
        timed=int(data.get("timed", 0)),
        scaled={str(name): bool(value) for name, value in dict(data.get("scaled", {})).items()},
        notes=tuple(map(str, data.get("notes", ()))),
        seconds=float(data.get("seconds", 0.0)),
        **times,
    )


def _time(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) and float(value) > 0 else None


class Row(Protocol):
    """What is needed of a task's row."""

    @property
    def label(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def correct(self) -> bool: ...
    @property
    def torch_operations(self) -> Sequence[str]: ...
    @property
    def stock(self) -> Stock | None: ...

    def speedup(self, baseline: str = ...) -> float | None: ...


@dataclass(frozen=True)
class Side:
    """One protocol: who passes by it, and how much faster than its eager baseline."""

    name: str
    passes: Callable[[Any], bool]
    ratio: Callable[[Any], float | None]


PROTOCOLS = (
    Side("this judge vs eager", lambda row: row.correct, lambda row: row.speedup("eager")),
    Side(
        "stock vs eager",
        lambda row: row.stock is not None and row.stock.correct,
        lambda row: row.stock.speedup if row.stock is not None else None,
    ),
    Side(
        "stock, scaled inputs vs TF32 eager",
        lambda row: row.stock is not None and row.stock.verified,
        lambda row: row.stock.verified_speedup if row.stock is not None else None,
    ),
)


@dataclass(frozen=True)
class Standing:
    """A group of rows by one protocol. Shares are of all its problems but those whose kernel the protocol was not asked
    about; None where nothing was measured, or nothing asked."""

    group: str
    own_only: bool  # a kernel that still calls torch operations counts as none
    protocol: str
    problems: int
    not_asked: int  # kernels that it was not asked about; they count nowhere
    undecided: int  # kernels that it was asked about and says nothing about; they count as not correct
    correct: float | None
    fast_1: float | None
    fast_2: float | None
    mean_all: float | None
    geomean_correct: float | None


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Every group, then all; with library calls and without; by every protocol. Empty where no harness was asked."""
    if all(row.stock is None for row in rows):
        return []
    groups = list(dict.fromkeys(row.group for row in rows))
    chosen = [(group, [row for row in rows if row.group == group]) for group in groups]
    if len(groups) > 1:
        chosen.append(("all", list(rows)))
    return [
        _standing(group, members, own_only, protocol)
        for group, members in chosen
        for own_only in (False, True)
        for protocol in PROTOCOLS
    ]


def _standing(group: str, rows: Sequence[Row], own_only: bool, protocol: Side) -> Standing:
    able = [row for row in rows if row.correct and not (own_only and row.torch_operations)]
    good = [row for row in able if protocol.passes(row)]
    ratios = [ratio for row in good if (ratio := protocol.ratio(row)) is not None]
    measured = any(protocol.ratio(row) is not None for row in rows)
    stocks = [row.stock for row in able] if protocol is not PROTOCOLS[0] else []
    not_asked = stocks.count(None)
    count = len(rows) - not_asked
    measured = measured and count > 0
    return Standing(
        group=group,
        own_only=own_only,
        protocol=protocol.name,
        problems=len(rows),
        not_asked=not_asked,
        undecided=sum(stock is not None and stock.verdict == NONE for stock in stocks),
        correct=len(good) / count if count else None,
        fast_1=sum(ratio > 1 for ratio in ratios) / count if measured else None,
        fast_2=sum(ratio > 2 for ratio in ratios) / count if measured else None,
        mean_all=math.fsum(ratios) / count if measured else None,
        geomean_correct=math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None,
    )


def disagreements(rows: Sequence[Row]) -> dict[str, list[str]]:
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


def side_by_side(rows: Sequence[Row]) -> list[Block]:
    """The protocols as columns, a line a figure, and where they disagree. Empty where no harness was asked."""
    every = standings(rows)
    if not every:
        return []
    lines = []
    for at in range(0, len(every), len(PROTOCOLS)):
        beside = every[at : at + len(PROTOCOLS)]
        kernels = "own only" if beside[0].own_only else "any"
        for name, cells in _figures(beside):
            lines.append([beside[0].group, str(beside[0].problems), kernels, name, *cells])
    head = ["group", "problems", "kernels", "figure", *(protocol.name for protocol in PROTOCOLS)]
    apart = disagreements(rows)
    both = sum(row.correct and row.stock is not None and row.stock.verdict != NONE for row in rows)
    differ = len({label for labels in apart.values() for label in labels})
    said = f"They disagree about {differ} of the {both} kernels that all of them looked at."
    return [
        Heading("Protocols side by side"),
        Paragraph("Stock: the benchmark's own harness, run on the kernels found (docs/guides/benchmarks.md)."),
        Table(head, lines),
        Paragraph(said),
        *(
            [Table(["what", "problems"], [[what, ", ".join(labels)] for what, labels in apart.items()])]
            if apart
            else []
        ),
        Heading("Kernels by each protocol"),
        Table(HEAD, [_cells(row) for row in rows]),
    ]


def _cells(row: Row) -> list[str]:
    judge = [row.label, row.status, _times(row.speedup("eager"))]
    stock = row.stock
    if stock is None:
        return [*judge, "not asked" if row.correct else "-", "-", "-", "-", "-"]
    failed = [factor for factor, correct in stock.scaled.items() if not correct]
    scaled = "-" if not stock.correct or not stock.scaled else f"wrong at {', '.join(failed)}" if failed else CORRECT
    return [
        *judge,
        stock.verdict if stock.sizes == "own" else f"{stock.verdict} ({stock.sizes} sizes)",
        "-" if stock.us is None else f"{stock.us:.1f}",
        _times(stock.speedup),
        scaled,
        _times(stock.verified_speedup),
    ]


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _figures(beside: Sequence[Standing]) -> list[tuple[str, list[str]]]:
    def shares(values: Sequence[float | None]) -> list[str]:
        return ["-" if value is None else f"{100 * value:.0f} %" for value in values]

    def ratios(values: Sequence[float | None]) -> list[str]:
        return [_times(value) for value in values]

    found = [("correct", shares([one.correct for one in beside]))]
    if any(one.mean_all is not None for one in beside):
        found += [
            ("fast_1", shares([one.fast_1 for one in beside])),
            ("fast_2", shares([one.fast_2 for one in beside])),
            ("mean, failures 0", ratios([one.mean_all for one in beside])),
            ("geomean of correct", ratios([one.geomean_correct for one in beside])),
        ]
    if any(one.not_asked for one in beside):
        found.append(("not asked", [str(one.not_asked) for one in beside]))
    if any(one.undecided for one in beside):
        found.append(("no verdict", [str(one.undecided) for one in beside]))
    return found
