"""What each page shows: values for the templates, read from a population and never changed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from evo_kernel.dashboard.formatting import clip, conversation, count, dollars, highlighted, lines_of
from evo_kernel.dashboard.lineage_view import tree
from evo_kernel.dashboard.runs import Overview, Run
from evo_kernel.observe.formatting import against, denominator
from evo_kernel.types import CaseKind, Evaluation, Measurement, Rival
from evo_kernel.types.evaluations import COMPARED
from populations.statistics import CandidateView

ANCESTORS = 300
"""That a candidate can be compared with, its nearest."""


def overview(run: Run, request: Request) -> dict[str, Any]:
    del request
    told = run.overview()
    return {
        "told": told,
        "status": told.status,
        "doing": run.doing(),
        "against": against(told.status.baselines.values()),
    }


def candidate(run: Run, request: Request) -> dict[str, Any]:
    number = request.path_params["number"]
    with run.reader() as reader:
        view = reader.candidate(number)
        path, confirmation = reader.critical_path(number), reader.confirmation(number)
        talked = bool(conversation(reader.connection, view.attempt))
        parents = reader.parents(view.attempt)
        last = reader.last_candidate()
        ancestors = [(step.candidate, step.action) for step in path if step.candidate != number and not step.tuning][
            ::-1
        ]
        ancestors += [(other, role) for role, other in parents if other not in dict(ancestors)]
        ancestors = ancestors[:ANCESTORS]
        other = _against(request, ancestors)
        before = reader.candidate(other).source.text if other else ""
    evaluation = view.evaluation
    modeled = evaluation is not None and evaluation.environment.kind == "modeled"
    measurements = evaluation.measurements if evaluation else ()
    return {
        "view": view,
        "proposal": view.proposal,
        "evaluation": evaluation,
        "over": against(one.baselines_us for one in measurements),
        "cases": [case_times(one, modeled) for one in measurements],
        "resources": [(one.case, one.features) for one in measurements if one.features],
        "confirmation": confirmation,
        "gains": _gains(confirmation),
        "path": path,
        "others": [(role, other) for role, other in parents if other != view.parent],
        "ancestors": ancestors,
        "against": other,
        "diff": diff_lines(before, view.source.text) if other else [],
        "source": highlighted(view.source.text),
        "talked": talked,
        "cost": _cost(view),
        "last": last,
    }


def lineage(run: Run, request: Request) -> dict[str, Any]:
    asked = request.query_params.get("at", "")
    rose = {row["candidate"] for row in run.overview().rises}
    with run.reader() as reader:
        best = reader.board().best() or None
        candidates = len(reader.family)
        at = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 12 else None
        if asked and (at is None or not 0 < at <= candidates):
            raise HTTPException(404, f"There is no candidate {clip(asked, 20)}.")
        path = reader.critical_path(best)[::-1] if best else []
        return {"tree": tree(reader, rose, best, at), "at": at, "path": path[:200], "candidates": candidates}


def _against(request: Request, ancestors: Sequence[tuple[int, str]]) -> int:
    """The ancestor that a diff is asked against; the parent where none is named, 0 where there is none."""
    named = request.query_params.get("against", "")
    if not named:
        return ancestors[0][0] if ancestors else 0
    if not (named.isascii() and named.isdigit() and int(named[:12]) in dict(ancestors)):
        raise HTTPException(404, f"{clip(named, 20)} is no ancestor that can be shown.")
    return int(named[:12])


def _gains(confirmation: Evaluation | None) -> list[tuple[str, str]]:
    """What fresh pairs showed, with intervals."""
    if confirmation is None:
        return []
    found = [
        (f"over the {rival} on the {kind} cases", confirmation.gain_over(rival, kind))
        for rival in Rival
        for kind in (CaseKind.SEARCH, CaseKind.CONFIRM)
    ]
    return [(what, str(gain)) for what, gain in found if gain is not None]


def _cost(view: CandidateView) -> list[str]:
    """What making and judging it took."""
    proposal = view.proposal
    tokens = sum(call.tokens_in + call.tokens_out for call in proposal.calls)
    told = [f"{proposal.wall_s:.1f} s to propose", f"{proposal.probes} probes"]
    if proposal.calls:
        spent = sum(call.dollars or 0.0 for call in proposal.calls)
        unpriced = sum(call.dollars is None for call in proposal.calls)
        told.append(f"{len(proposal.calls)} model calls, {count(tokens)} tokens, {dollars(spent)}")
        told += [f"{unpriced} calls of unknown price"] if unpriced else []
    charged: dict[str, int] = {}
    for evaluation in view.evaluations:
        for purpose, number in evaluation.charged.items():
            charged[str(purpose)] = charged.get(str(purpose), 0) + number
    told += [f"{number} evaluations to {purpose}" for purpose, number in sorted(charged.items())]
    told.append(f"{sum(one.gpu_s for one in view.evaluations):.2f} s of GPU")
    return [*told, f"{sum(one.wall_s for one in view.evaluations):.1f} s of judging"]


AXES = ("evaluations", "hours", "dollars")


def best_so_far(*runs: Run) -> dict[str, Any]:
    """Of each run, against what was spent."""
    return {"runs": [_columns(run.title, run.overview()) for run in runs], "axes": list(AXES)}


def _columns(title: str, told: Overview) -> dict[str, Any]:
    """By axis, strictly growing `x` and the best `score` there, with a last point at now."""
    now = {"evaluations": told.evaluations, "hours": told.hours, "dollars": told.status.dollars}
    columns: dict[str, Any] = {}
    for axis in AXES:
        best: dict[float, float | None] = {}  # several at one place: the last is the best
        for rise in told.rises:
            best[rise[axis]] = rise["score"]
        if best:
            best[now[axis]] = next(reversed(best.values()))
        columns[axis] = {"x": list(best), "score": list(best.values())}
    return {"title": title, "against": against(told.status.baselines.values()), **columns}


LONGEST = 3000  # lines; beyond that comparing may take minutes


@dataclass(frozen=True)
class DiffLine:
    kind: str  # "same", "added", "gone", "gap"
    text: str


def diff_lines(before: str, after: str) -> list[DiffLine] | None:
    """With three lines around each change; empty when nothing changed, None when a text is too long to compare."""
    old, new = lines_of(before), lines_of(after)
    if len(old) > LONGEST or len(new) > LONGEST or max(len(before), len(after)) > 100 * LONGEST:
        return None
    kinds = {"+": "added", "-": "gone", " ": "same", "@": "gap"}
    told = difflib.unified_diff(old, new, lineterm="", n=3)
    return [DiffLine(kinds[line[0]], line) for number, line in enumerate(told) if number >= 2]


@dataclass(frozen=True)
class TimeRow:
    """The kernel itself, or a baseline. Ratios are baseline ÷ kernel, over the interval of the kernel's median."""

    name: str
    us: float
    own: bool = False
    denominator: bool = False
    interval_us: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class CaseTimes:
    name: str
    rows: tuple[TimeRow, ...]
    light_share: float | None
    floor_us: float | None
    terms: tuple[tuple[str, float], ...]  # of modeled times, the longest first


def case_times(measured: Measurement, modeled: bool) -> CaseTimes:
    baselines = {name: us for name, us in measured.baselines_us.items() if us > 0 and math.isfinite(us)}
    fastest, low, high = denominator(baselines), measured.low_us, measured.high_us
    known = math.isfinite(low) and math.isfinite(high) and high > low > 0
    rows = [TimeRow("this kernel", measured.median_us, own=True, interval_us=(low, high) if known else None)]
    for name, us in sorted(baselines.items(), key=lambda item: item[1]):
        ratio = us / measured.median_us if measured.median_us > 0 else None
        interval = (us / high, us / low) if known else None
        rows.append(TimeRow(name, us, denominator=name == fastest, ratio=ratio, ratio_interval=interval))
    details = {name: us for name, us in measured.details.items() if not name.startswith(COMPARED)}
    terms = sorted(details.items(), key=lambda item: -item[1]) if modeled else []
    shown = tuple(term for term in terms if term[1] > 0)
    return CaseTimes(measured.case, tuple(rows), measured.light_share, measured.floor_us, shown)
