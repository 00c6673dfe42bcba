"""How much of a claimed gain survived its confirmation, as data and as lines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from evo_kernel.types import CaseKind, Evaluation, Gain, Rival
from evo_kernel.types.promotion import FIRST


def survival_line(confirmation: Evaluation | None) -> str:
    """One sentence on the gain over the first kernel, on search and hidden cases; empty where nothing was compared."""
    found = confirmation.gain_over(Rival.FIRST, CaseKind.SEARCH) if confirmation is not None else None
    if confirmation is None or found is None:
        return ""
    how = "by fresh pairs" if confirmation.environment.kind == "measured" else "modeled"
    line = f"gain over the first kernel (candidate {FIRST}), {how}: {found} on search cases"
    if (hidden := confirmation.gain_over(Rival.FIRST, CaseKind.CONFIRM)) is not None:
        line += f", {hidden} on hidden cases"
    if confirmation.survived is None or confirmation.claimed is None:
        return line
    return f"{line}; {confirmation.survived:.0%} of the claimed {confirmation.claimed:.3f}x survived"


def confirmed_lines(confirmation: Evaluation | None) -> list[str]:
    """For people: the verdict, what survived, and every comparison."""
    if confirmation is None:
        return []
    verdict = "confirmed" if confirmation.passed else f"not confirmed, {confirmation.status}: {confirmation.reason}"
    return [verdict, *comparison_lines(confirmation)]


def comparison_lines(confirmation: Evaluation) -> list[str]:
    """For people: what survived of the gain, and every comparison."""
    line = survival_line(confirmation)
    lines = [line] if line else []
    width = max((len(one.case) for one in confirmation.comparisons), default=0)
    for one in confirmation.comparisons:
        gain = Gain(one.ratio, one.low, one.high)
        claim = f", {one.claimed:.3f}x claimed" if one.claimed is not None else ""
        pairs = f", {one.pairs} pairs" if one.pairs else ""
        lines.append(f"  {one.case:<{width}}  {one.kind}, to the {one.against}: {gain} {one.verdict}{pairs}{claim}")
    return lines


def confirmed_data(confirmation: Evaluation | None) -> dict[str, Any] | None:
    """For scripts; None where nothing was confirmed or refuted."""
    if confirmation is None:
        return None
    gain = confirmation.gain_over(Rival.FIRST, CaseKind.SEARCH)
    hidden = confirmation.gain_over(Rival.FIRST, CaseKind.CONFIRM)
    return {
        "status": str(confirmation.status),
        "reason": confirmation.reason,
        "claimed": confirmation.claimed,
        "found": asdict(gain) if gain is not None else None,
        "survived": confirmation.survived,
        "hidden": asdict(hidden) if hidden is not None else None,
        "comparisons": [asdict(one) for one in confirmation.comparisons],
    }
