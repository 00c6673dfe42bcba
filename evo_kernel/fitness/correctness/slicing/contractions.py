"""Slicing rules for matrix products, convolutions, attention and group norms."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Index, Region
from evo_kernel.fitness.correctness.slicing.rules import Known, SliceStep, aligned, rule, widened
from evo_kernel.fitness.correctness.slicing.tracing import TraceValue


@rule("mm bmm addmm baddbmm")
def _product(value: TraceValue, region: Region, known: Known) -> SliceStep:
    """(…, m, k) times (…, k, n), plus optional addends."""
    *added, a, b = value.node.values
    *batch, rows, columns = region
    depth = a.shape[-1]
    needs = [
        *((v, aligned(v, region)) for v in added),
        (a, (*batch, rows, range(depth))),
        (b, (*batch, range(depth), columns)),
    ]
    return SliceStep(needs, lambda *pieces: value.node.call(pieces), 2.0 * regions.count(region) * depth)


@rule("mv addmv")
def _by_vector(value: TraceValue, region: Region, known: Known) -> SliceStep:
    *added, matrix, vector = value.node.values
    whole = range(matrix.shape[1])
    needs = [*((v, aligned(v, region)) for v in added), (matrix, (region[0], whole)), (vector, (whole,))]
    return SliceStep(needs, lambda *pieces: value.node.call(pieces), 2.0 * len(region[0]) * len(whole))


@rule("convolution")
def _convolution(value: TraceValue, region: Region, known: Known) -> SliceStep:
    """The requested images and channels; of positions, the window that contains all requested ones."""
    arguments = value.node.arguments
    x, weight = value.node.values[:2]
    if arguments["transposed"] or arguments["groups"] != 1:
        return _of_pictures(value, region)
    batch, channels, *places = region
    windows = [
        _window(
            index, x.shape[2 + d], weight.shape[2 + d], *(arguments[n][d] for n in ("stride", "padding", "dilation"))
        )
        for d, index in enumerate(places)
    ]
    pads = [amount for _, pad, _ in reversed(windows) for amount in pad]
    inside = (range(len(batch)), range(len(channels)), *(local for *_, local in windows))

    def compute(piece: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        padded = F.pad(piece, pads) if any(pads) else piece
        still = [0] * len(places)
        result = torch.convolution(
            padded, weights, bias, arguments["stride"], still, arguments["dilation"], False, still, 1
        )
        return regions.take(result, inside)

    area = math.prod(int(local.max()) + 1 for local in map(regions.positions, inside[2:]))
    needs = [(x, (batch, range(x.shape[1]), *(window for window, *_ in windows)))]
    needs += [(weight, (channels, *regions.everything(weight.shape[1:])))]
    needs += [(bias, (channels,)) for bias in value.node.values[2:]]
    flops = 2.0 * len(batch) * len(channels) * area * math.prod(weight.shape[1:])
    return SliceStep(needs, compute, flops)


def _window(
    index: Index, size: int, taps: int, stride: int, padding: int, dilation: int
) -> tuple[range, tuple[int, int], Index]:
    """The span of an input that these outputs depend on, the padding before and after it, and the outputs' positions in
    it."""
    outputs = regions.positions(index)
    low, high = int(outputs.min()), int(outputs.max())
    start, end = low * stride - padding, high * stride - padding + dilation * (taps - 1) + 1
    span = range(min(max(start, 0), size), max(min(end, size), min(max(start, 0), size)))
    before = min(max(0, -start), end - start)
    return span, (before, end - start - len(span) - before), regions.index_of(outputs - low)


def _of_pictures(value: TraceValue, region: Region) -> SliceStep:
    if (wider := widened(value, region, range(1, len(region)))) is not None:
        return wider
    x, *others = value.node.values
    needs = [(x, (region[0], *regions.everything(x.shape[1:])))] + [(v, regions.everything(v.shape)) for v in others]
    terms = math.prod(others[0].shape[1:])
    spots = max(regions.count(region), len(region[0]) * math.prod(x.shape[1:]))
    return SliceStep(needs, lambda *pieces: value.node.call(pieces), 2.0 * spots * terms)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention(value: TraceValue, region: Region, known: Known) -> SliceStep:
    """Rows of queries with all keys; with causal attention, keys up to the last of these rows."""
    q, k, v, *masks = value.node.values
    arguments = value.node.arguments
    shared = q.shape[:2] == k.shape[:2]
    dims = ([3] if shared else [1, 3]) if value.number == 0 else range(len(region))
    if (wider := widened(value, region, dims)) is not None:
        return wider
    if value.number:
        needs = [(v, regions.everything(v.shape)) for v in value.node.values]
        return SliceStep(needs, lambda *pieces: value.node.call(pieces)[value.number])
    batch, heads, rows, _ = region
    of_keys = heads if shared else range(k.shape[1])
    is_causal = arguments["is_causal"]
    places = regions.positions(rows)
    keys = range(min(k.shape[2], int(places.max()) + 1)) if is_causal else range(k.shape[2])
    wide = range(q.shape[3])
    needs = [
        (q, (batch, heads, rows, wide)),
        (k, (batch, of_keys, keys, wide)),
        (v, (batch, of_keys, keys, range(v.shape[3]))),
    ]
    needs += [(mask, aligned(mask, (batch, heads, rows, keys))) for mask in masks]
    hidden = regions.positions(keys) > places[:, None]

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        allowed = list(masks)
        if is_causal:
            allowed.append(torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, -math.inf))
        mask: Any = sum(allowed) if allowed else None
        return value.node.func(q, k, v, 0.0, False, attn_mask=mask, scale=arguments["scale"])[0]

    return SliceStep(needs, compute, 2.0 * len(batch) * len(heads) * len(rows) * len(keys) * (q.shape[3] + v.shape[3]))


@rule("native_group_norm")
def _group_norm(value: TraceValue, region: Region, known: Known) -> SliceStep:
    if (wider := widened(value, region, range(1, len(region)))) is not None:
        return wider
    x, *others = value.node.values
    given = value.node.arguments

    def compute(piece: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        left = iter(others)
        weight, bias = (next(left) if given[name] is not None else None for name in ("weight", "bias"))
        sizes = (len(region[0]), given["C"], given["HxW"], given["group"], given["eps"])
        return torch.ops.aten.native_group_norm(piece.contiguous(), weight, bias, *sizes)[value.number]

    needs = [(x, (region[0], *regions.everything(x.shape[1:])))] + [(v, regions.everything(v.shape)) for v in others]
    return SliceStep(needs, compute)
