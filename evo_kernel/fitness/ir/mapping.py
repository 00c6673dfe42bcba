"""Handler of `tl.map_elementwise`: a scalar function for every element, or for several elements of a thread at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.engine import ExecutionObserver, Frame, Machine, ended, handles
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.types import IRError, Type


@handles("tt.map_elementwise")
def _map_elementwise(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Elements are to the function what programs are to a kernel.

    Layouts decide which elements a call gets together: they are drawn, so a function that mixes them is wrong. What
    a call makes of anything undefined is undefined: lanes that a mask left out may take any branch.
    """
    region, pack = operation.regions[0], operation.integer("pack", 1)
    shape, programs = operation.results[0].type.shape or (), frame.programs.numel()
    elements = math.prod(shape)
    if pack < 1 or elements % pack:
        raise IRError(f"{operation.name} of {elements} elements, {pack} at a time")
    calls = elements // pack
    order = machine.order(elements) if pack > 1 else torch.arange(elements)

    def columns(data: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = data.expand(programs, *shape).reshape(programs, elements)[:, order]
        return flat.reshape(programs * calls, pack).unbind(1)

    arguments: list[Lanes] = []
    for value in operands:
        type_ = Type(value.type.element, None, value.type.pointee)
        arguments += [Lanes(type_, data) for data in columns(value.data)]
    unknown = torch.zeros(programs * calls, dtype=torch.bool)
    for value in operands:
        if value.undefined is not None:
            unknown = unknown | torch.stack(columns(value.undefined)).any(0)
    rows, whole_grid = torch.arange(programs).repeat_interleave(calls), math.prod(machine.grid)
    inner = Frame(frame.programs[rows] % whole_grid + whole_grid * torch.arange(programs * calls), frame, rows)
    inner.bind(region.arguments, arguments)
    observer, machine.combining = machine.observer, True
    of_elements = None if observer is None else _OfElements(observer, elements, programs * calls, whole_grid)
    machine.observer = of_elements
    try:
        made = ended(machine.mapped(inner, region, pack * len(operation.results)))
    finally:
        machine.observer, machine.combining = observer, False
    if of_elements is not None:
        of_elements.tell_rounds(frame.programs)

    def whole(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        flat = torch.stack([part.expand(programs * calls) for part in parts], 1).reshape(programs, elements)
        return flat[:, torch.argsort(order)].reshape(programs, *shape)

    results = []
    for place, result in enumerate(operation.results):
        parts = made[place * pack : (place + 1) * pack]
        marks = [part.marks((programs * calls,)) | unknown for part in parts]
        undefined = whole(marks) if any(bool(mark.any()) for mark in marks) else None
        results.append(Lanes(result.type, whole([part.data for part in parts]), undefined=undefined))
    return results


class _OfElements:
    """Observes a function of elements. Each element may take as long as its program's slowest: which ones share a warp
    is unknown.

    Calls have ids of their own: of their program, plus the size of the grid times the number of the call.
    """

    def __init__(self, observer: ExecutionObserver, elements: int, calls: int, whole_grid: int) -> None:
        self._observer, self._elements, self._whole_grid = observer, elements, whole_grid
        self._rounds: defaultdict[Operation, torch.Tensor] = defaultdict(lambda: torch.zeros(calls, dtype=torch.int32))

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None:
        self._observer.operation(operation, programs % self._whole_grid, result)

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple
    ) -> None: ...

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None:
        self._rounds[operation][programs // self._whole_grid] += 1

    def waited(self, program: int, latencies: int) -> None: ...

    def library(self, programs: torch.Tensor, elements: int, instructions: torch.Tensor) -> None:
        those, places = (programs % self._whole_grid).unique(return_inverse=True)
        most = torch.zeros(those.numel(), dtype=torch.float64)
        most.scatter_reduce_(0, places, instructions.double().expand(places.numel()), "amax")
        self._observer.library(those, self._elements, most)

    def tell_rounds(self, programs: torch.Tensor) -> None:
        """Iterations of each loop in the function: those of its slowest call, by program."""
        for operation, rounds in self._rounds.items():
            most = rounds.reshape(programs.numel(), -1).amax(1)
            for number in range(int(most.max())):
                self._observer.iteration(operation, programs[most > number])
