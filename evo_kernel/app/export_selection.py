"""Which candidates of a population are exported: the champion, and champions of single cases. Imports nothing slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.observe.formatting import dashed
from evo_kernel.types import Evaluation
from populations.lineage import PathStep
from populations.reading import PopulationReader
from populations.statistics import CandidateView

WORTH = 1.02
"""A second champion comes along for a case only if it is faster there by this factor."""


@dataclass(frozen=True)
class ExportedCandidate:
    """A candidate to be exported, as its population tells of it."""

    population: Path
    view: CandidateView
    evaluation: Evaluation
    confirmation: Evaluation | None
    steps: Sequence[PathStep]
    texts: Sequence[str]  # sources after each step, as they were scored
    models: tuple[str, ...]  # asked along the path
    task: str  # what `load` finds its task by

    @property
    def confirmed(self) -> bool:
        return self.confirmation is not None and self.confirmation.passed

    @property
    def times_us(self) -> dict[str, float]:
        """By search and confirm case."""
        measured = [*self.evaluation.measurements, *(self.confirmation.measurements if self.confirmation else ())]
        return {m.case: m.median_us for m in measured}


def choose(path: Path, candidate: int | None, unconfirmed: bool) -> list[ExportedCandidate]:
    """The champion (or the named candidate), then confirmed ones that are faster on a case. Raises UserError."""
    with PopulationReader(path) as reader:
        best = reader.leader()
        number = candidate or (best.candidate if best else None)
        if number is None:
            raise UserError(f"{path} has no candidate that passed; `evo-kernel status {path}` says more")
        leader = _read(reader, number)
        if not unconfirmed and (reason := _doubt(leader)):
            raise UserError(f"candidate {number} {reason}, or export it as it is with --unconfirmed")
        if candidate is not None or leader.evaluation.environment.kind != "measured":
            return [leader]
        others = [_read(reader, other) for other in reader.confirmed() if other != number]
    return [leader, *_faster_somewhere(leader, others)]


def overtaken(path: Path) -> str:
    """Which candidate is faster than what `choose` takes, because it is not confirmed, and what confirms it; empty
    where none is."""
    with PopulationReader(path) as reader:
        chosen, best = reader.leader(), reader.best()
    if chosen is None or best is None or best.candidate == chosen.candidate:
        return ""
    scores = [dashed(one.score, "{:.3f}x") for one in (best, chosen)]
    return (
        f"NOT exported: candidate {best.candidate} of {path}, which is faster than candidate {chosen.candidate} "
        f"({scores[0]}, not {scores[1]}), but not confirmed. Confirm it, then export again:\n  {confirms(path)}"
    )


def unconfirmed_line(chosen: ExportedCandidate, hidden: Sequence[str]) -> str:
    """What is served of a candidate that is not confirmed, and what confirms it; empty of others. `hidden`: cases where
    nothing was judged."""
    if chosen.confirmed:
        return ""
    without = f", NOT the hidden sizes {', '.join(hidden)}: nothing was judged there" if hidden else ""
    served = f"NOT CONFIRMED: candidate {chosen.view.candidate}. It serves the sizes that the search saw{without}."
    if chosen.confirmation is not None:
        return f"{served} Its confirmation refuted it: {chosen.confirmation.reason}"
    return f"{served} Confirm it, then export again:\n  {confirms(chosen.population, chosen.view.candidate)}"


def confirms(population: Path, candidate: int | None = None) -> str:
    """The command that confirms a candidate, the best if None, and does no more."""
    return f"evo-kernel confirm {population}" + (f" {candidate}" if candidate is not None else "")


def _read(reader: PopulationReader, number: int) -> ExportedCandidate:
    view = reader.candidate(number)
    if view.evaluation is None or not view.evaluation.passed:
        raise UserError(f"candidate {number} has not passed; only what passed can be exported")
    steps = reader.critical_path(number)
    lineage = [reader.candidate(step.candidate).proposal for step in steps]
    models = tuple(dict.fromkeys(call.model for proposal in lineage for call in proposal.calls))
    return ExportedCandidate(
        population=reader.path,
        view=view,
        evaluation=view.evaluation,
        confirmation=reader.confirmation(number),
        steps=steps,
        texts=reader.path_texts(steps),
        models=models,
        task=reader.sessions()[-1].config.get("task", ""),
    )


def _doubt(chosen: ExportedCandidate) -> str:
    """Why a candidate should not be exported, and what else to do; empty where it is confirmed."""
    if chosen.confirmation is None:
        return f"is not confirmed: `{confirms(chosen.population, chosen.view.candidate)}` confirms it"
    if not chosen.confirmation.passed:
        return f"was refuted by its confirmation ({chosen.confirmation.reason}): leave out --candidate"
    return ""


def _faster_somewhere(leader: ExportedCandidate, others: Sequence[ExportedCandidate]) -> list[ExportedCandidate]:
    """Of the others, those that win some case; a champion of a case."""
    kept: list[ExportedCandidate] = []
    for case, us in leader.times_us.items():
        rivals = [one for one in others if one.times_us.get(case, us) * WORTH < us]
        if rivals and (fastest := min(rivals, key=lambda one: one.times_us[case])) not in kept:
            kept.append(fastest)
    return kept
