"""What the judge said of a kernel, as compact JSON and back: all that a policy, a prompt or a witness reads.

Environments are kept apart, once a file. Numbers keep six digits. Not kept: temperatures, clocks and the like, checks
(what fails says why in `reason`), and verdicts of the plans that tuning passed by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evo_kernel.types import (
    Environment,
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    Purpose,
    Status,
    Strategy,
)

Row = dict[str, Any]
DIGITS = 6


def short(value: Any) -> Any:
    """The same with DIGITS significant digits of each float, mappings and sequences as JSON has them."""
    if isinstance(value, Mapping):
        return {str(name): short(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [short(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value


def evaluation_data(found: Evaluation) -> Row:
    """Without its environment: `found.environment.key` says which it was."""
    return {
        "source": found.source, "task": found.task, "environment": found.environment.key,
        "status": str(found.status), "reason": found.reason[:500], "score": found.score, "knobs": found.knobs,
        "measurements": [
            {
                "case": one.case, "plan": one.plan[:16], "us": [one.median_us, one.iqr_us, one.low_us, one.high_us],
                "n": one.n, "baselines": one.baselines_us, "light": one.light_share,
                "features": None if one.features is None else asdict(one.features),
            } for one in found.measurements
        ],
    }  # fmt: skip


def evaluation_of(data: Mapping[str, Any], environments: Mapping[str, Environment]) -> Evaluation:
    """Raises KeyError, TypeError or ValueError where the data is not what `evaluation_data` makes."""
    return Evaluation(
        data["source"], data["task"], Purpose.SCORE, environments[data["environment"]], Status(data["status"]),
        data["reason"], data["score"], tuple((str(name), int(value)) for name, value in data["knobs"]),
        measurements=tuple(_measurement_of(one) for one in data["measurements"]),
    )  # fmt: skip


def strategy_data(strategy: Strategy) -> list[Any]:
    return [strategy.name, strategy.family, strategy.region, [list(pair) for pair in strategy.parameters]]


def strategy_of(data: Sequence[Any]) -> Strategy:
    name, family, region, parameters = data
    return Strategy(name, family, region, tuple((key, value) for key, value in parameters))


def _measurement_of(data: Mapping[str, Any]) -> Measurement:
    median_us, iqr_us, low_us, high_us = data["us"]
    features = data["features"]
    if features is not None:
        kernels = tuple(KernelFeatures(**{**one, "grid": tuple(one["grid"])}) for one in features["kernels"])
        features = PlanFeatures(**{**features, "kernels": kernels})
    return Measurement(
        data["case"], data["plan"], median_us, iqr_us, data["n"], low_us, high_us, data["baselines"], data["light"],
        features,
    )  # fmt: skip
