"""Which aten operations are broken into simpler ones before lowering; attention and recurrent networks respelled.

Recurrent networks are traced as one operation a layer (`evo_kernel::recurrence`), not a dozen a step and direction:
PyTorch would expand `nn.GRU` into tens of thousands of operations, and `nn.LSTM` on a CPU into a call that no GPU
knows.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.overrides import TorchFunctionMode

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Kind of a network → gates of a cell, by the names of torch's functions."""
CELLS = {f"{kind}_cell" for kind in GATES}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Those whose matrix products have kernels."""


SCHEMA = "(str kind, Tensor gates, Tensor hidden, Tensor cell, Tensor weight, Tensor bias) -> (Tensor, Tensor)"


@torch.library.custom_op("evo_kernel::recurrence", mutates_args=(), schema=SCHEMA)
def recurrence(
    kind: str,
    gates: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer in d directions: hidden states of all steps [t, d, b, h] and the last cell states [d, b, h].

    `gates` [t, d, b, gates * h] is the inputs' share with its bias, in the order in which each direction reads them;
    `weight` [d, gates * h, h] and `bias` [d, gates * h] make the hidden state's. `cell` is what an LSTM starts from;
    other kinds return it as it is.
    """
    made = torch.empty((*gates.shape[:3], hidden.shape[2]), dtype=hidden.dtype, device=hidden.device)
    cell = cell.clone()
    for step in range(len(gates)):
        share = hidden @ weight.transpose(1, 2) + bias.unsqueeze(1)
        hidden, cell = _step(kind, gates[step], share, hidden, cell)
        made[step] = hidden
    return made, cell.contiguous()


def _step(kind: str, x: torch.Tensor, y: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[Any, Any]:
    """Next hidden and cell state, from the gates' shares of the inputs (x) and of the hidden state (y)."""
    if kind == "lstm":
        i, f, g, o = (x + y).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    if kind == "gru":
        (r, z, n), (r_h, z_h, n_h) = x.chunk(3, -1), y.chunk(3, -1)
        n = (n + (r + r_h).sigmoid() * n_h).tanh()
        z = (z + z_h).sigmoid()
        return (1 - z) * n + z * hidden, cell
    return ((x + y).tanh() if kind == "rnn_tanh" else (x + y).relu()), cell


@recurrence.register_fake
def _(kind: str, gates: Any, hidden: Any, cell: Any, weight: Any, bias: Any) -> Any:
    return hidden.new_empty((*gates.shape[:3], hidden.shape[2])), cell.new_empty(cell.shape)


class Recurrent(TorchFunctionMode):
    """While it is active, recurrent networks are spelled by the layer."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if respelled(func, args, kwargs):
            return network(func.__name__, *args)
        if getattr(func, "__name__", "") in CELLS and not kwargs:
            return one_step(func.__name__.removesuffix("_cell"), *args)
        return func(*args, **(kwargs or {}))


def respelled(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None) -> bool:
    """Whether this is a call of a recurrent network that can be spelled by the layer.

    Left to PyTorch are packed sequences, projections, dropout, dtypes without a matrix product, and gradients.
    """
    if not isinstance(func, types.BuiltinFunctionType) or func.__name__ not in GATES or kwargs or len(args) != 9:
        return False
    x, state, params, biased, layers, dropout, train, twice, _ = args
    if isinstance(state, torch.Tensor) == (func.__name__ == "lstm") or not isinstance(params, (list, tuple)):
        return False
    tensors = [x, *(state if isinstance(state, (list, tuple)) else [state]), *params]
    return (
        len(params) == layers * (2 if twice else 1) * (4 if biased else 2)
        and not (dropout and train and layers > 1)
        and x.dtype in DTYPES
        and all(tensor.dtype == x.dtype for tensor in tensors)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    )


def network(
    kind: str, x: torch.Tensor, state: Any, params: Sequence[torch.Tensor], biased: bool, layers: int,
    dropout: float, train: bool, twice: bool, batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """What torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu return, by the layer. They take these arguments."""
    hidden, cell = state if kind == "lstm" else (state, state)
    torch._check(hidden.shape[1] == x.shape[0 if batch_first else 1])
    per, ways, last, cells = (4 if biased else 2), (2 if twice else 1), [], []
    for layer in range(layers):
        gates, weights, shifts = [], [], []
        for way in range(ways):
            place = per * (ways * layer + way)
            w_x, w_h, *biases = params[place : place + per]
            b_x, b_h = biases if biased else (None, torch.zeros_like(w_h[:, 0]))
            torch._check(w_h.shape[0] == GATES[kind] * hidden.shape[2])
            share = F.linear(x, w_x, b_x)
            share = share.transpose(0, 1) if batch_first and layer == 0 else share
            gates.append(share.flip(0) if way else share)
            weights.append(w_h)
            shifts.append(b_h)
        both = [torch.stack(parts, dim) if twice else parts[0].unsqueeze(dim)
                for parts, dim in ((gates, 1), (weights, 0), (shifts, 0))]  # fmt: skip
        states = slice(ways * layer, ways * (layer + 1))
        made, ended = recurrence(kind, both[0], hidden[states], cell[states], *both[1:])
        last.append(made[-1])
        cells.append(ended)
        x = torch.cat([made[:, 0], made[:, 1].flip(0)], -1) if twice else made[:, 0]
    x = x.transpose(0, 1) if batch_first else x
    return (x, torch.cat(last), torch.cat(cells)) if kind == "lstm" else (x, torch.cat(last))


def one_step(
    kind: str, x: torch.Tensor, state: Any, w_x: torch.Tensor, w_h: torch.Tensor,
    b_x: torch.Tensor | None = None, b_h: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """What torch.lstm_cell and its like return, whose own steps write into parts of one tensor."""
    hidden, cell = state if kind == "lstm" else (state, state)
    made = _step(kind, F.linear(x, w_x, b_x), F.linear(hidden, w_h, b_h), hidden, cell)
    return made if kind == "lstm" else made[0]


aten = torch.ops.aten

KEPT = (
    aten.silu, aten.gelu, aten.relu, aten.leaky_relu, aten.elu, aten.softplus, aten.hardtanh, aten.masked_fill,
    aten.addmm, aten.baddbmm, aten._softmax, aten._log_softmax, aten.index_select, aten.embedding, aten.square,
    aten.native_layer_norm, aten.clamp_min, aten.clamp_max, aten.expm1, aten.index_add, aten.max, aten.min, aten.rsub,
    aten.triu, aten.tril,
)  # fmt: skip

BROKEN = (
    aten.native_batch_norm, aten._native_batch_norm_legit, aten.mish, aten._native_batch_norm_legit_no_training,
    aten._native_batch_norm_legit.no_stats, aten.logsumexp, aten.linalg_vector_norm, aten.addcdiv, aten.addcmul,
    aten.log_sigmoid_forward, aten.lerp, aten.hardswish, aten.hardsigmoid, aten.hardtanh, aten.threshold, aten.celu,
    aten.selu, aten.glu, aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss, aten.binary_cross_entropy,
    aten.soft_margin_loss, aten.binary_cross_entropy_with_logits, aten.nll_loss_forward, aten.nll_loss2d_forward,
    aten.kl_div, aten.nan_to_num, aten.unfold_copy, aten.upsample_nearest2d,
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


def _attention_for_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    *, attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What nn.MultiheadAttention calls where it is traced, out of `Respelled`'s sight. Its second result is for a
    gradient, which a graph has no use for."""
    made = attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return made, query.new_empty(query.shape[:-1], dtype=torch.float32)


ATTENTION: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention_for_cpu
}
OWN: dict[Any, Callable[..., Any]] = {
    aten.var_mean.correction: _var_mean,
    aten.std.correction: lambda *given, **options: aten.sqrt(aten.var.correction(*given, **options)),
    aten.std_mean.correction: _std_mean,
    aten.native_group_norm.default: _group_norm,
} | ATTENTION


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


class Respelled(Recurrent):
    """While it is active, functions that PyTorch expands clumsily run respelled.

    `scaled_dot_product_attention` expands into some twenty operations that guard against rows without any key; spelled
    plainly it is two products, a mask and a softmax. Recurrent networks are spelled by the layer.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention and (kwargs or {}).get("dropout_p", 0.0) == 0.0:
            return attention(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)
