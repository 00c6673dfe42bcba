"""The summary at the end of a run: as text, tables and JSON, and the exit code."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from evo_kernel.app.compose import Prepared
from evo_kernel.app.verdicts import (
    confirmed_data,
    evaluation_data,
    mixed_lines,
    model_lines,
    operator_lines,
    path_lines,
    show_cases,
    survival_line,
)
from evo_kernel.config import Config
from evo_kernel.deadline import duration_text
from evo_kernel.engine import RunSummary
from evo_kernel.engine.loop import WAITS
from evo_kernel.errors import ConfigError
from evo_kernel.fitness.spool.client import SpoolJudge
from evo_kernel.judge_place import SPOOL
from evo_kernel.observe.formatting import counts_text, fault_lines, score_text
from evo_kernel.observe.live import say
from evo_kernel.types import Environment, Evaluation, ScoredCandidate
from populations.reading import PopulationReader


def as_data(parts: Prepared, ended: RunSummary, path: Path) -> dict[str, Any]:
    """One object for scripts."""
    best = parts.population.leader()
    counters = parts.population.counters()
    with PopulationReader(path) as reader:
        models = [asdict(one) | {"cached_share": one.cached_share} for one in reader.models()]
        operators, faults = [asdict(one) for one in reader.operators()], reader.baseline_faults()
        confirmation = reader.confirmation(best.candidate) if best is not None else None
    waiting = waiting_for(parts, ended)
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
        "waiting": waiting.as_data() if waiting is not None else None,
        "attempts": counters.attempts,
        "candidates": counters.candidates,
        "evaluations": dict(counters.evaluations),
        "best": _best_data(best),
        "confirmation": confirmed_data(confirmation),
        "confirmed": parts.population.champion() is not None,
        "baseline_faults": faults,
        "models": models,
        "operators": operators,
        "gpu_busy": list(parts.judge.stages.state().busy_session),
        "score_is": scale_line(parts.judge.environment).removeprefix("score: "),
    }


@dataclass(frozen=True)
class WaitingRequests:
    """What lies in a spool when a run ended because it waits for verdicts."""

    folder: Path
    files: int
    size_bytes: int

    def as_data(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "requests": self.files, "bytes": self.size_bytes}

    def lines(self, go_on: str) -> list[str]:
        """What to do, in order; the last is the command `go_on`."""
        place, requests = self.folder, f"{self.files} request{'s' if self.files != 1 else ''}"
        return [
            f"waiting for verdicts on {requests}, {self.size_bytes / 1000:.0f} kB",
            f"1. carry {place}/requests to the judges, unless they see the folder",
            f"2. there: evo-kernel judge {place} --until-empty",
            f"3. carry {place}/verdicts and {place}/servers back",
            f"4. {go_on}",
        ]


def waiting_for(parts: Prepared, ended: RunSummary) -> WaitingRequests | None:
    """None where a run ended for another reason."""
    return waiting_in(parts.judge) if ended.cause == WAITS else None


def waiting_in(judge: object) -> WaitingRequests | None:
    """None where judges are not elsewhere."""
    return WaitingRequests(judge.folder.path, *judge.folder.carried()) if isinstance(judge, SpoolJudge) else None


def check_until_waiting(config: Config) -> None:
    """Raises ConfigError where `--until-waiting` makes no sense."""
    if not config.judge.at.startswith(SPOOL):
        raise ConfigError(
            "--until-waiting is for the judges of a folder: add --judge spool:DIR (`evo-kernel judge --help`)"
        )


def scale_line(environment: Environment) -> str:
    """What a score is relative to, told once a run."""
    above = "fastest baseline" if environment.kind == "measured" else "torch.compile's kernels, modeled too,"
    return f"score: {above} / kernel; times and scores are geometric means over search cases"


def standing_lines(best: ScoredCandidate | None, champion: ScoredCandidate | None, label: str) -> list[str]:
    """The champion where one was confirmed, else the best; and what is faster than a champion without being one."""
    lines = []
    if champion is not None and champion.evaluation is not None:
        lines.append(f"champion: candidate {champion.candidate}, confirmed, {score_text(champion.evaluation)}, {label}")
    if best is None or best.evaluation is None or (champion is not None and champion.candidate == best.candidate):
        return lines
    if not lines:
        return [f"best: candidate {best.candidate}, not confirmed, {score_text(best.evaluation)}, {label}"]
    return [*lines, f"faster, not confirmed: candidate {best.candidate}, {score_text(best.evaluation)}"]


def raised(config: Config, ended: RunSummary) -> str:
    """What `resume` needs to search on: as much again of the limits that were reached. Empty where none was."""
    if ended.cause != "budget":
        return ""
    limits = config.budget.model_dump(exclude_none=True)
    over = {name: getattr(ended.spent, name) >= limit for name, limit in limits.items()} | {"hours": ended.out_of_time}
    timed = over["hours"] or over.get("evaluations")
    more = f" --for {duration_text(60 * max(1, math.ceil(ended.wall_s / 60)))}" if timed else ""
    others = (name for name in over if over[name] and name not in ("hours", "evaluations"))
    return more + "".join(f" --set budget.{name}=+{limits[name]:g}" for name in others)


def _best_data(best: ScoredCandidate | None) -> dict[str, Any] | None:
    if best is None or best.evaluation is None:
        return None
    data, told = evaluation_data(best.evaluation), ("us", "baselines_us", "denominator", "floor_us", "light_share")
    return {
        "candidate": best.candidate,
        "score": data["score"],
        "knobs": data["knobs"],
        "strategies": [strategy.name for strategy in best.strategies],
        "mixed": data["mixed"],
        "cases": {case["case"]: {name: case[name] for name in told} for case in data["cases"]},
    }


def show(
    console: Console, parts: Prepared, ended: RunSummary, path: Path, took_s: float, more_budget: str, cut_off: int
) -> None:
    """The last word of a run on a terminal. `took_s`: since the command began."""
    best = parts.population.leader()
    say(console, "", ended_line(ended, took_s), *_count_lines(parts, ended, cut_off))
    with PopulationReader(path) as reader:
        if models := reader.models():
            uses = [*operator_lines(reader.operators()), *model_lines(models)]
            say(console, *(f"{name} {line}" for name, line in uses))
        if best is None or best.evaluation is None:
            if ended.cause != WAITS:
                say(console, f"no candidate passed; `evo-kernel tree {path} --all` lists what became of each")
        else:
            _show_best(console, parts, reader, best.candidate, best.evaluation)
    if (waiting := waiting_for(parts, ended)) is not None:
        say(console, *waiting.lines(f"evo-kernel resume {path} --until-waiting"))
        return
    commands = () if best is None else (f"show {path}", f"export {path} --to DIR")
    say(console, *(f"next: evo-kernel {command}" for command in (*commands, f"resume {path}{more_budget}")))


def ended_line(ended: RunSummary, took_s: float) -> str:
    """How long it took, and what ended it."""
    start_s = took_s - ended.wall_s
    starting = f", {start_s:.0f} s of it to start" if start_s >= 1 else ""
    confirming = f"; confirmation took {ended.confirming_s:.0f} s" if ended.confirming_s >= 1 else ""
    return f"ended after {duration_text(took_s)}{starting}: {ended.why}{confirming}"


def _count_lines(parts: Prepared, ended: RunSummary, cut_off: int) -> list[str]:
    counters, lines = parts.population.counters(), []
    if ended.unconfirmed and ended.cause != WAITS:
        lines.append("confirmation did not fit into the time: `evo-kernel confirm` does it, and `resume` first")
    lines += [
        f"{counters.attempts} attempts, {counters.candidates} candidates, {counters.passed} passed; "
        f"evaluations: {counts_text(counters.evaluations) or 'none'}",
        f"judged in this run: {counts_text(ended.statuses) or 'none'}",
    ]
    lines += [f"no proposal, {count} times: {reason}" for reason, count in list(ended.failures.items())[:3]]
    if busy := parts.judge.stages.state().busy_session:
        each = " and ".join(f"{share:.0%}" for share in busy)
        lines.append(f"the GPU was busy for {each} of the session")
    if cut_off and ended.cause != WAITS:
        attempts = "1 attempt" if cut_off == 1 else f"{cut_off} attempts"
        lines.append(f"{attempts} cut off; what was proposed is judged first on resume")
    return lines


def _show_best(
    console: Console, parts: Prepared, reader: PopulationReader, candidate: int, evaluation: Evaluation
) -> None:
    label = parts.judge.environment.label
    standing = standing_lines(parts.population.best(), parts.population.champion(), label)
    say(console, *standing, style="bold")
    if line := survival_line(reader.confirmation(candidate)):
        say(console, line)
    show_cases(console, evaluation, label)
    say(console, *fault_lines(reader.baseline_faults()), *mixed_lines(evaluation))
    if parts.judge.environment.kind == "modeled":
        say(console, "times are modeled from the compiled sm_90 code, not measured; correctness was checked by "
                     "executing the Triton IR of the kernels on the CPU")  # fmt: skip
    say(console, *path_lines(reader.critical_path(candidate)))
    if evaluation.knobs:
        say(console, "knobs: " + ", ".join(f"{name}={value}" for name, value in evaluation.knobs))


def exit_code(ended: RunSummary) -> int:
    """What `run` and `resume` return: also said in their help."""
    by_cause = {"interrupted": 130, "machine": 3, WAITS: 0}
    return by_cause.get(ended.cause, 0 if ended.best is not None else 1)
