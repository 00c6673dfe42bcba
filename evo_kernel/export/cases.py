"""Cases that were judged, and what operators promise of their outputs because of them: layouts and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo_kernel.types import CaseKind

Number = int | float | bool


@dataclass(frozen=True)
class Tensor:
    """A tensor of a judged case; strides in elements."""

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
class JudgedCase:
    """A case on which a kernel was found right, and what it took there."""

    name: str
    kind: CaseKind
    sizes: Mapping[str, Any]
    inputs: tuple[Tensor | Number, ...]
    specs: tuple[Mapping[str, Any], ...]  # the inputs as plain data, with the values that launches follow from
    outputs: tuple[Tensor, ...]  # as the kernel makes them
    kernel: str  # the fastest of those found right on it
    us: float | None = None  # None where it was not timed


def judged(cases: Iterable[JudgedCase]) -> list[dict[str, Any]]:
    """Cases as plain data, for the manifest. Of two that take the same inputs the one that was timed comes first."""
    return [
        {
            "name": case.name,
            "kind": str(case.kind),
            "sizes": dict(case.sizes),
            "inputs": [dict(spec) for spec in case.specs],
            "kernel": case.kernel,
            "us": case.us,
        }
        for case in sorted(cases, key=lambda case: case.us is None)
    ]


def layouts(cases: Sequence[JudgedCase]) -> list[list[int] | None]:
    """Of every output the order of its dimensions in memory where all kernels agree on one; None: row-major."""
    found: list[list[int] | None] = []
    for column in zip(*(case.outputs for case in cases), strict=True):
        orders = [tensor.order for tensor in column if tensor.order != tuple(range(len(tensor.shape)))]
        ranks = {len(tensor.shape) for tensor in column}
        fits = (order for order in orders if order and len(ranks) == 1 and all(one.lies_in(order) for one in column))
        order = next(fits, None)
        found.append(list(order) if order is not None else None)
    return found


def output_shapes(cases: Sequence[JudgedCase]) -> list[tuple[str, list[Any]]] | None:
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


def _place(cases: Sequence[JudgedCase], output: int, dimension: int) -> list[int] | None:
    wanted = [case.outputs[output].shape[dimension] for case in cases]
    for place, value in enumerate(cases[0].inputs):
        for axis in range(len(value.shape) if isinstance(value, Tensor) else 0):
            got = [v.shape[axis] for case in cases if isinstance(v := case.inputs[place], Tensor)]
            if got == wanted:
                return [place, axis]
    return None
