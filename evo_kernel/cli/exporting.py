"""`export`: the champion as a folder."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli.options import JSON, POPULATION
from evo_kernel.errors import UserError
from evo_kernel.syntax import parse_module


@click.command()
@POPULATION
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True, help="A new or empty folder.")
@click.option("--candidate", type=int, help="Another candidate than the champion.")
@click.option("--unconfirmed", is_flag=True, help="Export also what was not confirmed, and say so in the folder.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@JSON
def export(
    population: Path, folder: Path, candidate: int | None, unconfirmed: bool, device: str, as_json: bool
) -> None:
    """Write the champion of POPULATION to a folder: source with the chosen knobs, plans, provenance, how to verify.

    It is recorded again, and what is written is what was judged: the plans must have the judged hashes. What no
    confirmation stands behind is refused, unless you say --unconfirmed.
    """
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        best = reader.champion() or reader.best()
        number = candidate or (best.candidate if best else None)
        if number is None:
            raise UserError(f"{population} has no candidate that passed; `evo-kernel status {population}` says more")
        view = reader.candidate(number)
        steps = reader.critical_path(number)
        lineage = [reader.candidate(step.candidate) for step in steps]
        session = reader.sessions()[-1]
        confirmation = reader.confirmation(number)
    if view.evaluation is None or not view.evaluation.passed:
        raise UserError(f"candidate {number} has not passed; only what passed can be exported")
    if not unconfirmed and (reason := _doubt(confirmation, population)):
        raise UserError(f"candidate {number} {reason}, or export it as it is with --unconfirmed")
    champion = _champion(view, steps, lineage, session, device, confirmation)
    from evo_kernel.export.folder import write_champion

    written = write_champion(champion, folder)
    if as_json:
        click.echo(json.dumps({"candidate": number, "files": [str(path) for path in written]}))
    else:
        click.echo("\n".join(f"wrote {path}" for path in written))


def _doubt(confirmation: Any, population: Path) -> str:
    """Why a candidate should not be exported, and what else to do; empty where it is confirmed."""
    if confirmation is None:
        return f"is not confirmed: `evo-kernel resume {population}` confirms the best when its budget is spent"
    if not confirmation.passed:
        return f"was refuted when it was to be confirmed ({confirmation.reason}): leave out --candidate"
    return ""


def _champion(view: Any, steps: Any, lineage: Any, session: Any, device: str, confirmation: Any) -> Any:
    from evo_kernel.cli.confirmed import confirmed_data, survival_line
    from evo_kernel.cli.sources import source_diff
    from evo_kernel.cli.verdicts import evaluation_data
    from evo_kernel.export.folder import Champion
    from evo_kernel.fitness.judge import JudgeSettings, open_judge
    from evo_kernel.fitness.knobs import apply_knobs
    from evo_kernel.fitness.plan import CompiledPlan
    from evo_kernel.tasks.loading import load
    from evo_kernel.types import CaseKind

    task = load(session.config["task"])
    evaluation, confirmed = view.evaluation, confirmation is not None and confirmation.passed
    source = apply_knobs(view.proposal.source, evaluation.knobs)
    with open_judge(task, device=device, settings=JudgeSettings(tune_plans=0)) as judge:
        recorded = judge.plans(source, (), [CaseKind.SEARCH, CaseKind.CHECK])
    kinds = {case.name: case.kind for case in task.cases}
    plans = {case: plan for case, plan in recorded.items() if isinstance(plan, CompiledPlan)}
    judged = {m.case: m.plan for m in evaluation.measurements}
    same_versions = judge.environment.triton == evaluation.environment.triton
    differ = [case for case, plan in plans.items() if judged.get(case) not in (None, plan.hash)]
    if same_versions and differ:
        raise UserError(f"what is recorded now is not what was judged (cases {', '.join(differ)}): nothing is exported")
    texts = [candidate.proposal.source.text for candidate in lineage]
    provenance = {
        "task": task.name,
        "task_sha256": task.identity,
        "candidate": view.candidate,
        "confirmed": confirmed,
        "confirmation": confirmed_data(confirmation),
        "source_sha256": source.sha256,
        "plans_are_the_judged_ones": same_versions,
        "evaluation": evaluation_data(evaluation),
        "path": [{"candidate": s.candidate, "strategy": s.action,
                  "log_gain": s.log_gain, "diff": source_diff(texts[i - 1] if i else "", texts[i], None, s.candidate)}
                 for i, s in enumerate(steps)],
        "verify": f"evo-kernel verify {task.name}.py --task task.py --confirm",
    }  # fmt: skip
    return Champion(
        task=task.name,
        task_files=_task_files(task),
        candidate=view.candidate,
        confirmed=confirmed,
        survival=survival_line(confirmation),
        hidden=_has_hidden_cases(task),
        source=source,
        plans={name: p.model_dump_json() for name, p in plans.items() if kinds[name] is CaseKind.SEARCH},
        check_plans={name: p.model_dump_json() for name, p in plans.items() if kinds[name] is CaseKind.CHECK},
        provenance=provenance,
    )


def _has_hidden_cases(task: Any) -> bool:
    """Whether confirm cases have sizes of their own: without any, loading takes those of the search cases."""
    from evo_kernel.types import CaseKind

    sizes = [dict(case.sizes) for case in task.cases_of(CaseKind.SEARCH)]
    return any(dict(case.sizes) not in sizes for case in task.cases_of(CaseKind.CONFIRM))


def _task_files(task: Any) -> dict[str, str]:
    """The task's file as task.py, and its seed where the file says that it is: without it the task does not load."""
    files = {"task.py": task.text}
    for node in parse_module(task.text).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="SEED")], value=ast.Constant(value=str() as seed)):
                if task.seed is not None and not Path(seed).is_absolute() and ".." not in Path(seed).parts:
                    files[seed] = task.seed.text
    return files
