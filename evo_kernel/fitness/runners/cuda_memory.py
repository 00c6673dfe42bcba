"""A plan's memory on the GPU: its buffers between canary bands, and the scratch and tables of its launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from evo_kernel.fitness.plan import Aten, CompiledPlan, Constant, View
from evo_kernel.fitness.runners.bounds import ScratchNeed

CANARY_BYTES = 1024
CANARY = 0xA5
POISON = 0xFF  # NaN in every floating type, -1 in signed integers


class Arena:
    """The buffers of one plan on the GPU, each between two canary bands."""

    def __init__(self, plan: CompiledPlan) -> None:
        self._sizes = [buffer.bytes for buffer in plan.plan.buffers]
        starts, total = [], 0
        for size in self._sizes:
            starts.append(total + CANARY_BYTES)
            total += CANARY_BYTES + (size + 511) // 512 * 512
        self._starts, total = starts, total + CANARY_BYTES
        self._memory = torch.empty(total, dtype=torch.uint8, device="cuda")
        self._memory.fill_(CANARY)
        ends = [0, *(start + size for start, size in zip(starts, self._sizes, strict=True))]
        self._bands = [self._memory[end:start] for end, start in zip(ends, [*starts, total], strict=True)]
        """What lies before, between and behind the buffers."""

    def bytes_of(self, buffer: int) -> torch.Tensor:
        start = self._starts[buffer]
        return self._memory[start : start + self._sizes[buffer]]

    def address(self, buffer: int) -> int:
        return self._memory.data_ptr() + self._starts[buffer]

    def tensor(self, view: View) -> torch.Tensor:
        base = _typed(self.bytes_of(view.buffer), getattr(torch, view.dtype))
        return torch.as_strided(base, view.shape, view.strides, base.storage_offset() + view.offset)

    def poison(self, plan: CompiledPlan) -> None:
        for index, buffer in enumerate(plan.plan.buffers):
            if buffer.kind == "scratch":
                self.bytes_of(index).fill_(POISON)

    def mend_canaries(self) -> None:
        for band in self._bands:
            band.fill_(CANARY)

    def canaries_whole(self) -> torch.Tensor:
        return (torch.cat(self._bands) == CANARY).all()

    def broken_canary(self) -> int | None:
        whole = [bool((band == CANARY).all()) for band in self._bands]
        return None if all(whole) else max(0, whole.index(False) - 1)


def _typed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    usable = data.numel() // dtype.itemsize * dtype.itemsize
    return data[:usable].view(dtype)


class Scratch:
    """Global and profile scratch of one launch: poisoned once, and 0 as an address where none is needed."""

    def __init__(self, need: ScratchNeed) -> None:
        self._memory: list[torch.Tensor] = []
        self.addresses = (
            self._reserve(need.global_bytes, need.global_align),
            self._reserve(need.profile_bytes, need.profile_align),
        )

    def _reserve(self, size: int, align: int) -> int:
        if size == 0:
            return 0
        memory = torch.full((size + align,), POISON, dtype=torch.uint8, device="cuda")
        self._memory.append(memory)
        return math.ceil(memory.data_ptr() / align) * align


def upload(node: Constant) -> torch.Tensor:
    """A constant table, on the GPU and in the shape of its view."""
    data = torch.frombuffer(bytearray(node.content), dtype=torch.uint8)
    return data.view(getattr(torch, node.view.dtype)).reshape(node.view.shape).to("cuda")


def run_aten(node: Aten, tensors: Sequence[torch.Tensor], arena: Arena) -> None:
    """Replay a torch operation and put its results where the plan wants them."""
    _, name, overload = node.op.split(".")
    operation = getattr(getattr(torch.ops.aten, name), overload)

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            if "view" in value:
                return tensors[value["view"]]
            if "device" in value:
                return torch.device("cuda")
            return getattr(torch, value.get("dtype") or value["torch"])
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    result = operation(*plain(node.args), **{key: plain(value) for key, value in node.kwargs.items()})
    results = result if isinstance(result, (tuple, list)) else [result]
    for view, value in zip(node.outputs, results, strict=True):
        if view is not None and isinstance(value, torch.Tensor):
            target = arena.tensor(view)
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)
