"""Transfer: what a prompt says of first kernels that were written for another task (`--start-from`)."""

from __future__ import annotations

import difflib

from evo_kernel.types import ScoredCandidate, TaskCard
from operators.prompts.evidence import strategy_line
from operators.prompts.parts import one_line
from operators.prompts.writer import contract_text


def transfer_hint(other: TaskCard, champion: ScoredCandidate, task: TaskCard) -> str:
    """In words: the other task, how this one differs, and what its champion's path holds. Empty for the same task.

    `Prompts(hint=...)` puts it into the stable part and cuts it to its budget.
    """
    ours, theirs = task.reference.strip().split("\n"), other.reference.strip().split("\n")
    if ours == theirs and contract_text(task) == contract_text(other):
        return ""
    path = "; ".join(strategy_line(strategy) for strategy in champion.strategies[-8:]) or "none that is known"
    lines = [
        f"Some first kernels were written for another task, {one_line(other.name, 20)}, and are the fastest there.",
        f"Strategies on the champion's path there, oldest first: {path}.",
        "Their structure is what is worth keeping; shapes, masks, dtypes and the contract are this task's.",
    ]
    if contract_text(other) != contract_text(task):
        lines.append(f"The contract there: {one_line(contract_text(other), 80)}")
    differs = list(difflib.unified_diff(theirs, ours, "reference there", "reference here", lineterm="", n=1))
    return "\n".join([*lines, "", "```diff", *differs, "```"]) if differs else "\n".join(lines)
