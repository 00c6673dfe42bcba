"""Indexing of fake CUDA tensors on a CPU build of torch.

torch's own `tensor[...]` needs a CUDA device guard before it dispatches, which a CPU build lacks. These functions call
the operations that it dispatches to.
"""

from __future__ import annotations

from typing import Any

import torch


def get_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """`tensor[index]` for integers, slices, None, Ellipsis and index tensors."""
    parts = list(index) if isinstance(index, tuple) else [index]
    consumed = sum(_width(part) for part in parts)
    if Ellipsis not in [part for part in parts if not isinstance(part, torch.Tensor)]:
        parts.append(Ellipsis)
    view, dim = tensor, 0
    picked: list[torch.Tensor | None] = []
    for part in parts:
        if part is None:
            view = view.unsqueeze(dim)
            picked.append(None)
            dim += 1
        elif part is Ellipsis:
            skipped = tensor.dim() - consumed
            picked += [None] * skipped
            dim += skipped
        elif isinstance(part, slice):
            view = _slice(view, dim, part)
            picked.append(None)
            dim += 1
        elif isinstance(part, torch.Tensor):
            picked.append(part)
            dim += _width(part)
        elif isinstance(part, (list, range)):
            picked.append(torch.tensor(list(part), device=tensor.device))
            dim += 1
        else:
            view = torch.ops.aten.select.int(view, dim, int(part))
    if any(part is not None for part in picked):
        return torch.ops.aten.index.Tensor(view, picked)
    return view if view is not tensor else torch.ops.aten.alias.default(tensor)


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value` for basic indexing: a fill or a copy of the indexed view."""
    target = get_item(tensor, index)
    if isinstance(value, torch.Tensor):
        torch.ops.aten.copy_.default(target, value)
    else:
        torch.ops.aten.fill_.Scalar(target, value)


def _width(part: Any) -> int:
    """How many dimensions of the tensor one part of an index consumes."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, torch.Tensor) and part.dtype is torch.bool:
        return part.dim()
    return 1


def _slice(view: torch.Tensor, dim: int, part: slice) -> torch.Tensor:
    start, stop, step = part.indices(view.shape[dim])
    if step < 0:
        raise ValueError("step must be greater than zero")
    if (start, stop, step) == (0, view.shape[dim], 1):
        return view
    return torch.ops.aten.slice.Tensor(view, dim, start, max(start, stop), step)
