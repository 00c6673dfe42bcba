"""What evaluations, versions and gains look like to an agent, and what of them is remembered."""

from __future__ import annotations

import math
from typing import Any

from evo_kernel.types import Evaluation, ScoredCandidate, content_hash
from evo_kernel.types.notes import Evidence, Version
from operators.micro.faults import ADVICE, fault_of
from operators.prompts.evidence import evidence

TABLE_TOKENS = 1200
REASON = 2400  # characters of a compiler's message


def told(evaluation: Evaluation, name: str) -> str:
    """A verdict with its evidence: status, times by case, resources; or the fault, its category, where to look."""
    fault = fault_of(evaluation)
    if fault is None:
        return f"{name}: {evidence(evaluation, TABLE_TOKENS)}\nsamples a case, at least: {samples_of(evaluation)}"
    reason = evaluation.reason
    if len(reason) > REASON:
        reason = f"{reason[: REASON // 2]}\n[…]\n{reason[-REASON // 2 :]}"
    return f"{name}: {evaluation.status} (category: {fault})\n{reason}\n{ADVICE[fault]}".rstrip()


def samples_of(evaluation: Evaluation) -> int:
    """The fewest samples that any case's time rests on; 0 where times are modeled, or nothing was timed."""
    return min((one.n for one in evaluation.measurements), default=0)


def plan_hash(evaluation: Evaluation) -> str:
    """The same plans on the same cases are the same kernel, whatever its text; "" where there are no plans."""
    plans = sorted({(case, plan) for case, _, plan in evaluation.plans})
    return content_hash(plans)[:16] if plans else ""


def facts_of(evaluation: Evaluation, name: str, idea: str) -> dict[str, Any]:
    """What is to be remembered of it, as JSON."""
    fault = fault_of(evaluation)
    return {
        "evaluation": name,
        "purpose": str(evaluation.purpose),
        "source": evaluation.source,
        "status": str(evaluation.status),
        "fault": str(fault) if fault else "",
        "reason": evaluation.reason[:300],
        "score": evaluation.score,
        "samples": samples_of(evaluation),
        "plan": plan_hash(evaluation),
        "idea": idea,
        "knobs": [list(one) for one in evaluation.knobs],
    }


def version_line(version: Version) -> str:
    score = "" if version.score is None else f" score {version.score:.3f}"
    gain = (
        "" if version.log_gain is None else f", {(math.exp(version.log_gain) - 1) * 100:+.1f} % speed over its parent"
    )
    parent = f" from C{version.parent}" if version.parent else ""
    what = f" {version.strategy}" if version.strategy else ""
    return f"C{version.number}{parent} [{version.operator}{what}] {version.status or 'not judged'}{score}{gain}"


def evidence_of(relative: ScoredCandidate) -> Evidence | None:
    """What a note may cite of a version; None while it is not judged."""
    found = relative.evaluation
    if found is None:
        return None
    return Evidence(f"C{relative.candidate}", samples_of(found), str(found.status), found.score)
