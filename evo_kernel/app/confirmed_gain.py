"""How much of a claimed gain survived its confirmation, as data and as lines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from evo_kernel.types import CaseKind, Evaluation, Gain, Rival


def survival_line(confirmation: Evaluation | None) -> str:
    """One sentence on the gain over the first kernel; empty where nothing was compared."""
    found = confirmation.gain_over(Rival.FIRST, CaseKind.SEARCH) if confirmation is not None else None
    if confirmation is None or found is None:
        return ""
    how = "by fresh pairs" if confirmation.environment.kind == "measured" else "modeled"
    over = f"over the first kernel, {how}: {found}"
    if confirmation.survived is None or confirmation.claimed is None:
        return f"gain {over}"
    return f"{confirmation.survived:.0%} of the claimed gain survived: {confirmation.claimed:.3f}x claimed; {over}"


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
    return {
        "status": str(confirmation.status),
        "reason": confirmation.reason,
        "claimed": confirmation.claimed,
        "found": asdict(gain) if gain is not None else None,
        "survived": confirmation.survived,
        "comparisons": [asdict(one) for one in confirmation.comparisons],
    }
