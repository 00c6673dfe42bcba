"""Tracks tensor values that host code may read during recording: small constant tables and host-known inputs.

Real CPU tensors are computed alongside the fake tensors that represent them. Host code may read host-known inputs; a
GPU operation on one is recorded as an operation. Only values computed by the host become a table of the plan.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from evo_kernel.fitness.plan.launch_plan import MAX_TABLE_BYTES

_HOST_BYTES = 1 << 20  # largest CPU tensor whose values are tracked


class KnownValues:
    """Real CPU tensors by the storage of the fake tensors that represent them."""

    def __init__(self) -> None:
        self._tables: dict[int, torch.Tensor] = {}
        self._inputs: dict[int, torch.Tensor] = {}

    def set_input(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        self._inputs[storage_key(tensor)] = value

    def forget(self, tensor: torch.Tensor) -> None:
        """Drop the values of a tensor that a kernel or an operation may have written."""
        self._tables.pop(storage_key(tensor), None)
        self._inputs.pop(storage_key(tensor), None)

    def host(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's values, if host code may read them; None if only the GPU will know them."""
        known = self.table(tensor)
        return known if known is not None else _over(self._inputs.get(storage_key(tensor)), tensor)

    def table(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's values, if host code alone determines them."""
        if not _is_fake(tensor):
            return tensor if tensor.device.type == "cpu" else None
        return _over(self._tables.get(storage_key(tensor)), tensor)

    def keep(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Record `value` as the content of the fake `tensor`."""
        if tensor.storage_offset() == 0:
            self._tables[storage_key(tensor)] = self.cast(value, tensor)

    @staticmethod
    def cast(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """`value` in the dtype, shape and strides of the fake `tensor`."""
        with _disable_current_modes():
            copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            return copy.copy_(value.detach())

    def compute(self, func: Any, args: tuple, kwargs: dict[str, Any], result: torch.Tensor) -> torch.Tensor | None:
        """The values of `result = func(*args)` if host code determines all of them, else None.

        Results of random operations count as known: the plan keeps the values drawn while it was recorded.
        """
        on_gpu = result.device.type == "cuda"
        if result.numel() * result.element_size() > (MAX_TABLE_BYTES if on_gpu else _HOST_BYTES):
            return None
        lookup = self.table if on_gpu else self.host
        try:
            with _disable_current_modes():
                named = {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs
                plain = _plain(args, lookup), _plain(named, lookup)
                plain[1].pop("pin_memory", None)
                computed = func(*plain[0], **plain[1])
        except (_Unknown, RuntimeError, TypeError, ValueError, NotImplementedError):
            return None
        return computed if isinstance(computed, torch.Tensor) and computed.shape == result.shape else None


class _Unknown(Exception):
    """An argument's values are not known on the host."""


def _plain(value: Any, lookup: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """`value` with fake tensors replaced by real ones. Raises _Unknown."""
    if isinstance(value, torch.Tensor):
        known = lookup(value)
        if known is None:
            raise _Unknown
        return known
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(item, lookup) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item, lookup) for key, item in value.items()}
    return torch.device("cpu") if isinstance(value, torch.device) else value


def table_node(view: dict[str, Any], value: torch.Tensor) -> dict[str, Any]:
    """The plan's node that writes `value` into `view`."""
    with _disable_current_modes():
        flat = value.detach().contiguous().reshape(-1)
        data = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    return {"kind": "constant", "view": view, "data": base64.b64encode(data).decode()}


def number(value: torch.Tensor) -> bool | int | float:
    """The value of a real one-element tensor, read while fake tensor mode is active."""
    with _disable_current_modes():
        return value.item()


def storage_key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "FakeTensor"


def _over(base: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
    if base is None or base.dtype != tensor.dtype:
        return None
    with _disable_current_modes():
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
