"""The page that compares two runs: numbers, times by case, and settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from evo_kernel.dashboard.formatting import count, dollars, hours, ratio
from evo_kernel.dashboard.runs import Overview, Run
from evo_kernel.observe.formatting import denominator
from evo_kernel.types import Evaluation


@dataclass(frozen=True)
class ComparedRun:
    run: Run
    told: Overview
    evaluation: Evaluation | None  # of its best
    config: Mapping[str, Any]  # of its last session


@dataclass(frozen=True)
class ComparedCase:
    """µs of both bests, of the fastest baseline and of the floor; None where not known."""

    name: str
    first: float | None
    second: float | None
    baseline: str
    baseline_us: float | None
    floor_us: float | None


def compare(runs: Sequence[Run], request: Request) -> dict[str, Any]:
    pair = [_side(run) for run in chosen(runs, request)]
    return {
        "pair": pair,
        "warnings": _warnings(*pair),
        "rows": [(name, [tell(one.told) for one in pair]) for name, tell in _ROWS],
        "cases": _cases(*pair),
        "settings": _settings(*pair),
    }


def chosen(runs: Sequence[Run], request: Request) -> tuple[Run, Run]:
    """The two that are asked for: the first two where none is named. Raises HTTPException."""
    numbers = []
    for name, usual in (("a", 0), ("b", min(1, len(runs) - 1))):
        asked = request.query_params.get(name, str(usual))
        if not (asked.isascii() and asked.isdigit() and len(asked) < 6 and int(asked) < len(runs)):
            raise HTTPException(404, f"Populations are numbered 0 to {len(runs) - 1} here.")
        numbers.append(int(asked))
    return runs[numbers[0]], runs[numbers[1]]


def _side(run: Run) -> ComparedRun:
    told = run.overview()
    best = told.status.best
    with run.reader() as reader:
        evaluation = reader.candidate(best.candidate).evaluation if best else None
        return ComparedRun(run, told, evaluation, reader.sessions()[-1].config)


def _warnings(first: ComparedRun, second: ComparedRun) -> list[str]:
    found = []
    if first.told.status.task_identity != second.told.status.task_identity:
        found.append("The tasks differ: what they score is not the same work.")
    places = [one.told.status.environment for one in (first, second)]
    if places[0] and places[1] and places[0].key != places[1].key:
        found.append(f"The environments differ ({places[0].label}, {places[1].label}): scores compare only inside one.")
    return found


_ROWS = (
    ("environment", lambda told: told.status.environment.label if told.status.environment else "–"),
    ("best score", lambda told: ratio(told.status.best.score) if told.status.best else "–"),
    ("champion", lambda told: ratio(told.status.champion.score) if told.status.champion else "none"),
    ("candidates", lambda told: count(told.status.candidates)),
    ("passed", lambda told: count(told.status.verdicts.get("passed", 0))),
    ("attempts without a candidate", lambda told: count(told.status.failures)),
    ("improvements", lambda told: count(len(told.rises))),
    ("evaluations", lambda told: count(told.evaluations)),
    ("time", lambda told: hours(told.hours)),
    ("dollars", lambda told: dollars(told.status.dollars)),
    ("tokens", lambda told: count(told.status.tokens)),
    ("archive cells", lambda told: count(len(told.cells))),
)


def _cases(first: ComparedRun, second: ComparedRun) -> list[ComparedCase]:
    """By case."""
    measured = [
        {one.case: one for one in side.evaluation.measurements} if side.evaluation else {} for side in (first, second)
    ]
    found = []
    for name in dict.fromkeys([*measured[0], *measured[1]]):
        both = [side.get(name) for side in measured]
        known = next(one for one in both if one is not None)
        fastest = denominator(known.baselines_us)
        times = [one.median_us if one is not None else None for one in both]
        found.append(ComparedCase(name, times[0], times[1], fastest, known.baselines_us.get(fastest), known.floor_us))
    return found


def _settings(first: ComparedRun, second: ComparedRun) -> list[tuple[str, str, str]]:
    flat = [dict(_flat(side.config)) for side in (first, second)]
    names = sorted(flat[0].keys() | flat[1].keys())
    pairs = [(name, flat[0].get(name, "–"), flat[1].get(name, "–")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _flat(value: Any, name: str = "") -> Sequence[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [one for key, part in value.items() for one in _flat(part, f"{name}.{key}" if name else str(key))]
    return [(name, str(value))]
