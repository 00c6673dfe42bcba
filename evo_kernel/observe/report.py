"""A run as a document: what was found, which edits made it, what it stands on, and how to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from evo_kernel.observe.document import Block, Code, Figure, Heading, Paragraph, Table
from evo_kernel.types import Evaluation, Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class Ablated:
    """The champion without one edit."""

    verdict: str  # a status, or why the edit cannot be taken out
    score: float | None = None


@dataclass(frozen=True)
class ReportedEdit:
    """A step of the path from the first kernel to the champion. Gains are factors of time."""

    candidate: int
    action: str
    score: float | None
    gain: float | None  # over its parent; None of the first kernel, and where one of the two has no time
    diff: str
    without: Ablated | None = None  # None: not re-measured


@dataclass(frozen=True)
class Report:
    """What a document tells; texts as they are shown."""

    task: str
    description: str
    label: str  # of the environment
    headline: Sequence[str]  # sentences
    dots: Sequence[tuple[float, float]]  # (candidate, score) of what passed
    best: Sequence[tuple[float, float]]  # (candidate, score) of what beat all before
    best_by_hour: Sequence[tuple[float, float]]  # (hours since the first session began, score)
    edits: Sequence[ReportedEdit]
    evaluation: Evaluation | None  # of the one that is told
    comparisons: Sequence[str]
    spent: Sequence[tuple[str, str]]
    operators: Table
    strategies: Table
    models: Table
    environment: Sequence[tuple[str, str]]
    commands: Sequence[str]
    source: str
    whole_diff: str
    again: float | None = None  # its score when it was measured again, beside what lacks an edit


def blocks(report: Report) -> list[Block]:
    """The document."""
    return [
        Heading(f"{report.task}: a search for a faster kernel", 1),
        *([Paragraph(report.description)] if report.description else []),
        *map(Paragraph, report.headline),
        Heading("How it went"),
        Figure(lambda: _pictures().trajectory(report.dots, report.best, "candidates"),
               f"Every candidate that passed, and the best so far. Scores are {report.label}."),
        Figure(lambda: _over_time(report.best_by_hour), "The best so far."),
        *_path(report),
        *_measured(report),
        *_uses(report),
        Heading("Where and with what"),
        Table(("what", "value"), report.environment),
        Heading("Repeat it"),
        Code("\n".join(report.commands), "sh"),
        Heading("The kernel"),
        Code(report.source, "python", "Its source"),
        *([Code(report.whole_diff, "diff", "All that changed since the first kernel")] if report.whole_diff else []),
    ]  # fmt: skip


def _pictures() -> ModuleType:
    """matplotlib takes a second to load, and Markdown needs none of it."""
    from evo_kernel.observe import pictures

    return pictures


def _over_time(best_by_hour: Sequence[tuple[float, float]]) -> Picture:
    """In minutes where that is readable."""
    minutes = bool(best_by_hour) and best_by_hour[-1][0] < 2.0
    best = [(at * 60, score) for at, score in best_by_hour] if minutes else best_by_hour
    return _pictures().trajectory([], best, f"{'minutes' if minutes else 'hours'} since the first session began")


def _path(report: Report) -> list[Block]:
    edits = report.edits[1:]
    if not edits:
        return [Heading("Which edits made it"), Paragraph("None: the first kernel is the fastest.")]
    ablated = any(edit.without is not None for edit in edits)
    head = ("candidate", "edit", "score", "gain", *(("still worth", "without it") if ablated else ()))
    rows = [
        (str(edit.candidate), edit.action, _number(edit.score), _times(edit.gain))
        + ((_times(still_worth(report, edit)), _verdict(edit.without)) if ablated else ())
        for edit in report.edits
    ]
    told = "Gain: time of the parent by time of the child when the edit was made; a path's gains multiply to the whole."
    again = (
        "Still worth: time of the champion without the edit by its time with it, both tuned and measured now. An edit "
        "that later ones build on cannot be taken out alone."
    )
    pictured = [(edit.action, edit.gain, still_worth(report, edit) if ablated else None) for edit in edits]
    caption = "Gain of each edit" + (" (wide), and what it is still worth (narrow)" if ablated else "")
    return [
        Heading("Which edits made it"),
        Paragraph(told + (f" {again}" if ablated else "")),
        Figure(lambda: _pictures().gains(pictured), caption),
        Table(head, rows),
        *(Code(edit.diff, "diff", f"{edit.candidate}: {edit.action}") for edit in edits if edit.diff),
    ]


def still_worth(report: Report, edit: ReportedEdit) -> float | None:
    """Score of the champion, measured beside them, by its score without this edit."""
    whole, without = report.again, edit.without
    if whole is None or without is None or without.score is None:
        return None
    return whole / without.score


def _verdict(without: Ablated | None) -> str:
    if without is None:
        return ""
    return without.verdict if without.score is None else f"{without.verdict}, score {without.score:.3f}"


def _measured(report: Report) -> list[Block]:
    if report.evaluation is None:
        return []
    names = sorted({name for m in report.evaluation.measurements for name in m.baselines_us})
    head = ("case", "µs", "interval", "samples", *(f"{name} µs" for name in names), "speed-up", "share of light")
    return [
        Heading("What it reaches"),
        Table(head, [_measurement(m, names) for m in report.evaluation.measurements]),
        *([Code("\n".join(report.comparisons), "", "Its confirmation, side by side with others")]
          if report.comparisons else []),
    ]  # fmt: skip


def _measurement(m: Measurement, names: Sequence[str]) -> tuple[str, ...]:
    baselines = [f"{m.baselines_us[name]:.2f}" if name in m.baselines_us else "-" for name in names]
    light = f"{m.light_share:.0%}" if m.light_share is not None else "-"
    samples = str(m.n) if m.n else "modeled"
    interval = f"{m.low_us:.2f}-{m.high_us:.2f}" if m.n else "-"
    return (m.case, f"{m.median_us:.2f}", interval, samples, *baselines, f"{m.speedup:.2f}x", light)


def _uses(report: Report) -> list[Block]:
    found: list[Block] = [Heading("What it took"), Table(("what", "how much"), report.spent)]
    tables = {"Operators": report.operators, "Strategies": report.strategies, "Models": report.models}
    for name, table in tables.items():
        if table.rows:
            found += [Heading(name, 3), table]
    return found


def _number(value: float | None) -> str:
    return f"{value:.3f}" if value is not None else "-"


def _times(value: float | None) -> str:
    return f"{value:.2f}x" if value is not None else "-"
