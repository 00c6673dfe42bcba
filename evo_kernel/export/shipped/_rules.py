"""Which kernel takes which inputs: only what was verified, as manifest.json says it.

A range is what several verified cases span: of every tensor its dtype, rank and layouts, of every dimension the
smallest and the largest size and what all sizes are multiples of, of every number the values that were tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

ALIGNED_BYTES = 16
"""Every verified input began at such an address; kernels may rely on it."""

Rule = Mapping[str, Any]


def signature(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """All that a choice goes by, for a cache: dtype, sizes, strides, device and alignment, or the number itself."""
    return tuple(
        (value.dtype, value.shape, value.stride(), value.device, value.data_ptr() % ALIGNED_BYTES)
        if isinstance(value, torch.Tensor)
        else (type(value), value)
        for value in inputs
    )


def dense_strides(shape: Sequence[int], order: Sequence[int] | None) -> list[int]:
    """Strides of a tensor without gaps whose dimensions lie in memory in this order, the slowest first.

    None: row-major.
    """
    strides, step = [0] * len(shape), 1
    for dimension in reversed(range(len(shape)) if order is None else order):
        strides[dimension] = step
        step = step * shape[dimension]
    return strides


def lies_in(tensor: torch.Tensor, order: Sequence[int] | None) -> bool:
    """Whether a tensor is dense in this order; the stride of a dimension of size 1 means nothing."""
    if tensor.numel() == 0:
        return True
    wanted = dense_strides(tensor.shape, order)
    return all(size == 1 or got == want for size, got, want in zip(tensor.shape, tensor.stride(), wanted, strict=True))


def outside(inputs: Sequence[Any], span: Rule) -> str:
    """Why inputs are outside a range; empty where they are inside."""
    if len(inputs) != len(span["inputs"]):
        return f"{len(inputs)} inputs where the kernel takes {len(span['inputs'])}"
    for name, value, rule in zip(span["names"], inputs, span["inputs"], strict=True):
        if isinstance(value, torch.Tensor) != ("dtype" in rule):
            return f"{name} is {'a tensor' if isinstance(value, torch.Tensor) else 'a number'}"
        reason = _tensor(value, rule) if isinstance(value, torch.Tensor) else _number(value, rule)
        if reason:
            return f"{name} {reason}"
    for places in span["equal"]:
        sizes = {inputs[place].shape[dimension] for place, dimension in places}
        if len(sizes) > 1:
            named = ", ".join(f"{span['names'][place]}.shape[{dimension}]" for place, dimension in places)
            return f"sizes differ that were equal in every verified case: {named}"
    return ""


def _number(value: Any, rule: Rule) -> str:
    known = any(type(value) is type(tried) and value == tried for tried in rule["values"])
    return "" if known else f"is {value!r}; verified with {', '.join(map(repr, rule['values']))}"


def _tensor(value: torch.Tensor, rule: Rule) -> str:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype != rule["dtype"]:
        return f"is {dtype}; verified in {rule['dtype']}"
    if value.dim() != len(rule["sizes"]):
        return f"has {value.dim()} dimensions; verified with {len(rule['sizes'])}"
    for dimension, (size, (low, high, step)) in enumerate(zip(value.shape, rule["sizes"], strict=True)):
        if not low <= size <= high or size % step:
            multiples = f" in multiples of {step}" if step > 1 else ""
            return f"has size {size} in dimension {dimension}; verified from {low} to {high}{multiples}"
    if value.numel() > rule["elements"]:
        return f"has {value.numel()} elements; verified up to {rule['elements']}"
    if [list(value.shape), list(value.stride())] not in rule["strided"] and not any(
        lies_in(value, order) for order in rule["orders"]
    ):
        return f"has strides {tuple(value.stride())}, a layout that was not verified"
    return "" if value.data_ptr() % ALIGNED_BYTES == 0 else f"does not begin at a multiple of {ALIGNED_BYTES} bytes"


def nearest(inputs: Sequence[Any], cases: Sequence[Rule]) -> Rule:
    """The timed case whose sizes are closest, by the sum of absolute logarithms of ratios of sizes."""

    def distance(case: Rule) -> float:
        total = 0.0
        for value, shape in zip(inputs, case["shapes"], strict=True):
            if isinstance(value, torch.Tensor):
                pairs = zip(value.shape, shape, strict=True)
                total += sum(abs(math.log((got + 1) / (size + 1))) for got, size in pairs)
        return total

    return min(cases, key=distance)
