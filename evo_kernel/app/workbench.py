"""Connects the agents' workbench to a population, its judge and the knowledge base."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from evo_kernel.app.variants import variants_of
from evo_kernel.budget import Spent
from evo_kernel.errors import PopulationError, UserError
from evo_kernel.fitness.spool.client import SpoolJudge
from evo_kernel.knobs import apply_knobs
from evo_kernel.types import Brief, CaseKind, Evaluation, Knobs, Purpose, ScoredCandidate, Source
from evo_kernel.types.notes import Version, VersionOrder
from evo_kernel.types.promotion import GateVerdict, stands, surely_better
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from operators.workbench.tool import CompiledText, WorkbenchDeps
from operators.workbench.toolset import Workbench, start_files, task_files
from operators.workbench.workspace import Workspace
from populations.population import LineagePopulation

if TYPE_CHECKING:
    from evo_kernel.app.judges import AnyJudge


@dataclass(frozen=True)
class PlanWorkbenchJudge:
    """`charge` books what is spent at once: an agent's attempt may last for hours. Nothing else books it."""

    judge: AnyJudge
    population: LineagePopulation
    charge: Callable[[Spent], None]

    def evaluate(self, source: Source) -> Evaluation:
        return self._judged(source, Purpose.SCORE)

    def probe(self, source: Source) -> Evaluation:
        return self._judged(source, Purpose.PROBE)

    def profile(self, source: Source, case: str | None, knobs: Knobs = ()) -> str:
        known = {one.name: one.kind for one in self.population.task.cases if one.kind is not CaseKind.CONFIRM}
        if case is not None and case not in known:
            raise PopulationError(f"there is no case {case!r}; there are {', '.join(known)}")
        kinds = [known[case]] if case is not None else [CaseKind.SEARCH]
        found = self.judge.profile(source, knobs, kinds, None, case)
        label = self.judge.environment.label
        return "\n\n".join(f"{name}: {one.as_text(label)}" for name, one in found.items())

    def compiled(self, source: Source, case: str | None, knobs: Knobs = ()) -> CompiledText:
        (variant,) = variants_of([("the file", source)], [knobs])
        report = self.judge.compiled(variant.source, case)
        if report.fault:
            raise UserError(report.fault)
        sass, ptx = ("\n\n".join(getattr(one, name) for one in report.kernels) for name in ("sass", "ptx"))
        return CompiledText(f"compiled for case {report.case}:\n{report.as_text()}", sass, ptx)

    def against_best(self, source: Source, evaluation: Evaluation) -> GateVerdict:
        best = self.population.best()
        return surely_better(evaluation, best.evaluation if best else None)

    def gate(self, source: Source, evaluation: Evaluation) -> GateVerdict:
        """By the evaluation it has, by one made anew, and by a confirmation on hidden cases, beside the best."""
        best = self.population.best()
        older = best.evaluation if best else None
        said = surely_better(evaluation, older)
        if not said.passed:
            return said
        with self.judge.together() if isinstance(self.judge, SpoolJudge) else contextlib.nullcontext():
            return self._measured_gate(source, evaluation, best)

    def _measured_gate(self, source: Source, evaluation: Evaluation, best: ScoredCandidate | None) -> GateVerdict:
        older = best.evaluation if best else None
        scored = apply_knobs(source, evaluation.knobs)
        again = self._judged(scored, Purpose.SCORE, remeasure=True)
        told = surely_better(replace(again, source=source.sha256), older)
        if not told.passed:
            return _with_cost(replace(told, reason=f"Measured again: {told.reason}"), again)
        rival = best.source if best is not None and older is not None else None
        confirmed = self._judged(scored, Purpose.CONFIRM, against=rival)
        hidden = stands(confirmed)
        if hidden.passed:
            self.population.keep_confirmation(
                replace(confirmed, source=source.sha256, knobs=evaluation.knobs), best.candidate if best else None
            )
        return _with_cost(GateVerdict(hidden.passed, f"{told.reason} {hidden.reason}", told.gain), again, confirmed)

    def _judged(
        self, source: Source, purpose: Purpose, remeasure: bool = False, against: Source | None = None
    ) -> Evaluation:
        evaluation = self.judge.evaluate(source, purpose, remeasure, against)
        self.charge(Spent.of(None, evaluation))
        self.population.found_out(evaluation.verdicts)
        return evaluation


@dataclass(frozen=True)
class PopulationLineage:
    population: LineagePopulation

    def versions(self, limit: int, order: VersionOrder = "newest", of: int | None = None) -> Sequence[Version]:
        if of is not None:
            self._check(of)
        return self.population.versions(limit, order, of)

    def version(self, number: int) -> ScoredCandidate:
        self._check(number)
        return self.population.relative(number)

    def _check(self, number: int) -> None:
        """Raises PopulationError in words for agents, which are told no paths of the host."""
        last = max((one.candidate for one in self.population.latest(1)), default=0)
        if not 1 <= number <= last:
            raise PopulationError(f"there is no version C{number}; they are numbered 1 to {last}")

    def best(self) -> ScoredCandidate | None:
        return self.population.best()


def rooms_of(
    population: LineagePopulation,
    judge: AnyJudge,
    knowledge: KnowledgeBase | None,
    charge: Callable[[Spent], None],
) -> WorkbenchDeps:
    """What a workbench stands on. `charge`: `Ledger.charge`, or what books it elsewhere."""
    return WorkbenchDeps(
        PlanWorkbenchJudge(judge, population, charge),
        PopulationLineage(population),
        knowledge,
        population.diary,
    )


def open_workbench(
    folder: Path, rooms: WorkbenchDeps, brief: Brief, author: str, allowed: Allowed | None = None, adopt: bool = False
) -> Workbench:
    """A workbench for one attempt in a folder of its own. `adopt`: keep what stands in the folder already."""
    workspace = Workspace(folder, start_files(brief.parent.source), task_files(brief), adopt)
    return Workbench(workspace, rooms, brief, author, allowed)


def _with_cost(verdict: GateVerdict, *spent: Evaluation) -> GateVerdict:
    cost: Counter[str] = Counter()
    for evaluation in spent:
        cost.update({str(purpose): count for purpose, count in evaluation.charged.items()})
    return replace(verdict, charged=dict(cost), gpu_s=sum(one.gpu_s for one in spent))
