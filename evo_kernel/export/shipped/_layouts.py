"""Layouts of dense tensors: the order of their dimensions in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
