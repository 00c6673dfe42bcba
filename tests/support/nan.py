"""Inputs that hold NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def with_nan(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with two NaN in every floating tensor, not at the same places, nor in one row: topk orders those as it
    likes."""
    spoilt = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    for number, value in enumerate(spoilt):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            for place in (3, 3 + value.numel() // 2):
                at = torch.tensor((7 * number + place) % value.numel())
                value[torch.unravel_index(at, value.shape)] = float("nan")
    return spoilt
