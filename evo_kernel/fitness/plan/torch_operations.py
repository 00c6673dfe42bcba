"""Decides which torch operations a plan may hold: those that only compute from their argument tensors."""

from __future__ import annotations

from typing import Any

import torch

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
_UNSAFE = frozenset({
    "from_file", "set_", "resize", "resize_", "resize_as", "resize_as_", "_resize_output", "_resize_output_", "_print",
    "_cudnn_init_dropout_state", "as_strided_copy", "as_strided_scatter", "as_strided_scatter_",
})  # fmt: skip
"""Operations that access files, or memory of a storage outside the given views."""


def makes_view(operation: Any) -> bool:
    """Whether an operation (an overload) only returns views, which plans represent without a node."""
    if torch.Tag.inplace_view in operation.tags:
        return operation._schema.name.split("::")[-1] not in _UNSAFE
    returns = operation._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def fault_of(op: str) -> str:
    """Why plans may not hold `aten.NAME.OVERLOAD`; empty if they may."""
    _, name, overload = op.split(".")
    operation = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if name.startswith("__") or not isinstance(operation, torch._ops.OpOverload):
        return f"{op} is not an operation of torch {torch.__version__}"
    if name in _UNSAFE:
        return f"{op} accesses memory or files beyond its argument tensors"
    if name in ALLOCATIONS or makes_view(operation):
        return f"{op} computes nothing: plans represent it by buffers and views"
    return ""
