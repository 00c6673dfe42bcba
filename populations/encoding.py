"""Between the frozen values of evo_kernel.types and what a column holds: JSON, with floats exact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from evo_kernel.types import KernelFeatures, Knobs, Measurement, PlanFeatures, Strategy

dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
loads = json.loads

_KERNEL_FIELDS = tuple(KernelFeatures.__dataclass_fields__)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def encode_knobs(knobs: Knobs) -> str:
    return dumps(knobs) if knobs else "[]"


def decode_knobs(text: str) -> Knobs:
    return tuple((name, value) for name, value in loads(text)) if text != "[]" else ()


def encode_features(features: PlanFeatures) -> str:
    kernels = [[_plain(getattr(kernel, name)) for name in _KERNEL_FIELDS] for kernel in features.kernels]
    return dumps(
        {
            "launches": features.launches,
            "aten_nodes": features.aten_nodes,
            "scratch_bytes": features.scratch_bytes,
            "fields": _KERNEL_FIELDS,  # so that a later version may add one
            "kernels": kernels,
        }
    )


def decode_features(text: str) -> PlanFeatures:
    data = loads(text)
    kernels = []
    for values in data["kernels"]:
        named = dict(zip(data["fields"], values, strict=True))
        named["grid"] = tuple(named["grid"])
        kernels.append(KernelFeatures(**named))
    return PlanFeatures(data["launches"], data["aten_nodes"], tuple(kernels), data["scratch_bytes"])


def decode_strategy(name: str, family: str, region: str, parameters: str) -> Strategy:
    return Strategy(name, family, region, tuple((key, value) for key, value in loads(parameters)))


def strategy_key(strategy: Strategy) -> str:
    """Unlike Strategy.key this holds the family too and cannot be ambiguous."""
    return dumps([strategy.name, strategy.family, strategy.region, strategy.parameters])


def plan_key(measurements: Sequence[Measurement]) -> str:
    """The same plans on the same cases are the same kernel, whatever its text: 16 hex digits, "" if nothing ran."""
    if not measurements:
        return ""
    return digest("\n".join(f"{m.case}\0{m.plan}" for m in measurements))[:16]


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value
