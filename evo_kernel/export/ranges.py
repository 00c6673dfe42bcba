"""What was verified, as ranges that a dispatcher can ask: see shipped/_rules.py, which reads what is made here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo_kernel.types import CaseKind

Number = int | float | bool


@dataclass(frozen=True)
class Tensor:
    """A tensor of a verified case; strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...] | None:
        """Its dimensions, the slowest in memory first, where it has no gaps; row-major where that fits."""
        row_major = tuple(range(len(self.shape)))
        by_stride = tuple(sorted(row_major, key=lambda d: (-self.strides[d], d)))
        return next((order for order in (row_major, by_stride) if self.lies_in(order)), None)

    def lies_in(self, order: Sequence[int]) -> bool:
        """Whether it is dense in this order; the stride of a dimension of size 1 means nothing."""
        step = 1
        for dimension in reversed(order):
            if self.shape[dimension] > 1 and self.strides[dimension] != step:
                return False
            step *= self.shape[dimension]
        return True


@dataclass(frozen=True)
class VerifiedCase:
    """A case on which a kernel was found right, and what it took there."""

    name: str
    kind: CaseKind
    sizes: Mapping[str, Any]
    inputs: tuple[Tensor | Number, ...]
    outputs: tuple[Tensor, ...]  # as the kernel makes them
    kernel: str  # the fastest of those found right on it
    us: float | None = None  # None where it was not timed


def spans(cases: Iterable[VerifiedCase], names: Sequence[str]) -> list[dict[str, Any]]:
    """Ranges over cases that are alike in dtypes and ranks, as plain data."""
    alike: dict[tuple[Any, ...], list[VerifiedCase]] = {}
    for case in cases:
        alike.setdefault(tuple(_kind(value) for value in case.inputs), []).append(case)
    return [_span(group, names) for group in alike.values()]


def _kind(value: Tensor | Number) -> tuple[str, int]:
    return (value.dtype, len(value.shape)) if isinstance(value, Tensor) else (type(value).__name__, -1)


def _span(cases: Sequence[VerifiedCase], names: Sequence[str]) -> dict[str, Any]:
    columns = list(zip(*(case.inputs for case in cases), strict=True))
    return {
        "names": list(names),
        "inputs": [_rule(column) for column in columns],
        "equal": _equal(columns),
        "cases": [
            {
                "name": case.name,
                "kind": str(case.kind),
                "sizes": dict(case.sizes),
                "shapes": [list(value.shape) if isinstance(value, Tensor) else value for value in case.inputs],
                "kernel": case.kernel,
                "us": case.us,
            }
            for case in cases
        ],
    }


def _rule(column: Sequence[Tensor | Number]) -> dict[str, Any]:
    tensors = [value for value in column if isinstance(value, Tensor)]
    if not tensors:
        return {"values": list(dict.fromkeys(column))}
    by_dimension = zip(*(tensor.shape for tensor in tensors), strict=True)
    orders = [tensor.order for tensor in tensors]
    return {
        "dtype": tensors[0].dtype,
        "sizes": [[min(sizes), max(sizes), math.gcd(*sizes) or 1] for sizes in by_dimension],
        "elements": max(math.prod(tensor.shape) for tensor in tensors),
        "orders": [list(order) for order in dict.fromkeys(order for order in orders if order is not None)],
        "strided": [
            [list(t.shape), list(t.strides)] for t, order in zip(tensors, orders, strict=True) if order is None
        ],
    }


def _equal(columns: Sequence[Sequence[Tensor | Number]]) -> list[list[list[int]]]:
    """Dimensions, as (input, dimension), that had one size in every case, though cases differ in it."""
    together: dict[tuple[int, ...], list[list[int]]] = {}
    for place, column in enumerate(columns):
        tensors = [value for value in column if isinstance(value, Tensor)]
        for dimension, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
            together.setdefault(sizes, []).append([place, dimension])
    return [places for sizes, places in together.items() if len(places) > 1 and len(set(sizes)) > 1]


def layouts(cases: Sequence[VerifiedCase]) -> list[list[int] | None]:
    """Of every output the order of its dimensions in memory where all kernels agree on one; None: row-major."""
    found: list[list[int] | None] = []
    for column in zip(*(case.outputs for case in cases), strict=True):
        orders = [tensor.order for tensor in column if tensor.order != tuple(range(len(tensor.shape)))]
        ranks = {len(tensor.shape) for tensor in column}
        fits = (order for order in orders if order and len(ranks) == 1 and all(one.lies_in(order) for one in column))
        order = next(fits, None)
        found.append(list(order) if order is not None else None)
    return found


def output_shapes(cases: Sequence[VerifiedCase]) -> list[tuple[str, list[Any]]] | None:
    """(dtype, sizes) of outputs as sizes of inputs [input, dimension] or numbers; None where that cannot be said."""
    found: list[tuple[str, list[Any]]] = []
    for number, column in enumerate(zip(*(case.outputs for case in cases), strict=True)):
        if len({len(tensor.shape) for tensor in column}) > 1:
            return None
        parts: list[Any] = []
        for dimension, sizes in enumerate(zip(*(tensor.shape for tensor in column), strict=True)):
            parts.append(sizes[0] if len(set(sizes)) == 1 else _place(cases, number, dimension))
        if None in parts or len({tensor.dtype for tensor in column}) > 1:
            return None
        found.append((column[0].dtype, parts))
    return found


def _place(cases: Sequence[VerifiedCase], output: int, dimension: int) -> list[int] | None:
    wanted = [case.outputs[output].shape[dimension] for case in cases]
    for place, value in enumerate(cases[0].inputs):
        for axis in range(len(value.shape) if isinstance(value, Tensor) else 0):
            got = [v.shape[axis] for case in cases if isinstance(v := case.inputs[place], Tensor)]
            if got == wanted:
                return [place, axis]
    return None
