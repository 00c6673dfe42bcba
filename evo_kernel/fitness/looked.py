"""What a look at a plan of real size (interpreting/looking.py) says: held against the reference on the trusted side."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from evo_kernel.fitness import check
from evo_kernel.fitness.expected import Expected
from evo_kernel.fitness.plan import Plan, View
from evo_kernel.tasks.task import Tolerance

SLACK = 2.0
"""A sample of elements may be less exact than all of them together: allowed beyond its share of the honest error."""


def fault_of(answer: Mapping[str, Any], plan: Plan, expected: Sequence[Expected], tolerance: Tolerance) -> str:
    """What is wrong, in words; empty when nothing is. Raises ValueError and its like for a malformed answer."""
    if "skipped" in answer:
        return ""
    if answer["changed"]:
        return "the kernel changes its inputs"
    if len(plan.outputs) != len(expected):
        return f"it returns {len(plan.outputs)} outputs where the reference returns {len(expected)}"
    if len(answer["outputs"]) != len(expected):
        raise ValueError("another number of outputs than the plan has")
    sampled, wanted = [], []
    for view, told, full in zip(plan.outputs, answer["outputs"], expected, strict=True):
        if tuple(view.shape) != tuple(full.honest.shape):
            return f"an output has shape {tuple(view.shape)} where the reference has {tuple(full.honest.shape)}"
        places = torch.frombuffer(bytearray(base64.b64decode(told["places"])) or bytearray(8), dtype=torch.int64)
        places = places if told["places"] else places[:0]
        sampled.append(_values(told["values"], view))
        wanted.append(_part(full, places))
    result = check.compare("", sampled, wanted, tolerance)
    if not result.passed:
        return f"of the elements that were looked at, {result.reason}"
    return _extent_fault(answer, plan)


def _extent_fault(answer: Mapping[str, Any], plan: Plan) -> str:
    """What is amiss with how much the plan writes."""
    for number, (view, told, estimate) in enumerate(
        zip(plan.outputs, answer["outputs"], answer["written"], strict=True)
    ):
        if answer["whole"] and int(told["unknown"]):
            return (
                f"{int(told['unknown'])} of {view.elements} elements of output {number} are never written, or come "
                "from memory nothing wrote"
            )
        if estimate is not None and float(estimate) < 0.9 * view.elements:
            return (
                f"the whole grid writes about {float(estimate):.0f} of the {view.elements} elements of output {number}"
            )
    return ""


def _values(encoded: str, view: View) -> torch.Tensor:
    data = bytearray(base64.b64decode(encoded))
    dtype = getattr(torch, view.dtype)
    return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _part(full: Expected, places: torch.Tensor) -> Expected:
    """What is expected of some elements: their share of the honest error, by number or by size."""
    truth = full.truth.flatten()[places]
    share = math.sqrt(places.numel() / max(1, full.honest.numel()))
    if truth.is_floating_point():
        whole = float(torch.where(full.truth.isfinite(), full.truth, 0).norm())
        share = max(share, float(torch.where(truth.isfinite(), truth, 0).norm()) / whole if whole else 0.0)
    return replace(
        full,
        truth=truth,
        honest=full.honest.flatten()[places],
        compared=full.compared.flatten()[places],
        frobenius=full.frobenius * min(1.0, SLACK * share),
    )
