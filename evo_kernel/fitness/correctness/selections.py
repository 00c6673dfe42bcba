"""Records what indices select from, so that any right index passes.

Of equal values, PyTorch's documentation leaves the order open for `topk`, `sort` and `argsort` unless stable,
`kthvalue`, `median`, `nanmedian` and `mode`; `max`, `min`, `argmax` and `argmin` give the first. Of different values
that are nearer to each other than honest errors, such as sums of products, any may be selected. What a reference
computes with indices is compared like other results; unless inputs are nominal, not where another order gives another
result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evo_kernel.fitness.correctness.rounding import may_contract
from evo_kernel.tasks.blank import by_name

_ATEN = torch.ops.aten
_OPEN = frozenset([_ATEN.topk, _ATEN.sort, _ATEN.kthvalue, _ATEN.median, _ATEN.nanmedian, _ATEN.mode])
_ALONE = frozenset([_ATEN.argmax, _ATEN.argmin])
_FIRST = _ALONE | {_ATEN.max, _ATEN.min}
_COPIES = frozenset([_ATEN.clone, _ATEN._to_copy])
_SELECTING = _OPEN | _FIRST
_MOVES = _COPIES | {_ATEN.gather, _ATEN.index_select}
NAMES = frozenset(packet.__name__ for packet in _SELECTING)
_ROWS = 1 << 8
"""Rows that are compared at a time."""


@dataclass(frozen=True)
class Selection:
    """What the indices of one output select from."""

    values: torch.Tensor  # (rows, n), in the reference's own dtype
    rows: torch.Tensor  # of each index
    errors: torch.Tensor  # as the values: the largest honest error of each
    is_open: bool  # which of equal values is selected
    are_sums: bool  # perhaps: values that a reference only moves or scales have no products that may be of TF32

    def with_errors(self, truth: Selection | None, others: Sequence[Selection | None]) -> Selection:
        """With the errors of these values, and of other honest ones, against the true ones."""
        if truth is None:
            return self
        found = [one.values for one in (self, *others) if one and one.values.shape == truth.values.shape]
        for values in found:
            for errors, own, true in zip(
                *(part.split(_ROWS) for part in (self.errors, values, truth.values)), strict=True
            ):
                new = (own.double() - true.double()).nan_to_num(0.0, 0.0, 0.0)
                new -= new.median(1, keepdim=True).values  # what all of a row have in common decides nothing
                torch.maximum(errors, new.abs().to(errors.dtype), out=errors)
        return self

    def of_part(self, places: torch.Tensor) -> Selection:
        return replace(self, rows=self.rows.flatten()[places])

    def ties(self, got: torch.Tensor, honest: torch.Tensor, multiple: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Where indices select values equal to those that the reference's select, if PyTorch leaves that open; and
        where equal ones, or others so near that `multiple` honest errors decide. Nowhere if some are repeated that the
        reference does not repeat."""
        got, honest, length = got.long(), honest.long(), self.values.shape[1]
        inside = got.clamp(0, length - 1)
        may = (got == inside) & (self._different(inside) == self._different(honest))
        found, wanted = self.values[self.rows, inside], self.values[self.rows, honest]
        same = (found == wanted) | (found.isnan() & wanted.isnan())
        gaps, near = (found.double() - wanted.double()).abs(), same & self.is_open
        for some in (~same & (gaps <= multiple * self.errors.max())).nonzero().split(_ROWS):
            at = some.unbind(1)
            rows = self.rows[at]
            alike = self.values[rows].abs() <= 2 * torch.maximum(found[at].abs(), wanted[at].abs()).unsqueeze(1)
            near[at] = gaps[at] <= multiple * torch.where(alike, self.errors[rows], 0).amax(1)
        return may & same & self.is_open, may & near

    def _different(self, indices: torch.Tensor) -> torch.Tensor:
        """How many different elements are selected."""
        taken = torch.zeros_like(self.values, dtype=torch.bool)
        taken[self.rows, indices] = True
        return taken.sum()


@dataclass(frozen=True)
class _Indices:
    """Indices that a selection returned, or a copy of them."""

    tensor: torch.Tensor
    source: torch.Tensor  # whose last axis is selected from
    rows: torch.Tensor  # of each element of the tensor's memory
    is_open: bool
    are_sums: bool

    def rows_of(self, view: torch.Tensor) -> torch.Tensor:
        return self.rows.as_strided(view.shape, view.stride(), view.storage_offset())


class Selections(TorchDispatchMode):
    """While active, records selections."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[_Indices] = []
        self.sums = False  # whether anything may have been added up so far

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def of(self, output: torch.Tensor) -> Selection | None:
        """What an output's elements select from, if it is the indices of a selection, a part of them or a copy."""
        made = self._behind(output)
        if made is None:
            return None
        values = made.source.reshape(-1, made.source.shape[-1])
        return Selection(values, made.rows_of(output), torch.zeros_like(values), made.is_open, made.are_sums)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.sums = self.sums or may_contract(func)
        if func._schema.is_mutable:
            written = {_memory(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
            self._made = [made for made in self._made if not written & {_memory(made.tensor), _memory(made.source)}]
        given = by_name(func, args, kwargs or {})
        if (packet := func.overloadpacket) in _SELECTING and (indices := _selected(packet, result)) is not None:
            source, axis = given["self"], given.get("dim", None if packet in _FIRST else -1)
            if axis is None:
                source, axis = source.reshape(-1), -1
            if source.dim() and indices.numel():
                source = source.movedim(axis, -1)
                rows = torch.arange(source.shape[:-1].numel(), device=source.device).view(source.shape[:-1])
                rows = rows.unsqueeze(axis) if indices.dim() == source.dim() else rows
                self._add(indices, source, rows, packet in _OPEN and not given.get("stable"), self.sums)
        elif packet in _COPIES and (made := self._behind(args[0])) and not result.is_floating_point():
            self._add(result, made.source, made.rows_of(args[0]), made.is_open, made.are_sums)
        return result

    def _add(
        self, indices: torch.Tensor, source: torch.Tensor, rows: torch.Tensor, is_open: bool, are_sums: bool
    ) -> None:
        size = indices.untyped_storage().nbytes() // indices.element_size()
        made = _Indices(indices, source, rows.new_zeros(size), is_open, are_sums)
        made.rows_of(indices).copy_(rows.expand_as(indices))
        self._made.append(made)

    def _behind(self, view: torch.Tensor) -> _Indices | None:
        for made in self._made:
            if (_memory(made.tensor), made.tensor.dtype) == (_memory(view), view.dtype):
                return made
        return None


class OtherOrder(TorchDispatchMode):
    """While active, of equal values others are selected, the last ones first, where PyTorch leaves that open.

    `differs`: whether any were equal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.differs = False
        self._equal: list[torch.Tensor] = []  # of each selection, in which rows any are
        self._computes = False  # so far: what is selected from may be other numbers in another kernel
        self._is_known = True  # selections are along last axes, and from what nothing has computed

    def behind(self, output: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Which elements of an output may follow from the order, by the output in another: rows with equal values, if
        what is selected from is the same in any kernel and no other row has changed; else all."""
        shapes = {part.shape for part in self._equal}
        if self._is_known and len(shapes) == 1 and output.shape[: len(shape := shapes.pop())] == shape:
            rows = torch.stack(self._equal).any(0).reshape(*shape, *[1] * (output.dim() - len(shape)))
            wide = (part.double() if part.is_floating_point() else part for part in (output, other))
            if not bool((_differ(*wide) & ~rows).any()):
                return rows.expand_as(output)
        return torch.ones_like(output, dtype=torch.bool)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet, indices = func.overloadpacket, _selected(func.overloadpacket, result)
        if packet not in _OPEN or indices is None or func._schema.is_mutable or not args[0].dim():
            self._computes = self._computes or not (func.is_view or packet in _MOVES)
            return result
        given = by_name(func, args, kwargs)
        if given.get("stable") or not indices.numel():
            return result
        axis = given.get("dim", -1)
        values, places = func(args[0].flip(axis), *args[1:], **kwargs)
        places = args[0].shape[axis] - 1 - places
        self.differs = self.differs or not torch.equal(places, indices)
        is_last = axis % args[0].dim() == args[0].dim() - 1
        self._is_known = self._is_known and not self._computes and is_last and given.get("sorted", True)
        if self._is_known:
            ordered = args[0].sort(-1).values
            self._equal.append((~_differ(ordered[..., 1:], ordered[..., :-1])).any(-1))
        return values, places


def _selected(packet: Any, result: Any) -> torch.Tensor | None:
    """A selection's indices: the only result of argmax and argmin, else the second of two."""
    if packet in _ALONE:
        return result
    return result[1] if isinstance(result, (tuple, list)) and len(result) == 2 else None


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where they do; NaN does not from NaN."""
    return (one != other) & ~(one.isnan() & other.isnan())


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
