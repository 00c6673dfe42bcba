"""Records selections whose order among equal values PyTorch leaves open, so that any right index passes.

Its documentation leaves it open for `topk`, `sort` and `argsort` unless stable, `kthvalue`, `median`, `nanmedian` and
`mode`. `max`, `min`, `argmax` and `argmin` give the first of equal values: they are compared like other integers, and
so are indices with which a reference computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ATEN = torch.ops.aten
_OPEN = frozenset([_ATEN.topk, _ATEN.sort, _ATEN.kthvalue, _ATEN.median, _ATEN.nanmedian, _ATEN.mode])
_COPIES = frozenset([_ATEN.clone, _ATEN._to_copy])
OPEN_NAMES = frozenset(packet.__name__ for packet in _OPEN)


@dataclass(frozen=True)
class Selection:
    """What the indices of one output select from."""

    values: torch.Tensor  # (rows, n), in the reference's own dtype
    rows: torch.Tensor  # of each index

    def of_part(self, places: torch.Tensor) -> Selection:
        return replace(self, rows=self.rows.flatten()[places])

    def ties(self, got: torch.Tensor, honest: torch.Tensor) -> torch.Tensor:
        """Where indices select values equal to those that the reference's select; nowhere if some are repeated that the
        reference does not repeat."""
        got, honest, length = got.long(), honest.long(), self.values.shape[1]
        inside = got.clamp(0, length - 1)
        found, wanted = self.values[self.rows, inside], self.values[self.rows, honest]
        equal = (found == wanted) | (found.isnan() & wanted.isnan())
        return equal & (got == inside) & (self._different(inside) == self._different(honest))

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

    def rows_of(self, view: torch.Tensor) -> torch.Tensor:
        return self.rows.as_strided(view.shape, view.stride(), view.storage_offset())


class Selections(TorchDispatchMode):
    """While active, records selections."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[_Indices] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def of(self, output: torch.Tensor) -> Selection | None:
        """What an output's elements select from, if it is the indices of a selection, a part of them or a copy."""
        made = self._behind(output)
        return made and Selection(made.source.reshape(-1, made.source.shape[-1]), made.rows_of(output))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            written = {_memory(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
            self._made = [made for made in self._made if not written & {_memory(made.tensor), _memory(made.source)}]
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        if func.overloadpacket in _OPEN and isinstance(result, (tuple, list)) and not given.get("stable"):
            source, indices, axis = given["self"], result[1], given.get("dim", -1)
            if source.dim() and indices.numel():
                source = source.movedim(axis, -1)
                rows = torch.arange(source.shape[:-1].numel(), device=source.device).view(source.shape[:-1])
                self._add(indices, source, rows.unsqueeze(axis) if indices.dim() == source.dim() else rows)
        elif func.overloadpacket in _COPIES and (made := self._behind(args[0])) and not result.is_floating_point():
            self._add(result, made.source, made.rows_of(args[0]))
        return result

    def _add(self, indices: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
        size = indices.untyped_storage().nbytes() // indices.element_size()
        made = _Indices(indices, source, rows.new_zeros(size))
        made.rows_of(indices).copy_(rows.expand_as(indices))
        self._made.append(made)

    def _behind(self, view: torch.Tensor) -> _Indices | None:
        for made in self._made:
            if (_memory(made.tensor), made.tensor.dtype) == (_memory(view), view.dtype):
                return made
        return None


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
