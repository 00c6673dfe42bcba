"""Slicing rules: the argument regions that a region of a result depends on, and how to compute it from them.

contractions.py, gathers.py and views.py have rules of single operations. Most others are a map of dimensions along
which an operation treats every element alike. Operations without a rule need all of their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Index, Region
from evo_kernel.fitness.correctness.slicing.tracing import TraceValue


@dataclass(frozen=True)
class SliceStep:
    """`compute` makes the region from the pieces that it needs, without modifying them."""

    needs: Sequence[tuple[TraceValue, Region]]
    compute: Callable[..., torch.Tensor]
    flops: float = 0.0  # of contractions; 0 if the cost is proportional to the elements


Known = Callable[[TraceValue, Region], torch.Tensor]
"""Returns a region of a value that depends on integer inputs only."""
Rule = Callable[[TraceValue, Region, Known], SliceStep]
RULES: dict[str, Rule] = {}
"""By the operation's name."""


def rule(names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


def widened(value: TraceValue, region: Region, dims: Sequence[int]) -> SliceStep | None:
    """The region as part of one that is whole along these dimensions; None if it already is.

    Other parts of the same value then share its computation.
    """
    if all(regions.is_whole(region[dim], value.shape[dim]) for dim in dims):
        return None
    wide = tuple(range(value.shape[d]) if d in dims else index for d, index in enumerate(region))
    inside = tuple(index if d in dims else range(len(index)) for d, index in enumerate(region))
    return SliceStep([(value, wide)], lambda piece: regions.take(piece, inside))


def aligned(value: TraceValue, region: Sequence[Index]) -> Region:
    """The region of an argument that is broadcast to a result of which `region` is wanted."""
    own = region[len(region) - len(value.shape) :]
    return tuple(range(1) if size == 1 else index for size, index in zip(value.shape, own, strict=True))


def replaced(region: Sequence[Index], dim: int, index: Index) -> Region:
    return (*region[:dim], index, *region[dim + 1 :])


def put(target: torch.Tensor, places: Region, piece: torch.Tensor) -> None:
    """Write a piece to these positions."""
    if all(isinstance(index, range) for index in places):
        regions.take(target, places).copy_(piece)
        return
    rank = len(places)
    at = [regions.positions(index).view([-1 if k == d else 1 for k in range(rank)]) for d, index in enumerate(places)]
    target[tuple(at)] = piece


def normal(dim: int, rank: int) -> int:
    return dim % max(1, rank)


def listed(dims: Any, rank: int) -> list[int]:
    """Dimensions as an operation takes them: a number, several, or None for all."""
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return list(range(rank))
    return [normal(int(dim), rank) for dim in (dims if isinstance(dims, Sequence) else [dims])]


Map = Mapping[int, int]
"""Dimension of the result → dimension of an argument."""

_ALONG_NAMES = """
    sum mean prod amax amin any all argmax argmin logsumexp var std var_mean std_mean linalg_vector_norm norm nansum
    max min median nanmedian mode kthvalue count_nonzero topk sort cumsum cumprod cummax cummin logcumsumexp flip roll
    _softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data glu aminmax
"""
_ALONG = frozenset(_ALONG_NAMES.split())
"""Operations along the dimensions named by their `dim` or `dims`."""
_TRAILING = {
    2: """linalg_inv_ex linalg_cholesky_ex cholesky _linalg_det linalg_lu _linalg_svd _linalg_eigh linalg_qr
        _linalg_slogdet linalg_solve_triangular triangular_solve _linalg_solve_ex linalg_matrix_exp linalg_lu_factor_ex
        linalg_lu_solve cholesky_solve cholesky_inverse max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d
        adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d reflection_pad2d
        replication_pad2d""",
    3: """max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d upsample_nearest3d
        upsample_trilinear3d reflection_pad3d replication_pad3d pixel_shuffle pixel_unshuffle""",
    1: "reflection_pad1d replication_pad1d upsample_nearest1d upsample_linear1d",
}  # fmt: skip
_LEADING = {name: count for count, names in _TRAILING.items() for name in names.split()}
"""Number of last dimensions that an operation processes together; it treats the dimensions before them alike."""
_ALIGNED_NAMES = "_to_copy clone detach alias lift_fresh lift_fresh_copy copy fill where masked_fill"
_ALIGNED = frozenset(_ALIGNED_NAMES.split())
"""Elementwise operations that PyTorch does not mark as such."""
_NORMS = frozenset(["native_layer_norm", "_fused_rms_norm"])


def is_known(func: Any) -> bool:
    """Whether there is a rule for an operation."""
    name = func._schema.name.removeprefix("aten::")
    return name in RULES or name in _ALONG or name in _LEADING or name in _NORMS or _is_by_element(func)


def step_for(value: TraceValue, region: Region, known: Known) -> SliceStep:
    """The step that computes a region of an operation's result."""
    name = value.node.name
    if name in RULES:
        return RULES[name](value, region, known)
    return mapped(value, region, _maps(value))


def mapped(value: TraceValue, region: Region, maps: Sequence[Map]) -> SliceStep:
    """A region of an operation that treats all positions along the mapped dimensions alike."""
    reached = {dim for each in maps for dim in each}
    if (wider := widened(value, region, [dim for dim in range(len(region)) if dim not in reached])) is not None:
        return wider
    needs = []
    for argument, each in zip(value.node.values, maps, strict=True):
        wanted = list(regions.everything(argument.shape))
        for dim, own in each.items():
            wanted[own] = range(1) if argument.shape[own] == 1 else region[dim]
        needs.append((argument, tuple(wanted)))
    return SliceStep(needs, lambda *pieces: result_of(value, value.node.call(pieces)), _flops(value))


def result_of(value: TraceValue, results: Any) -> torch.Tensor:
    return results[value.number] if isinstance(results, (tuple, list)) else results


def _maps(value: TraceValue) -> list[Map]:
    """One map per tensor argument."""
    node, rank = value.node, len(value.shape)
    if not node.values:
        return []
    first, *others = node.values
    if _is_by_element(node.func):
        offsets = [rank - len(argument.shape) for argument in node.values]
        return [{d: d - offset for d in range(offset, rank)} for offset in offsets]
    if node.name in _ALONG:
        dims = node.arguments.get("dim", node.arguments.get("dims"))
        of_first = _outside(value, first, listed(dims, len(first.shape)))
    elif node.name in _NORMS:
        of_first = _outside(value, first, range(len(first.shape))[-len(node.arguments["normalized_shape"]) :])
    elif node.name in _LEADING:
        leading = len(first.shape) - _LEADING[node.name]
        same = [leading > 0 and v.shape[:leading] == first.shape[:leading] for v in node.values]
        return [{d: d for d in range(leading)} if all(same) else {} for _ in node.values]
    else:
        of_first = {}
    return [of_first, *(of_first if other.shape == first.shape else {} for other in others)]


def _outside(value: TraceValue, argument: TraceValue, dims: Sequence[int]) -> Map:
    """All dimensions except these: at the same place if the result keeps them all, else shifted."""
    left = [dim for dim in range(len(argument.shape)) if dim not in dims]
    if len(value.shape) == len(argument.shape):
        return {dim: dim for dim in left}
    return dict(enumerate(left)) if len(value.shape) == len(left) else {}


def _is_by_element(func: Any) -> bool:
    return bool(torch.Tag.pointwise in func.tags) or func._schema.name.removeprefix("aten::") in _ALIGNED


def _flops(value: TraceValue) -> float:
    """Flops of operations that are cubic in their last dimension, up to a constant."""
    if "linalg" not in value.node.name and "cholesky" not in value.node.name:
        return 0.0
    shape = value.node.values[0].shape
    return 4.0 * math.prod(shape) * max(shape, default=1)
