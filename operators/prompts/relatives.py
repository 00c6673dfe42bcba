"""Sources in a prompt: the parent whole or with far functions shrunk, relatives as differences to it."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Sequence

from evo_kernel.syntax import parse_module
from evo_kernel.types import ScoredCandidate
from operators.prompts.evidence import strategy_line, undescribed, verdict
from operators.prompts.parts import tokens, without_middle


def shown(text: str, budget: int, keep: Collection[str] = ()) -> tuple[str, bool]:
    """The source, and whether it is all there.

    Above the budget, functions other than `run` and those in `keep` shrink to their signatures, longest first, until it
    fits; if it then still does not, it is shown as it is: an edit needs the text that it changes.
    """
    if tokens(text) <= budget:
        return text, True
    lines, whole = text.split("\n"), True
    try:
        tree = parse_module(text)
    except (SyntaxError, ValueError, RecursionError):
        return text, True
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name not in ("run", *keep)]
    for node in sorted(functions, key=lambda n: n.lineno - (n.end_lineno or n.lineno)):
        first, last = node.body[0].lineno - 1, node.end_lineno or node.body[-1].lineno
        if last - first < 3 or first < node.lineno:
            continue
        # NUL marks what goes: line numbers of the functions still to come must not move.
        lines[first:last] = [f"    # [{last - first} lines not shown]", *["\0"] * (last - first - 1)]
        whole = False
        if tokens("\n".join(line for line in lines if line != "\0")) <= budget:
            break
    return "\n".join(line for line in lines if line != "\0"), whole


def chosen(
    relatives: Sequence[ScoredCandidate], parent: ScoredCandidate, most: int
) -> list[tuple[str, ScoredCandidate]]:
    """(why, relative): a better one, one from another cell, a recent failure; then the next best, up to `most`."""
    others = [r for r in relatives if r.candidate != parent.candidate]
    passed = sorted(
        (r for r in others if r.evaluation and r.evaluation.passed), key=lambda r: (-_score(r), -r.candidate)
    )
    failed = sorted((r for r in others if r.evaluation and not r.evaluation.passed), key=lambda r: -r.candidate)
    found: list[tuple[str, ScoredCandidate]] = []
    better = [r for r in passed if _score(r) > _score(parent)]
    found += [("better than the parent", r) for r in better[:1]]
    taken = {r.candidate for _, r in found}
    found += [("built another way", r) for r in passed if r.candidate not in taken and _cell(r) != _cell(parent)][:1]
    found += [("a recent failure", r) for r in failed[:1]]
    taken = {r.candidate for _, r in found}
    found += [("a relative", r) for r in passed if r.candidate not in taken]
    return found[: max(most, 0)]


def relatives_text(relatives: Sequence[tuple[str, ScoredCandidate]], parent: ScoredCandidate, budget: int) -> str:
    """Each relative with an even share of the budget: why it is here, its verdict and path, and how it differs."""
    if not relatives or budget <= 0:
        return ""
    share = budget // len(relatives)
    return "\n\n".join(_relative(why, relative, parent, share) for why, relative in relatives)


def _relative(why: str, relative: ScoredCandidate, parent: ScoredCandidate, budget: int) -> str:
    path = ", ".join(strategy_line(undescribed(s)) for s in relative.strategies[-6:]) or "none"
    head = f"### Candidate {relative.candidate}: {why}\n{verdict(relative.evaluation)}\nStrategies on its path: {path}"
    ours, theirs = parent.source.text.split("\n"), relative.source.text.split("\n")
    difference = "\n".join(list(difflib.unified_diff(ours, theirs, "parent", "it", lineterm="", n=2))[2:])
    if tokens(difference) < tokens(relative.source.text):
        body, label = difference, "diff"
    else:
        body, label = relative.source.text, "python"
    cut = without_middle(body, budget - tokens(head) - 8)
    return f"{head}\n```{label}\n{cut}\n```" if cut else head


def _score(relative: ScoredCandidate) -> float:
    return (relative.evaluation.score if relative.evaluation else None) or 0.0


def _cell(relative: ScoredCandidate) -> object:
    features = relative.evaluation.features if relative.evaluation else None
    return features.cell if features else None
