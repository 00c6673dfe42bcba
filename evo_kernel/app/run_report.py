"""`report`: a population as a document of plots, the path edit by edit, tables, and how to repeat it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evo_kernel.app.verdicts import ceilings_of, confirmed_lines, survival_line
from evo_kernel.deadline import duration_text
from evo_kernel.observe.document import Block, Code, Figure, Heading, Paragraph, Table
from evo_kernel.observe.formatting import counts_text, dashed, held_texts, score_text, source_diff
from evo_kernel.types import Environment, Evaluation, Measurement
from populations.reading import PopulationReader
from populations.statistics import CandidateView, RunStatus

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class ReportedEdit:
    """A step of the path from a root to the one that is reported. Gains are factors of time."""

    candidate: int
    action: str
    score: float | None
    gain: float | None  # over its parent; None of a root, and where one of the two has no time
    text: str  # the source after it, as it was scored

    def as_data(self) -> dict[str, Any]:
        return {"candidate": self.candidate, "action": self.action, "score": self.score, "gain": self.gain}


def edits_of(reader: PopulationReader, candidate: int | None) -> list[ReportedEdit]:
    """The path to a candidate; left out: to the champion, else the best. Empty where nothing passed."""
    leader = reader.leader()
    number = candidate or (leader.candidate if leader else None)
    path = reader.critical_path(number) if number else []
    gains = [math.exp(step.log_gain) if step.log_gain is not None else None for step in path]
    return [
        ReportedEdit(step.candidate, step.action, step.score, gain, text)
        for step, gain, text in zip(path, gains, reader.path_texts(path), strict=True)
    ]


def blocks(reader: PopulationReader, edits: Sequence[ReportedEdit]) -> list[Block]:
    """The document."""
    status, description = reader.status(), reader.task.description
    view = reader.candidate(edits[-1].candidate) if edits else None
    evaluation = view.evaluation if view else None
    confirmation = reader.confirmation(view.candidate) if view else None
    environment = evaluation.environment if evaluation else reader.environment
    dots = [(float(node["candidate"]), node["score"]) for node in reader.nodes() if node["score"] is not None]
    began = reader.sessions()[0].began
    by_hour = [((row["at"] - began) / 3600, row["score"]) for row in reader.history() if row["score"] is not None]
    return [
        Heading(f"{status.task}: a search for a faster kernel", 1),
        *([Paragraph(description)] if description else []),
        *map(Paragraph, _headline(view, confirmation)),
        Heading("How it went"),
        Figure(lambda: _pictures().trajectory(dots, _best_so_far(dots), "candidates"),
               "Every candidate that passed, and the best so far. Scores are "
               f"{environment.label if environment else 'not judged yet'}."),
        Figure(lambda: _over_time(by_hour), "The best so far."),
        *_path(edits),
        *_measured(evaluation, confirmed_lines(confirmation)),
        Heading("What it took"),
        Table(("what", "how much"), _spent(status)),
        *_uses(status, reader),
        Heading("Where and with what"),
        Table(("what", "value"), _environment(reader, environment)),
        Heading("Repeat it"),
        Code("\n".join(_commands(reader, view)), "sh"),
        Heading("The kernel"),
        Code(edits[-1].text if edits else "", "python", "Its source, as it was scored"),
        *([Code(_diff(edits[0], edits[-1]), "diff", "All that changed since the root")] if len(edits) > 1 else []),
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


def _best_so_far(dots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """In the order of candidates, which may be another one than that of their verdicts."""
    best: list[tuple[float, float]] = []
    for candidate, score in dots:
        if not best or score > best[-1][1]:
            best.append((candidate, score))
    return best


def _diff(before: ReportedEdit, after: ReportedEdit) -> str:
    return source_diff(before.text, after.text, before.candidate, after.candidate)


def _headline(view: CandidateView | None, confirmation: Evaluation | None) -> list[str]:
    if view is None or view.evaluation is None:
        return ["No candidate has passed yet."]
    evaluation = view.evaluation
    score = f"score {score_text(evaluation)}, " if evaluation.score is not None else ""
    stands = "not confirmed" if confirmation is None else "confirmed" if confirmation.passed else "refuted"
    survival = survival_line(confirmation)
    said = f"Candidate {view.candidate}: {evaluation.status}, {score}{evaluation.environment.label}; {stands}."
    return [said, *([f"{survival[0].upper()}{survival[1:]}."] if survival else [])]


def _path(edits: Sequence[ReportedEdit]) -> list[Block]:
    if len(edits) < 2:
        said = f"None: it is a root, {edits[0].action}, as it came." if edits else "None."
        return [Heading("Which edits made it"), Paragraph(said)]
    rows = [
        (str(edit.candidate), edit.action, dashed(edit.score, "{:.3f}"), dashed(edit.gain, "{:.2f}x")) for edit in edits
    ]
    pictured = [(edit.action, edit.gain) for edit in edits[1:]]
    diffs = [(after, _diff(before, after)) for before, after in pairwise(edits)]
    return [
        Heading("Which edits made it"),
        Paragraph("Gain: time of the parent by time of the child. The root's score times the gains is the last score."),
        Figure(lambda: _pictures().gains(pictured), "Gain of each edit"),
        Table(("candidate", "edit", "score", "gain"), rows),
        *(Code(diff, "diff", f"{edit.candidate}: {edit.action}") for edit, diff in diffs if diff),
    ]


def _measured(evaluation: Evaluation | None, comparisons: Sequence[str]) -> list[Block]:
    if evaluation is None:
        return []
    names = sorted({name for m in evaluation.measurements for name in m.baselines_us})
    head = (
        "case",
        "µs",
        "interval",
        "samples",
        *(f"{name} µs" for name in names),
        "floor µs",
        "speed-up",
        "share of light",
    )
    return [
        Heading("What it reaches"),
        Table(head, [_measurement(m, names) for m in evaluation.measurements]),
        *([Code("\n".join(comparisons), "", "Its confirmation, side by side with others")] if comparisons else []),
    ]


def _measurement(m: Measurement, names: Sequence[str]) -> tuple[str, ...]:
    baselines = [f"{m.baselines_us[name]:.2f}" if name in m.baselines_us else "-" for name in names]
    samples = str(m.n) if m.n else "modeled"
    interval = f"{m.low_us:.2f}-{m.high_us:.2f}" if m.n else "-"
    return (m.case, f"{m.median_us:.2f}", interval, samples, *baselines, *held_texts(m, 2))


def _spent(status: RunStatus) -> list[tuple[str, str]]:
    made = status.attempts - status.failures - status.abandoned - status.open_attempts
    judged = counts_text(status.verdicts) or "none judged"
    return [
        ("attempts", f"{status.attempts}: {made} made a candidate, {status.failures} none"),
        ("candidates", f"{status.candidates}, with {status.candidates - made} roots: {judged}"),
        ("evaluations", counts_text(status.evaluations) or "none"),
        ("time", f"{status.wall_s / 3600:.2f} hours over {status.sessions} session(s), {status.gpu_s:.1f} s of GPU"),
        ("models", f"${status.dollars:.2f}, {status.tokens} tokens"),
    ]


def _uses(status: RunStatus, reader: PopulationReader) -> list[Block]:
    """Tables of operators, strategies and models, those that have rows."""

    def factor(value: float | None) -> str:
        return dashed(math.exp(value) if value is not None else None, "{:.2f}x")

    operators = [
        (use.operator, str(use.attempts), str(use.candidates), str(use.by_rules), str(use.passed), f"{use.dollars:.2f}",
         dashed(use.best_score, "{:.3f}"))
        for use in status.operators
    ]  # fmt: skip
    strategies = [
        (row["name"], row["family"], str(row["tried"]), str(row["passed"]), factor(row["mean_log_gain"]),
         factor(row["best_log_gain"]))
        for row in reader.strategies()
    ]  # fmt: skip
    models = [
        (use.model, str(use.calls), str(use.tokens_in), str(use.tokens_out), f"{use.dollars:.2f}", str(use.errors))
        for use in status.models
    ]
    tables = {
        "Operators": (("operator", "attempts", "candidates", "by rules", "passed", "dollars", "best score"), operators),
        "Strategies": (("strategy", "family", "tried", "passed", "mean gain", "best gain"), strategies),
        "Models": (("model", "calls", "tokens in", "tokens out", "dollars", "errors"), models),
    }
    return [part for name, (head, rows) in tables.items() if rows for part in (Heading(name, 3), Table(head, rows))]


def _environment(reader: PopulationReader, environment: Environment | None) -> list[tuple[str, str]]:
    if environment is None:
        return []
    names = ("kind", "device", "driver", "torch", "triton", "fp_fusion", "judge", "confinement")
    found = [(name.replace("_", " "), str(getattr(environment, name))) for name in names]
    ceilings, source = ceilings_of(environment, reader.ceilings(environment))
    rates = ceilings.as_data() if ceilings is not None else {}
    limits = [(f"ceiling ({source}): {name}", f"{value:.4g}") for name, value in rates.items()]
    return [*found, *limits, ("task, sha256", reader.task_identity)]


def _commands(reader: PopulationReader, view: CandidateView | None) -> list[str]:
    session, path = reader.sessions()[0], reader.path
    hours = session.config.get("budget", {}).get("hours")
    limit = f" --for {duration_text(3600 * hours)}" if hours else ""
    found = [
        f"evo-kernel run {session.config.get('task') or 'TASK'} --set seed={session.seed}{limit}",
        f"evo-kernel resume {path}",
    ]
    if view is not None:
        number = view.candidate
        found += [f"evo-kernel show {path} {number}", f"evo-kernel export {path} --candidate {number} --to DIR"]
    return found
