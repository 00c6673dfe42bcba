"""How tensors lie in memory, with symbolic sizes: values, alignment for broadcasting, and collapsing of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from evo_kernel.tasks.lowering.trace import Expr, expression_of
from evo_kernel.tasks.task import size_hint


@dataclass(frozen=True)
class LoweredValue:
    """A tensor inside `run`: the Python variable that holds it, or a constant that fills it."""

    name: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]  # elements
    dtype: torch.dtype
    fill: float | int | bool | None = None  # every element has this value, and no memory holds it

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, fill: float | int | bool | None = None) -> LoweredValue:
        shape = tuple(expression_of(size) for size in tensor.shape)
        return cls(name, shape, tuple(expression_of(stride) for stride in tensor.stride()), tensor.dtype, fill)

    @property
    def numel(self) -> Expr:
        return product(self.shape)

    @property
    def contiguous(self) -> bool:
        expected: Expr = sympy.Integer(1)
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and not same(stride, expected):
                return False
            expected = expected * size
        return True


@dataclass(frozen=True)
class Operand:
    """A value seen through the iteration dimensions of a kernel; broadcast dimensions have stride 0."""

    param: str  # "x" in `x_ptr`, `x_stride`
    name: str  # the variable in run
    dtype: torch.dtype
    strides: tuple[Expr, ...]  # one per iteration dimension
    dims: tuple[int | None, ...]  # the value's own dimension behind each iteration dimension


@dataclass(frozen=True)
class Group:
    """Adjacent iteration dimensions that all operands walk with one stride."""

    size: Expr
    dim: int  # the innermost iteration dimension in it


def same(a: Expr, b: Expr) -> bool:
    """Whether two size expressions are equal for all sizes, as far as algebra sees."""
    return a == b or sympy.expand(a - b) == 0


def product(sizes: Sequence[Expr]) -> Expr:
    result: Expr = sympy.Integer(1)
    for size in sizes:
        result = result * size
    return result


def align(param: str, value: LoweredValue, shape: Sequence[Expr]) -> Operand:
    """See `value` broadcast to `shape`, as PyTorch does: dimensions match from the right."""
    missing = len(shape) - len(value.shape)
    strides: list[Expr] = [sympy.Integer(0)] * missing
    dims: list[int | None] = [None] * missing
    for dim, (size, stride) in enumerate(zip(value.shape, value.strides, strict=True)):
        broadcast = size == 1
        strides.append(sympy.Integer(0) if broadcast else stride)
        dims.append(None if broadcast else dim)
    return Operand(param, value.name, value.dtype, tuple(strides), tuple(dims))


def collapse(shape: Sequence[Expr], dims: Sequence[int], operands: Sequence[Operand]) -> list[Group]:
    """The fewest groups of `dims` (outermost first) which every operand walks with one stride each."""
    groups: list[Group] = []
    for dim in reversed(dims):
        if shape[dim] == 1:
            continue
        if groups:
            inner = groups[0]
            follows = all(same(o.strides[dim], o.strides[inner.dim] * inner.size) for o in operands)
            if follows:
                groups[0] = Group(shape[dim] * inner.size, inner.dim)
                continue
        groups.insert(0, Group(shape[dim], dim))
    return groups


def storage_order(tensor: Any) -> tuple[int, ...]:
    """Dimensions of a fake tensor from the outermost in memory to the innermost."""
    hints = [(-size_hint(stride), dim) for dim, stride in enumerate(tensor.stride())]
    moving = [entry for entry in hints if tensor.shape[entry[1]] != 1]
    if [dim for _, dim in sorted(moving)] == [dim for _, dim in moving]:
        return tuple(range(tensor.dim()))
    return tuple(dim for _, dim in sorted(hints))
