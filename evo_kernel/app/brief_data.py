"""A brief and a verdict as plain data: what `ask` and `tell` print (docs/guides/agents.md).

Imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evo_kernel.app.verdicts import evaluation_data
from evo_kernel.types import Brief, Evaluation, ScoredCandidate, Strategy, TaskCard, Tried
from operators.macro.catalogue import CATALOGUE, OTHER


def brief_data(brief: Brief, offered: Sequence[Strategy]) -> dict[str, Any]:
    """A ticket as one JSON object."""
    return {
        "attempt": brief.attempt,
        "environment": brief.environment.label,
        "task": task_data(brief.task),
        "parent": relative_data(brief.parent),
        "inspirations": [relative_data(one) for one in brief.inspirations],
        "tried": [tried_data(one) for one in brief.tried],
        "strategies": [strategy_data(one) for one in offered],
    }


def task_data(task: TaskCard) -> dict[str, Any]:
    """What the kernel must compute; hidden cases are not in a card."""
    return {
        "name": task.name,
        "description": task.description,
        "reference": task.reference,
        "allow": task.allow,
        "precision": task.precision,
        "atomics": task.atomics,
        "cases": [
            {
                "name": case.name,
                "kind": str(case.kind),
                "sizes": dict(case.sizes),
                "inputs": [
                    {"dtype": dtype, "shape": list(shape), "strides": list(strides)}
                    for dtype, shape, strides in case.inputs
                ],
            }
            for case in task.cases
        ],
    }


def relative_data(relative: ScoredCandidate) -> dict[str, Any]:
    """A candidate: source, the path of strategies that led to it, and its evidence."""
    return {
        "candidate": relative.candidate,
        "generation": relative.generation,
        "strategies": [strategy.key for strategy in relative.strategies],
        "evaluation": evidence_data(relative.evaluation) if relative.evaluation is not None else None,
        "language": relative.source.language,
        "source": relative.source.text,
    }


def evidence_data(evaluation: Evaluation) -> dict[str, Any]:
    """A verdict as `verify --json` prints it, with what each case's kernels are made of."""
    data = evaluation_data(evaluation)
    for case, measurement in zip(data["cases"], evaluation.measurements, strict=True):
        case["features"] = asdict(measurement.features) if measurement.features is not None else None
    return data


def tried_data(tried: Tried) -> dict[str, Any]:
    return {
        "strategy": tried.strategy.key,
        "status": str(tried.status) if tried.status is not None else None,
        "log_gain": tried.log_gain,
    }


def strategy_data(strategy: Strategy) -> dict[str, Any]:
    spec = CATALOGUE.get(strategy.name)
    return {
        "key": strategy.key,
        "name": strategy.name,
        "family": strategy.family,
        "region": strategy.region,
        "parameters": dict(strategy.parameters),
        "does": spec.summary if spec else "",
        "witness": spec.sign if spec else "",
    }


def named_strategy(text: str, offered: Sequence[Strategy]) -> Strategy:
    """What somebody says they did: an offered key, a name of the catalogue, or words of their own (never witnessed)."""
    for strategy in offered:
        if text in (strategy.key, strategy.name):
            return strategy
    spec = CATALOGUE.get(text)
    return Strategy(text, spec.family if spec else OTHER)
