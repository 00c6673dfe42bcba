"""What a run found, at its end: as tables and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from evo_kernel.app.compose import Prepared, best_of
from evo_kernel.app.confirmed_gain import confirmed_data, survival_line
from evo_kernel.app.torch_operations import mixed_data, mixed_lines
from evo_kernel.app.usage import model_lines, operator_lines
from evo_kernel.app.verdicts import case_table
from evo_kernel.config import Config
from evo_kernel.engine import RunSummary
from evo_kernel.observe.formatting import denominator, fault_lines
from evo_kernel.types import Environment, Evaluation, ScoredCandidate


def as_data(parts: Prepared, ended: RunSummary, path: Path) -> dict[str, Any]:
    """One object for scripts."""
    best = best_of(parts.population)
    counters = parts.population.counters()
    models, operators = _uses(path)
    return {
        "population": str(path),
        "task": parts.task.name,
        "environment": {"kind": parts.judge.environment.kind, "label": parts.judge.environment.label},
        "stopped": ended.why,
        "cause": ended.cause,
        "statuses": dict(ended.statuses),
        "wall_s": ended.wall_s,
        "confirming_s": ended.confirming_s,
        "unconfirmed": ended.unconfirmed,
        "attempts": counters.attempts,
        "candidates": counters.candidates,
        "evaluations": dict(counters.evaluations),
        "best": _best_data(best),
        "confirmation": confirmed_data(_confirmation(path, best)),
        "confirmed": parts.population.champion() is not None,
        "baseline_faults": _baseline_faults(path),
        "models": models,
        "operators": operators,
        "gpu_busy": list(parts.judge.stages.state().busy_session),
        "score_is": scale_line(parts.judge.environment).removeprefix("score: "),
    }


def scale_line(environment: Environment) -> str:
    """What a score is relative to, told once a run."""
    above = "fastest baseline" if environment.kind == "measured" else "first kernel, untuned"
    return f"score: {above} / kernel, geometric mean over search cases"


def standing_lines(best: ScoredCandidate | None, champion: ScoredCandidate | None, label: str) -> list[str]:
    """The champion where one was confirmed, else the best; and what is faster than a champion without being one."""
    lines = []
    if champion is not None and champion.evaluation is not None:
        lines.append(f"champion: candidate {champion.candidate}, confirmed, {_score(champion)}, {label}")
    if best is None or best.evaluation is None or (champion is not None and champion.candidate == best.candidate):
        return lines
    if not lines:
        return [f"best: candidate {best.candidate}, not confirmed, {_score(best)}, {label}"]
    return [*lines, f"faster, not confirmed: candidate {best.candidate}, {_score(best)}"]


def _score(found: ScoredCandidate) -> str:
    score = found.evaluation.score if found.evaluation else None
    return f"score {score:.3f}" if score is not None else "no score"


def raised(config: Config, ended: RunSummary) -> str:
    """What `resume` needs to search on: the limits that were reached, doubled. Empty where none was."""
    if ended.cause != "budget":
        return ""
    limits = config.budget.model_dump(exclude_none=True)
    over = {name: getattr(ended.spent, name) >= limit for name, limit in limits.items()} | {"hours": ended.out_of_time}
    reached = {name: limit for name, limit in limits.items() if over[name]}
    spent = {name: max(limit, getattr(ended.spent, name)) for name, limit in reached.items()}
    return "".join(f" --set budget.{name}={math.ceil(200 * much) / 100:g}" for name, much in spent.items())


def _best_data(best: ScoredCandidate | None) -> dict[str, Any] | None:
    if best is None or best.evaluation is None:
        return None
    return {
        "candidate": best.candidate,
        "score": best.evaluation.score,
        "knobs": dict(best.evaluation.knobs),
        "strategies": [strategy.name for strategy in best.strategies],
        "mixed": mixed_data(best.evaluation),
        "cases": {
            m.case: {
                "us": m.median_us,
                "baselines_us": dict(m.baselines_us),
                "denominator": denominator(m.baselines_us) or None,
                "light_share": m.light_share,
            }
            for m in best.evaluation.measurements
        },
    }


def show(
    console: Console, parts: Prepared, ended: RunSummary, path: Path, more_budget: str = "", cut_off: int = 0
) -> None:
    """The last word of a run on a terminal."""
    _show_counts(console, parts, ended, cut_off)
    _show_models(console, path)
    best = best_of(parts.population)
    if best is None or best.evaluation is None:
        console.print(f"no candidate passed; `evo-kernel tree {path} --all` lists what became of each", highlight=False)
    else:
        _show_best(console, parts, path, best, best.evaluation)
    commands = () if best is None else (f"show {path}", f"export {path} --to DIR")
    for command in (*commands, f"resume {path}{more_budget}"):
        console.print(Text(f"next: evo-kernel {command}"), soft_wrap=True)


def _show_counts(console: Console, parts: Prepared, ended: RunSummary, cut_off: int) -> None:
    counters = parts.population.counters()
    confirming = f", {ended.confirming_s:.0f} s of them for confirmation" if ended.confirming_s >= 1 else ""
    console.print(f"\n{ended.why} after {ended.wall_s:.0f} s{confirming}", highlight=False)
    if ended.unconfirmed:
        console.print("confirmation did not fit into the time: `resume` does it first", highlight=False)
    charged = ", ".join(f"{count} {purpose}" for purpose, count in sorted(counters.evaluations.items()))
    judged = ", ".join(f"{count} {status}" for status, count in sorted(ended.statuses.items()))
    console.print(
        f"{counters.attempts} attempts, {counters.candidates} candidates, {counters.passed} passed; "
        f"evaluations: {charged or 'none'}\njudged in this run: {judged or 'none'}",
        highlight=False,
    )
    for reason, count in list(ended.failures.items())[:3]:
        console.print(f"no proposal, {count} times: {reason}", highlight=False, markup=False)
    if busy := parts.judge.stages.state().busy_session:
        each = " and ".join(f"{share:.0%}" for share in busy)
        console.print(f"the GPU was busy for {each} of the session", highlight=False)
    if cut_off:
        attempts = "1 attempt" if cut_off == 1 else f"{cut_off} attempts"
        console.print(f"{attempts} cut off; what was proposed is judged first on resume", highlight=False)


def _show_best(console: Console, parts: Prepared, path: Path, best: ScoredCandidate, evaluation: Evaluation) -> None:
    label = parts.judge.environment.label
    for line in standing_lines(parts.population.best(), parts.population.champion(), label):
        console.print(Text(line, style="bold"), soft_wrap=True)
    if line := survival_line(_confirmation(path, best)):
        console.print(Text(line), soft_wrap=True)
    console.print(case_table(evaluation, label))
    for line in [*fault_lines(_baseline_faults(path)), *mixed_lines(evaluation)]:
        console.print(Text(line), soft_wrap=True)
    if parts.judge.environment.kind == "modeled":
        console.print("times are modeled from the compiled sm_90 code, not measured; correctness was checked by "
                      "executing the Triton IR of the kernels on the CPU", highlight=False)  # fmt: skip
    for line in _path_lines(path, best.candidate):
        console.print(Text(line), soft_wrap=True)
    if evaluation.knobs:
        console.print(Text("knobs: " + ", ".join(f"{name}={value}" for name, value in evaluation.knobs)))


def _uses(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What models were asked, and what came of operators."""
    from populations.reading import PopulationReader

    with PopulationReader(path) as reader:
        models = [asdict(one) | {"cached_share": one.cached_share} for one in reader.models()]
        return models, [asdict(one) for one in reader.operators()]


def _show_models(console: Console, path: Path) -> None:
    from populations.reading import PopulationReader

    with PopulationReader(path) as reader:
        models, operators = reader.models(), reader.operators()
    if models:
        for name, line in [*operator_lines(operators), *model_lines(models)]:
            console.print(Text(f"{name} {line}"), soft_wrap=True)


def _confirmation(path: Path, best: ScoredCandidate | None) -> Evaluation | None:
    """What settled whether the candidate that is shown stands."""
    from populations.reading import PopulationReader

    if best is None:
        return None
    with PopulationReader(path) as reader:
        return reader.confirmation(best.candidate)


def exit_code(ended: RunSummary) -> int:
    """What `run` and `resume` return: also said in their help."""
    by_cause = {"interrupted": 130, "machine": 3}
    return by_cause.get(ended.cause, 0 if ended.best is not None else 1)


def _baseline_faults(path: Path) -> dict[str, dict[str, str]]:
    from populations.reading import PopulationReader

    with PopulationReader(path) as reader:
        return reader.baseline_faults()


def _path_lines(path: Path, candidate: int) -> list[str]:
    """The edits that made a candidate, each with what it gained."""
    from populations.reading import PopulationReader

    with PopulationReader(path) as reader:
        steps = reader.critical_path(candidate)
    lines = ["path of strategies, gain of each:"]
    for step in steps:
        gain = f"{math.exp(step.log_gain):.2f}x" if step.log_gain is not None else ""
        lines.append(f"  {gain:>7}  {step.candidate:>5}  {step.action}")
    return lines
