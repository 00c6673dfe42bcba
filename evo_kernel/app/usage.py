"""Uses and costs of operators and language models, as lines for `status` and the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from populations.views import ModelUse, OperatorUse


WITH_MODEL = ("llm-mtmc", "llm-crossover", "avo")
"""Operators that ask a language model; the first goes on with rules where none answers."""


def operator_lines(operators: Sequence[OperatorUse]) -> list[tuple[str, str]]:
    """What came of each operator's attempts."""
    return [
        (
            "operator",
            f"{one.operator}: {one.attempts} attempts, {one.candidates} candidates, {one.passed} passed"
            + (f", {one.by_rules} by rules: no model answered" if one.by_rules and one.operator in WITH_MODEL else "")
            + (f", best {one.best_score:.3f}x" if one.best_score is not None else "")
            + (f", ${one.dollars:.2f}" if one.dollars else ""),
        )
        for one in operators
    ]


def model_lines(models: Sequence[ModelUse]) -> list[tuple[str, str]]:
    """What each language model was asked, and what that cost."""
    return [
        (
            "model",
            f"{one.model}: {one.calls} calls, {one.tokens_in} tokens in ({one.cached_share:.0%} cached), "
            f"{one.tokens_out} out, ${one.dollars:.4f}"
            + (f" and {one.unpriced} calls of unknown price" if one.unpriced else "")
            + f", {one.errors} errors",
        )
        for one in models
    ]
