"""A plan's memory on the GPU: buffers and scratch between canary bands, and constant tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from evo_kernel.fitness.plan.launch_plan import Aten, CompiledPlan, Constant, View
from evo_kernel.fitness.runners.launch_limits import scratch_needs

CANARY_BYTES = 1024
CANARY = 0xA5
POISON = 0xFF  # NaN in every floating-point type, -1 in signed integers


class Arena:
    """Memory for one run of a plan: its buffers and the scratch of its launches, each between two canary bands.

    Arenas share no memory. Nothing except inputs survives `poison`.
    """

    def __init__(self, plan: CompiledPlan, memory: Callable[[int], torch.Tensor]) -> None:
        """`memory` returns at least so many bytes; all of the mapping around buffers holds canaries."""
        self._buffers = len(plan.plan.buffers)
        needs = scratch_needs(plan)
        self._aligns = [align for need in needs for align in (need.global_align, need.profile_align)]
        scratch = [size for need in needs for size in (need.global_bytes, need.profile_bytes)]
        padded = [size + align if size else 0 for size, align in zip(scratch, self._aligns, strict=True)]
        self._sizes = [*(buffer.bytes for buffer in plan.plan.buffers), *padded]
        self._poisoned = [
            *(number for number, buffer in enumerate(plan.plan.buffers) if buffer.kind == "scratch"),
            *(self._buffers + number for number, size in enumerate(padded) if size),
        ]
        starts, total = [], 0
        for size in self._sizes:
            starts.append(total + CANARY_BYTES)
            total += CANARY_BYTES + (size + 511) // 512 * 512
        self._starts = starts
        self.memory = memory(total + CANARY_BYTES).fill_(CANARY)
        total = self.memory.numel()
        ends = [0, *(start + size for start, size in zip(starts, self._sizes, strict=True))]
        self._bands = [self.memory[end:start] for end, start in zip(ends, [*starts, total], strict=True)]
        """What lies before, between and behind the buffers."""

    def bytes_of(self, buffer: int) -> torch.Tensor:
        start = self._starts[buffer]
        return self.memory[start : start + self._sizes[buffer]]

    def address(self, buffer: int) -> int:
        return self.memory.data_ptr() + self._starts[buffer]

    def scratch(self, launch: int) -> tuple[int, int]:
        """Addresses of global and profile scratch of launch number `launch`; 0 if none is needed."""
        first = 2 * launch
        return self._scratch_address(first), self._scratch_address(first + 1)

    def _scratch_address(self, number: int) -> int:
        place, align = self._buffers + number, self._aligns[number]
        return -(-self.address(place) // align) * align if self._sizes[place] else 0

    def tensor(self, view: View) -> torch.Tensor:
        alone = from_dlpack(to_dlpack(self.bytes_of(view.buffer)))  # its storage ends with the buffer
        return _typed(alone, getattr(torch, view.dtype)).as_strided(view.shape, view.strides, view.offset)

    def poison(self, byte: int = POISON) -> None:
        """Overwrite everything except inputs."""
        for place in self._poisoned:
            self.bytes_of(place).fill_(byte)

    def gaps_whole(self, views: Sequence[View]) -> torch.Tensor:
        """Whether bytes between the elements of one buffer's views are unchanged, as a tensor; does not synchronise."""
        copy = self.bytes_of(views[0].buffer).clone()
        for view in views:
            words = as_words(_typed(copy, getattr(torch, view.dtype)).as_strided(view.shape, view.strides, view.offset))
            words.copy_(torch.full((words.element_size(),), CANARY, dtype=torch.uint8).view(words.dtype)[0])
        return (copy == CANARY).all()

    def mend_canaries(self) -> None:
        for band in self._bands:
            band.fill_(CANARY)

    def canaries_whole(self) -> torch.Tensor:
        """Whether nothing was written outside buffers, as a tensor; does not synchronise."""
        return (torch.cat(self._bands) == CANARY).all()

    def broken_canary(self) -> int | None:
        """Index of a buffer with a damaged canary band; None if all are intact."""
        whole = [bool((band == CANARY).all()) for band in self._bands]
        return None if all(whole) else max(0, whole.index(False) - 1)


def as_words(values: torch.Tensor) -> torch.Tensor:
    """A view of the elements as integers of their size; of complex ones as pairs."""
    plain = torch.view_as_real(values) if values.is_complex() else values
    return plain.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()])


def _typed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    usable = data.numel() // dtype.itemsize * dtype.itemsize
    return data[:usable].view(dtype)


def upload(node: Constant) -> torch.Tensor:
    """A constant table on the GPU, in the shape of its view."""
    data = torch.frombuffer(bytearray(node.content), dtype=torch.uint8)
    return data.view(getattr(torch, node.view.dtype)).reshape(node.view.shape).to("cuda")


def run_aten(node: Aten, tensors: Sequence[torch.Tensor], arena: Arena) -> None:
    """Replay a torch operation and copy its results to the plan's views."""
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
            if (target.data_ptr(), target.stride()) != (value.data_ptr(), value.stride()):
                target.copy_(value)
