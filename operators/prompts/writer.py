"""Puts prompts together from a brief: one system message that stays the same, one user message that does not."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path

from evo_kernel.syntax import parse_module
from evo_kernel.types import Brief, CaseCard, CaseKind, Environment, ScoredCandidate, Source, TaskCard
from operators.knowledge.base import KnowledgeBase
from operators.llm.base import Message
from operators.macro.policies import StrategyMemory
from operators.prompts.evidence import bottleneck, evidence, strategy_line, tried_line, undescribed, verdict
from operators.prompts.parts import Budgets, Part, first_lines, joined, one_line, rows, tokens, without_middle


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
    others = sorted(relatives, key=lambda r: (-score_of(r), -r.candidate))
    judged = [r for r in others if r.candidate != parent.candidate and r.evaluation]
    passed = [r for r in judged if r.evaluation and r.evaluation.passed]
    failed = sorted((r for r in judged if r not in passed), key=lambda r: -r.candidate)
    found: list[tuple[str, ScoredCandidate]] = []
    better = [r for r in passed if score_of(r) > score_of(parent)]
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
    body, label = relative.source.text, "python"
    if tokens(difference) < tokens(body):
        body, label = difference, "diff"
    cut = without_middle(body, budget - tokens(head) - 8)
    return f"{head}\n```{label}\n{cut}\n```" if cut else head


def score_of(relative: ScoredCandidate) -> float:
    return (relative.evaluation.score if relative.evaluation else None) or 0.0


def _cell(relative: ScoredCandidate) -> object:
    features = relative.evaluation.features if relative.evaluation else None
    return features.cell if features else None


_FOLDER = Path(__file__).parent
RELATIVES, PASSAGES = 3, 4  # shown at most
_TITLES = {"answer": "How to answer"}


Profile = Callable[[ScoredCandidate], str]
"""The profile table of a candidate, or an empty text where there is none. Called once a prompt."""


class Prompts:
    """What all prompts of a run share. Thread-safe when `knowledge` and `profile` are.

    `hierarchy`: one chooses, another writes; without it the writer is told to choose, too.
    """

    def __init__(
        self,
        budgets: Budgets | None = None,
        *,
        hierarchy: bool = True,
        knowledge: KnowledgeBase | None = None,
        profile: Profile | None = None,
        memory: StrategyMemory | None = None,
    ) -> None:
        self.budgets, self.hierarchy = budgets or Budgets(), hierarchy
        self.memory = memory if memory is not None else StrategyMemory()
        self._knowledge, self._profile = knowledge, profile

    def system(self, task: TaskCard, environment: Environment, *roles: str) -> Message:
        """The stable prefix: rules, API notes, hardware and task are the same for every role; the role comes last."""
        budgets = self.budgets
        parts = [
            Part("Triton notes", first_lines(document("api"), budgets.api)),
            Part("Hardware and environment", first_lines(_hardware(environment), budgets.hardware)),
            Part("Task", task_text(task, budgets.task)),
            *(Part(_TITLES.get(role, "Your part"), document(role)) for role in roles),
        ]
        return Message("system", f"{document('rules').strip()}\n\n{joined(parts)}", stable=True)

    def situation(self, brief: Brief, source: Source, keep: Collection[str] = (), query: str = "") -> list[Part]:
        """The volatile tail: the parent with its evidence, relatives, what was tried, profile, passages.

        `source`: as it stands, which is the parent's before the first step. `keep`: functions that must be whole.
        """
        budgets, parent = self.budgets, brief.parent
        relatives = chosen(brief.inspirations, parent, RELATIVES)
        tried = [tried_line(entry) for entry in brief.tried]  # youngest first
        profile = self._profile(parent) if self._profile else ""
        return [
            Part(f"Evidence of the parent (candidate {parent.candidate})", self._evidence(parent)),
            Part("Profile of the parent", first_lines(profile, budgets.profile)),
            Part("Relatives", relatives_text(relatives, parent, budgets.inspirations)),
            Part("Tried on this parent, youngest first", rows((), tried, budgets.tried)),
            Part("Passages from the knowledge base", self._found(query)),
            source_part(source, budgets.source, keep, parent.source == source),
        ]

    def remembered(self) -> list[Part]:
        return [Part("What has paid in this population", rows((), self.memory.paid(), self.budgets.paid))]

    def _evidence(self, parent: ScoredCandidate) -> str:
        path = ", ".join(strategy_line(undescribed(s)) for s in parent.strategies[-8:])
        said = evidence(parent.evaluation, self.budgets.evidence)
        return f"{said}\n\nStrategies on its path, oldest first: {path}" if path else said

    def _found(self, query: str) -> str:
        """Whole passages, best first, as many as fit; the first is cut if even it does not."""
        if self._knowledge is None or not query or self.budgets.knowledge <= 0:
            return ""
        texts: list[str] = []
        for passage in self._knowledge.search(query, PASSAGES):
            text = f"### {passage.title} ({passage.source})\n{passage.text.strip()}"
            if tokens("\n\n".join([*texts, text])) > self.budgets.knowledge:
                break
            texts.append(text)
        else:
            return "\n\n".join(texts)
        return "\n\n".join(texts) or first_lines(text, self.budgets.knowledge)


def user(parts: Sequence[Part]) -> Message:
    return Message("user", joined(parts))


def looked_up(brief: Brief) -> str:
    """What to look up: the task, and what holds its slowest case back."""
    measured = brief.parent.evaluation.measurements if brief.parent.evaluation else ()
    slowest = max(measured, key=lambda m: m.median_us, default=None)
    kind = brief.task.description.split(":")[0][:200]  # a bare name says little: "layernorm l2" finds notes on the L2
    return f"{brief.task.name} {kind} {bottleneck(slowest) if slowest else ''}".strip()


@cache
def document(name: str) -> str:
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")


def source_part(source: Source, budget: int, keep: Collection[str], is_parent: bool) -> Part:
    text, whole = shown(source.text, budget, keep)
    title = "Source of the parent" if is_parent else "Source as it stands after the steps so far"
    note = "" if whole else "\nParts are not shown: change only what is, with blocks; a whole file would lose them."
    return Part(title, f"```python\n{text.rstrip()}\n```{note}")


def task_text(task: TaskCard, budget: int) -> str:
    """Contract, cases (search cases first) and reference, which gives way first."""
    said = one_line(task.description, budget // 4) if task.description else "see the reference."
    atomics = "may differ in the last bits (atomics are allowed)" if task.atomics else "must agree bit by bit"
    contract = (
        f"{task.name}: {said}\n"
        f"Allowed in `run`: {task.allow}. fp32 contractions may use: {task.precision}. Two runs {atomics}."
    )
    search_first = sorted(task.cases, key=lambda case: case.kind is not CaseKind.SEARCH)
    cases = rows(("Cases (hidden ones of other sizes are judged too):",), [_case(c) for c in search_first], budget // 4)
    left = budget - tokens(contract) - tokens(cases) - 8
    reference = without_middle(task.reference.strip(), left)
    code = f"```python\n{reference}\n```" if reference else ""
    return "\n\n".join(part for part in (contract, cases, code) if part) if budget > 0 else ""


def _case(case: CaseCard) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in case.sizes.items())
    inputs = "; ".join(f"{dtype} {list(shape)} strides {list(strides)}" for dtype, shape, strides in case.inputs)
    return f"- {case.kind} {case.name}: {sizes} -> {inputs}"


def _hardware(environment: Environment) -> str:
    device = environment.device
    hopper = any(word in device for word in ("sm_90", "H200", "H100", "GH200"))
    kind = "measured on it" if environment.kind == "measured" else "modeled from the compiled code; no GPU is here"
    versions = f"Device: {device}; times are {kind}. torch {environment.torch}, triton {environment.triton}."
    return f"{versions}\n{document('sm_90')}" if hopper else versions
