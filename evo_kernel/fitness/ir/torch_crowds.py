"""Updates of one address by torch operations that add up at indices, which L2 does one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.fitness.plan.launch_plan import Aten
from evo_kernel.fitness.plan.torch_operations import arguments_of

_WARP = 32
_UPDATES = frozenset({"index_add", "index_reduce", "scatter_add", "scatter_reduce", "scatter", "put"})
"""Whose arguments are the target, an axis (but for `put`), indices and what is added; not those that sort indices
first."""


def of_torch(node: Aten, tensors: Sequence[torch.Tensor]) -> float:
    """Updates of the address that most are of, by a torch operation on these tensors in place of its views.

    One by a warp that updates a single integer, as kernels have it.
    """
    _, name, overload = node.op.split(".")
    name = name.rstrip("_")
    if name not in _UPDATES or (name == "scatter" and "reduce" not in overload):
        return 0.0
    args, named = arguments_of(node, tensors, "cpu")
    names = ("self", "index", "source", "accumulate") if name == "put" else ("self", "dim", "index")
    given = {"dim": 0, **dict(zip(names, args, strict=False)), **named}
    target, axis, index = given["self"], given["dim"], given["index"].long()
    if name == "put":
        if not given.get("accumulate"):
            return 0.0
        target = target.reshape(-1)
        index = torch.where(index < 0, index + len(target), index)
    size = target.shape[axis] if target.dim() else 1
    if not index.numel() or index.min() < 0 or index.max() >= size:  # torch itself refuses others
        return 0.0
    places = index.reshape(-1)
    if name.startswith("scatter") and target.dim():  # of index_add one element of each row is told
        every = torch.arange(target.numel()).view(target.shape)
        axis %= target.dim()
        some = every[tuple(slice(None if dim == axis else size) for dim, size in enumerate(index.shape))]
        places = some.gather(axis, index).reshape(-1)
    if not target.is_floating_point():
        warps = torch.nn.functional.pad(places, (0, -places.numel() % _WARP), value=int(places[-1])).reshape(-1, _WARP)
        one = (warps == warps[:, :1]).all(1)
        places = torch.cat([warps[~one].reshape(-1), warps[one, 0]])
    return float(torch.bincount(places).max())
