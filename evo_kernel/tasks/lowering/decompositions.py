"""Which aten operations are broken into simpler ones before lowering, and which have a kernel worth starting from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import core_aten_decompositions, get_decompositions

from evo_kernel.tasks.lowering.networks import Recurrent

aten = torch.ops.aten

KEPT = (
    aten.silu, aten.gelu, aten.relu, aten.leaky_relu, aten.elu, aten.softplus, aten.hardtanh, aten.masked_fill,
    aten.addmm, aten.baddbmm, aten._softmax, aten._log_softmax, aten.index_select, aten.embedding, aten.square,
    aten.native_layer_norm, aten.clamp_min, aten.clamp_max, aten.expm1, aten.index_add, aten.max, aten.min, aten.rsub,
)  # fmt: skip

BROKEN = (
    aten.native_batch_norm, aten._native_batch_norm_legit, aten.mish, aten._native_batch_norm_legit_no_training,
    aten._native_batch_norm_legit.no_stats, aten.logsumexp, aten.linalg_vector_norm, aten.addcdiv, aten.addcmul,
    aten.log_sigmoid_forward, aten.lerp, aten.hardswish, aten.hardsigmoid, aten.hardtanh, aten.threshold, aten.celu,
    aten.selu, aten.glu, aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss, aten.binary_cross_entropy,
    aten.soft_margin_loss, aten.binary_cross_entropy_with_logits, aten.nll_loss_forward, aten.nll_loss2d_forward,
    aten.kl_div, aten.triu, aten.tril, aten.nan_to_num, aten.unfold_copy, aten.upsample_nearest2d,
    aten.upsample_bilinear2d, aten.dot, aten.pixel_shuffle, aten.pixel_unshuffle, aten.mv, aten.trace, aten.xlogy,
    aten.logaddexp, aten.softshrink, aten.hardshrink, aten.one_hot, aten.norm, aten.dist, aten.cdist,
    aten.pairwise_distance, aten.logaddexp2, aten.reflection_pad1d, aten.reflection_pad2d, aten.replication_pad1d,
    aten.replication_pad2d, aten.roll, aten.diag_embed, aten.diagonal_copy, aten.repeat, aten.repeat_interleave,
    aten.stack, aten.addmv, aten.addr, aten.affine_grid_generator, aten.eye, aten.linspace, aten.logspace,
    aten.channel_shuffle, aten.cosh, aten.sinc, aten.split, aten.unbind, aten.chunk, aten.special_entr,
    aten.heaviside, aten.frac, aten.polar, aten.deg2rad, aten.rad2deg, aten._fused_rms_norm, aten.nansum,
    aten.split_with_sizes, aten.narrow_copy, aten.gelu_backward, aten.silu_backward, aten.sigmoid_backward,
    aten.tanh_backward, aten._softmax_backward_data, aten._log_softmax_backward_data, aten.threshold_backward,
    aten.native_layer_norm_backward, aten.mse_loss_backward, aten.embedding_dense_backward, aten.native_dropout,
    aten._prelu_kernel, aten.rrelu,
)  # fmt: skip


def _var_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    dim = list(range(x.dim())) if dim is None or dim == [] else dim
    return aten.var.correction(x, dim, correction=correction, keepdim=keepdim), aten.mean.dim(x, dim, keepdim)


def _std_mean(x: torch.Tensor, dim: Any = None, **options: Any) -> Any:
    var, mean = _var_mean(x, dim, **options)
    return aten.sqrt(var), mean


def _group_norm(
    x: torch.Tensor, weight: Any, bias: Any, n: Any, channels: Any, inner: Any, groups: int, eps: float
) -> Any:
    """Normalise each group as one row, as layer_norm does, then scale the channels."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    rows = wide.reshape(n, groups, (channels // groups) * inner)
    var, mean = _var_mean(rows, [2], correction=0, keepdim=True)
    scale = torch.rsqrt(var + eps)
    result = ((rows - mean) * scale).reshape(x.shape)
    column = (1, channels, *([1] * (x.dim() - 2)))
    result = result if weight is None else result * weight.reshape(column)
    result = result if bias is None else result + bias.reshape(column)
    return result.to(x.dtype), mean.reshape(n, groups).to(x.dtype), scale.reshape(n, groups).to(x.dtype)


OWN: dict[Any, Callable[..., Any]] = {
    aten.var_mean.correction: _var_mean,
    aten.std.correction: lambda *given, **options: aten.sqrt(aten.var.correction(*given, **options)),
    aten.std_mean.correction: _std_mean,
    aten.native_group_norm.default: _group_norm,
}


@cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Overload → decomposition, for `make_fx`."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    for operation in BROKEN:
        try:
            table |= get_decompositions([operation])
        except RuntimeError:  # this version of torch has none: the operation is then named as not lowered
            continue
    kept = {getattr(packet, name) for packet in KEPT for name in packet.overloads()}
    return {overload: function for overload, function in table.items() if overload not in kept} | OWN


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(scale q kᵀ + mask) v, in float32 for half types. Shapes [..., t, d], [..., s, d], [..., s, e]."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale  # not math.sqrt, which would fix the size
    q, k, v = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (query, key, value))
    scores = (q @ k.transpose(-2, -1)) * factor
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        allowed = torch.arange(key.shape[-2], device=query.device) <= rows
        scores = scores.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None:
        keep = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if keep else scores + attn_mask
    return (torch.softmax(scores, dim=-1) @ v).to(query.dtype)


class Respelled(Recurrent):
    """While it is active, functions that PyTorch expands clumsily run respelled.

    `scaled_dot_product_attention` expands into some twenty operations that guard against rows without any key; spelled
    plainly it is two products, a mask and a softmax. Recurrent networks are spelled by the layer (networks.py).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention and (kwargs or {}).get("dropout_p", 0.0) == 0.0:
            return attention(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)
