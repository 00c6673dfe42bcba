"""Sums of products without the products: a reference's graph is rewritten before kernels are written for it.

A sum or mean commutes with what is linear: that of a product's rows or columns is a product with a sum, that over a
convolution's channels needs one filter, and that over its positions only sums of its input. Each identity holds for
real numbers; in floating point, sums come in another order. Only float32 and float64 are rewritten: a sum would be
rounded to a half type before it is multiplied.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_MEANS = (aten.mean.dim, aten.mean.default)
_SUMS = (aten.sum.dim_IntList, aten.sum.default, *_MEANS)
_SCALED = (aten.mul.Tensor, aten.div.Tensor)
_ADDED = (aten.add.Tensor, aten.sub.Tensor)
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)


def simplified(graph: fx.GraphModule) -> Callable[..., Any] | None:
    """A function of the graph's inputs with fewer products, to be traced again; None where nothing is gained."""
    sums = [
        node
        for node in graph.graph.nodes
        if node.target in _SUMS and not node.kwargs and _reaches_product(node.args[0])
    ]
    return _WithoutProducts(graph, sums).run if sums else None


def _reaches_product(node: Any) -> bool:
    """Whether what is summed is linear in a product that nothing else needs."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return False
    if node.target in _PRODUCTS:
        return node.meta["val"].dtype in (torch.float32, torch.float64)
    return node.target in (*_SCALED, *_ADDED, *_VIEWS, aten.neg.default) and any(map(_reaches_product, node.args))


class _WithoutProducts(fx.Interpreter):
    """Runs a graph; chosen sums are computed from what their products multiply."""

    def __init__(self, graph: fx.GraphModule, sums: Sequence[fx.Node]) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self._sums = frozenset(sums)

    def run_node(self, n: Any) -> Any:
        if n not in self._sums:
            return super().run_node(n)
        shape = self._shape(n.args[0])
        named, keeps = (*n.args[1:], None, False)[:2] if len(n.args) < 3 else n.args[1:]
        dims = sorted({dim % len(shape) for dim in named or range(len(shape))})
        result = self._sum(n.args[0], dims)
        if n.target in _MEANS:
            result = result / math.prod(shape[dim] for dim in dims)
        return result if keeps else result.squeeze(dims)

    def _sum(self, node: Any, dims: Sequence[int]) -> torch.Tensor:
        """The sum of a node's value over `dims`, which stay as sizes of one."""
        value, shape = self.env[node], self._shape(node)
        if not dims:
            return value
        if not _reaches_product(node):
            return value.sum(dims, keepdim=True)
        if node.target in _SCALED:
            left, right = node.args
            if self._is_constant(right, len(shape), dims):
                return node.target(self._spread(left, shape, dims), self._value(right))
            if node.target is aten.mul.Tensor and self._is_constant(left, len(shape), dims):
                return self._spread(right, shape, dims) * self._value(left)
            return value.sum(dims, keepdim=True)
        if node.target in _ADDED:
            left, right = (self._spread(part, shape, dims) for part in node.args)
            return node.target(left, right, **node.kwargs)
        if node.target is aten.neg.default:
            return -self._sum(node.args[0], dims)
        if node.target in _VIEWS:
            before = self._shape(node.args[0])
            if list(dims) == [len(shape) - 1] and before[-1] == shape[-1]:
                return self._sum(node.args[0], [len(before) - 1]).view(*shape[:-1], 1)
            return value.sum(dims, keepdim=True)
        if node.target is aten.convolution.default:
            return self._sum_of_convolution(node, dims)
        *bias, left, right = node.args
        rows = [dim for dim in dims if dim == len(shape) - 2]
        columns = [dim for dim in dims if dim == len(shape) - 1]
        if node.kwargs or len(rows) + len(columns) < len(dims):
            return value.sum(dims, keepdim=True)
        left, right = self._sum(left, rows), self._sum(right, columns)
        parts = left * right.mT if columns else left.mT * right  # times a vector: many programs sum a row each
        product = parts.sum(-1 if columns else -2, keepdim=True)
        return product + self._spread(bias[0], shape, dims) if bias else product

    def _shape(self, node: Any) -> tuple[Any, ...]:
        """The shape of a node's value, from what it is computed of: a product may be gone."""
        if not _reaches_product(node):
            return tuple(self.env[node].shape)
        if node.target in _VIEWS:
            return tuple(self._value(size) for size in node.args[1])
        if node.target is aten.convolution.default:
            x, weight, _, stride, padding, dilation, transposed, out_padding, groups = node.args
            (batch, _, *sizes), (first, second, *taps) = self.env[x].shape, self.env[weight].shape
            spans = [far * (tap - 1) + 1 - 2 * pad for far, tap, pad in zip(dilation, taps, padding, strict=True)]
            if transposed:
                of_axes = zip(sizes, stride, spans, out_padding, strict=True)
                return batch, second * groups, *((size - 1) * step + span + out for size, step, span, out in of_axes)
            of_axes = zip(sizes, stride, spans, strict=True)
            return batch, first, *((size - span) // step + 1 for size, step, span in of_axes)
        if node.target in _PRODUCTS:
            left, right = (self.env[part].shape for part in node.args[-2:])
            return *left[:-1], right[-1]
        parts = [self._shape(part) for part in node.args if isinstance(part, fx.Node)]
        return tuple(torch.broadcast_shapes(*parts))

    def _value(self, part: Any) -> Any:
        return self.env[part] if isinstance(part, fx.Node) else part

    def _is_constant(self, part: Any, rank: int, dims: Sequence[int]) -> bool:
        """Whether an operand of a result of this rank is the same all along `dims`."""
        value = self._value(part)
        if not isinstance(value, torch.Tensor):
            return True
        own = [dim - rank + value.dim() for dim in dims]
        return all(dim < 0 or value.shape[dim] == 1 for dim in own)

    def _spread(self, part: Any, shape: Sequence[Any], dims: Sequence[int]) -> Any:
        """The sum over `dims` of an operand that is broadcast to `shape`."""
        value = self._value(part)
        if not isinstance(value, torch.Tensor):
            return value * math.prod(shape[dim] for dim in dims)
        before = len(shape) - value.dim()
        own = [dim - before for dim in dims if dim >= before and value.shape[dim - before] != 1]
        times = math.prod(shape[dim] for dim in dims if dim - before not in own)
        total = self._sum(part, own)
        return total if isinstance(times, int) and times == 1 else total * times

    def _sum_of_convolution(self, node: Any, dims: Sequence[int]) -> torch.Tensor:
        x, weight, bias, stride, padding, dilation, transposed, out_padding, groups = node.args
        value, shape, x, weight = self.env[node], self._shape(node), self.env[x], self.env[weight]
        places = [dim for dim in dims if dim > 1]
        axes = [dim - 2 for dim in places]
        if groups != 1 or any(not transposed and stride[axis] > 1 and padding[axis] for axis in axes):
            return value.sum(dims, keepdim=True)
        if 0 in dims:
            x = x.sum(0, keepdim=True)
        if not transposed:
            weight = weight.transpose(0, 1)  # channels that come in first, as where it is transposed
        if 1 in dims:
            weight = weight.sum(1, keepdim=True)
        for dim, axis in zip(places, axes, strict=True):
            size, taps = x.shape[dim], int(weight.shape[dim])
            step, pad, far, out = (one[axis] for one in (stride, padding, dilation, out_padding))
            if transposed:
                seen = [_of_transposed(tap, taps, step, pad, far, out) for tap in range(taps)]
            elif step == 1:
                seen = [_of_convolved(tap, taps, pad, far) for tap in range(taps)]
            else:
                last = step * (shape[dim] - 1) + 1
                parts = [x.narrow(dim, tap * far, last) for tap in range(taps)]
                x = torch.cat([_stepped(part, dim, step).sum(dim, keepdim=True) for part in parts], 1)
                weight = torch.cat(weight.split(1, dim), 0)
                continue
            if size < max(start for start, _ in seen) - min(end for _, end in seen):
                return value.sum(dims, keepdim=True)
            apart = sorted(set(seen))
            x = torch.cat(_sums_between(x, dim, apart), 1)
            alike = [[k for k in range(taps) if seen[k] == one] for one in apart]
            weight = torch.cat([_added(weight.narrow(dim, k, 1) for k in group) for group in alike], 0)
        if len(places) == len(shape) - 2:
            result = x.flatten(1) @ weight.flatten(1)
            result = result.view(*result.shape, *[1] * len(places))
        else:
            weight = weight if transposed else weight.transpose(0, 1)
            settings = [
                [alone if axis in axes else old for axis, old in enumerate(setting)]
                for setting, alone in ((stride, 1), (padding, 0), (dilation, 1), (out_padding, 0))
            ]
            *before, out = settings
            result = aten.convolution.default(x, weight, None, *before, transposed, out, 1)
        if bias is None:
            return result
        line = self.env[bias].sum(0, keepdim=True) if 1 in dims else self.env[bias]
        times = math.prod(shape[dim] for dim in dims if dim != 1)
        return result + (line * times).view(-1, *[1] * (len(shape) - 2))


def _stepped(part: torch.Tensor, dim: int, step: int) -> torch.Tensor:
    return part[(slice(None),) * dim + (slice(None, None, step),)]


def _of_convolved(tap: int, taps: int, padding: int, dilation: int) -> tuple[int, int]:
    """What a tap of a convolution by steps of one sees of an axis: from here, to so far beyond the end."""
    first = dilation * tap - padding
    return max(0, first), min(0, first + 2 * padding - dilation * (taps - 1))


def _of_transposed(tap: int, taps: int, stride: int, padding: int, dilation: int, out_padding: int) -> tuple[int, int]:
    """What of an axis a tap of a transposed convolution adds to its output: from here, to so far beyond the end."""
    first = -((dilation * tap - padding) // stride)
    return max(0, first), min(0, (dilation * (taps - 1 - tap) + out_padding - padding) // stride)


def _sums_between(x: torch.Tensor, dim: int, spans: Iterable[tuple[int, int]]) -> list[torch.Tensor]:
    """The sum of each span along an axis. Each element is read once, and nothing is subtracted."""
    spans = list(spans)
    starts = sorted({start for start, _ in spans})
    ends = sorted({end for _, end in spans})
    size = x.shape[dim]
    between = [starts[-1], size + ends[0]]
    heads = [x.narrow(dim, a, b - a).sum(dim, keepdim=True) for a, b in itertools.pairwise(starts)]
    middle = x.narrow(dim, between[0], between[1] - between[0]).sum(dim, keepdim=True)
    tails = [x.narrow(dim, size + a, b - a).sum(dim, keepdim=True) for a, b in itertools.pairwise(ends)]
    return [_added([middle, *heads[starts.index(start) :], *tails[: ends.index(end)]]) for start, end in spans]


def _added(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, parts)
