"""What `report` tells of a population: gathered from its file, as texts and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evo_kernel.app.confirmed_gain import confirmed_lines, survival_line
from evo_kernel.app.sources import source_diff
from evo_kernel.observe.document import Table
from evo_kernel.observe.formatting import counts_text
from evo_kernel.observe.report import Report, ReportedEdit
from evo_kernel.types import Evaluation
from populations.reading import PopulationReader
from populations.views import CandidateView, RunStatus


def report_data(made: Report) -> dict[str, Any]:
    """For scripts."""
    return {
        "again": made.again,
        "path": [
            {"candidate": edit.candidate, "action": edit.action, "score": edit.score, "gain": edit.gain,
             "without": None if edit.without is None else
             {"verdict": edit.without.verdict, "score": edit.without.score}}
            for edit in made.edits
        ],
    }  # fmt: skip


def gathered(reader: PopulationReader, candidate: int | None) -> Report:
    """What the document of a population tells. `candidate`: instead of the champion, else the best."""
    status = reader.status()
    best = status.leader
    number = candidate or (best.candidate if best else None)
    view = reader.candidate(number) if number else None
    history, began = reader.history(), reader.sessions()[0].began
    evaluation = view.evaluation if view else None
    confirmation = reader.confirmation(number) if number else None
    edits = _edits(reader, number) if number else []
    first = reader.candidate(edits[0].candidate).proposal.source.text if edits else ""
    source = view.proposal.source.text if view else ""
    environment = evaluation.environment if evaluation else status.environment
    dots = [(float(node["candidate"]), node["score"]) for node in reader.nodes() if node["score"] is not None]
    return Report(
        task=status.task,
        description=reader.task.description,
        label=environment.label if environment else "not judged yet",
        headline=_headline(view, confirmation),
        dots=dots,
        best=_best_so_far(dots),
        best_by_hour=[((row["at"] - began) / 3600, row["score"]) for row in history if row["score"] is not None],
        edits=edits,
        evaluation=evaluation,
        comparisons=confirmed_lines(confirmation),
        spent=_spent(status),
        operators=_operators(status),
        strategies=_strategies(reader),
        models=_models(status),
        environment=_environment(reader, evaluation),
        commands=_commands(reader, number),
        source=_with_knobs(source, evaluation),
        whole_diff=source_diff(first, source, edits[0].candidate, edits[-1].candidate) if len(edits) > 1 else "",
    )


def _best_so_far(dots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """In the order of candidates, which may be another one than that of their verdicts."""
    best: list[tuple[float, float]] = []
    for candidate, score in dots:
        if not best or score > best[-1][1]:
            best.append((candidate, score))
    return best


def _with_knobs(source: str, evaluation: Evaluation | None) -> str:
    """The source as it was proposed, under a line that names the knobs."""
    if evaluation is None or not evaluation.knobs:
        return source
    knobs = ", ".join(f"{name}={value}" for name, value in evaluation.knobs)
    return f"# scored with {knobs}\n{source}"


def _headline(view: CandidateView | None, confirmation: Evaluation | None) -> list[str]:
    if view is None or view.evaluation is None:
        return ["No candidate has passed yet."]
    evaluation = view.evaluation
    score = f"score {evaluation.score:.3f}, " if evaluation.score is not None else ""
    stands = "not confirmed" if confirmation is None else "confirmed" if confirmation.passed else "refuted"
    survival = survival_line(confirmation)
    said = f"Candidate {view.candidate}: {evaluation.status}, {score}{evaluation.environment.label}; {stands}."
    return [said, *([f"{survival[0].upper()}{survival[1:]}."] if survival else [])]


def _edits(reader: PopulationReader, number: int) -> list[ReportedEdit]:
    steps = reader.critical_path(number)
    texts = [reader.candidate(step.candidate).proposal.source.text for step in steps]
    return [
        ReportedEdit(
            candidate=step.candidate,
            action=step.action,
            score=step.score,
            gain=math.exp(step.log_gain) if step.log_gain is not None else None,
            diff=source_diff(texts[at - 1], texts[at], steps[at - 1].candidate, step.candidate) if at else "",
        )
        for at, step in enumerate(steps)
    ]


def _spent(status: RunStatus) -> list[tuple[str, str]]:
    return [
        ("attempts", f"{status.attempts}, {status.failures} of them without a candidate"),
        ("candidates", f"{status.candidates}: {counts_text(status.verdicts) or 'none judged'}"),
        ("evaluations", counts_text(status.evaluations) or "none"),
        ("time", f"{status.wall_s / 3600:.2f} hours over {status.sessions} session(s), {status.gpu_s:.1f} s of GPU"),
        ("models", f"${status.dollars:.2f}, {status.tokens} tokens"),
    ]


def _operators(status: RunStatus) -> Table:
    head = ("operator", "attempts", "candidates", "passed", "dollars", "best score")
    rows = [
        (use.operator, str(use.attempts), str(use.candidates), str(use.passed), f"{use.dollars:.2f}",
         f"{use.best_score:.3f}" if use.best_score is not None else "-")
        for use in status.operators
    ]  # fmt: skip
    return Table(head, rows)


def _strategies(reader: PopulationReader) -> Table:
    def factor(value: float | None) -> str:
        return f"{math.exp(value):.2f}x" if value is not None else "-"

    rows = [
        (row["name"], row["family"], str(row["tried"]), str(row["passed"]), factor(row["mean_log_gain"]),
         factor(row["best_log_gain"]))
        for row in reader.strategies()
    ]  # fmt: skip
    return Table(("strategy", "family", "tried", "passed", "mean gain", "best gain"), rows)


def _models(status: RunStatus) -> Table:
    rows = [
        (use.model, str(use.calls), str(use.tokens_in), str(use.tokens_out), f"{use.dollars:.2f}", str(use.errors))
        for use in status.models
    ]
    return Table(("model", "calls", "tokens in", "tokens out", "dollars", "errors"), rows)


def _environment(reader: PopulationReader, evaluation: Evaluation | None) -> list[tuple[str, str]]:
    environment = evaluation.environment if evaluation else reader.environment
    if environment is None:
        return []
    names = ("kind", "device", "driver", "torch", "triton", "fp_fusion", "judge", "confinement")
    found = [(name.replace("_", " "), str(getattr(environment, name))) for name in names]
    ceilings = [(f"ceiling: {name}", f"{value:.4g}") for name, value in reader.ceilings(environment).items()]
    return [*found, *ceilings, ("task, sha256", reader.task_identity)]


def _commands(reader: PopulationReader, number: int | None) -> Sequence[str]:
    session, path = reader.sessions()[0], reader.path
    task = session.config.get("task") or "TASK"
    found = [f"evo-kernel run {task} --set seed={session.seed}", f"evo-kernel resume {path}"]
    if number:
        found += [f"evo-kernel show {path} {number}", f"evo-kernel export {path} --candidate {number} --to DIR"]
        found += [f"evo-kernel report {path} --candidate {number} --ablate"]
    return found
