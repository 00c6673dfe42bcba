"""Executes a part of a plan of real size: counts its traffic, and computes the elements that some programs write.

First a survey (`skips_floats`): every launch runs without floating-point data, which finds accesses out of bounds and
counts traffic. Then programs are sampled (program_sampling.py). These programs, all others that store to the same
elements, those whose results they read from earlier launches, and so on, are executed with data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from evo_kernel.fitness.ir.count_launch import programs_with_lines, touched
from evo_kernel.fitness.ir.counting import Counter, means_of, most_of
from evo_kernel.fitness.ir.engine import ExecutionObserver
from evo_kernel.fitness.ir.execute import Launched, chunk_size, launch, traits_of
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.memory import PADDING, DeviceMemory, scattered, unit_places
from evo_kernel.fitness.ir.module import LOADS, IRModule, Operation
from evo_kernel.fitness.ir.nodes import elements_of, shadow_of
from evo_kernel.fitness.ir.program_sampling import crossings, draw, groups_of, positions
from evo_kernel.fitness.ir.types import Type
from evo_kernel.fitness.plan.launch_plan import Copy, Launch, Plan, View

_Amount = TypeVar("_Amount", float, torch.Tensor)

ELEMENTS = 6
"""Random elements of each output that are checked, besides all that the sampled programs write."""
MOST_TOLD = 1 << 18
"""Elements of an output that are compared with the reference."""
READERS, MOST_HANDED_ON = 4, 4
"""Programs of a launch sampled because they read what sampled ones store; in plans with at most so many launches."""
BYTES_PER_S, FLOPS_PER_S, ITERATION_S = 0.7e9, 4e10, 1e-3


class Seeker:
    """Observer that marks what programs of a launch load or store, or finds programs that access marked elements."""

    def __init__(
        self, memory: DeviceMemory, programs: int, marked: dict[int, torch.Tensor], *, loads: bool, marks: bool
    ) -> None:
        """`marked`: a boolean per shadow element, by number of buffer; only for buffers that launches write."""
        self._memory, self._marked, self._loads, self._marks = memory, marked, loads, marks
        self.found = torch.zeros(programs, dtype=torch.bool)

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None: ...

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None: ...

    def waited(self, program: int, latencies: int) -> None: ...

    def library(self, programs: torch.Tensor, elements: int, instructions: torch.Tensor) -> None: ...

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        if (operation.name in LOADS) != self._loads:
            return
        full = (programs.numel(), *shape)
        access = self._memory.access(pointer.sum, item, len(full), PADDING // 2 if mask is not None else 0)
        if access is not None:
            number = self._memory.buffers.index(access.buffer)
            if number not in self._marked:
                return
            parts = None if self._marks else access.by_program(programs.numel())
            if parts is not None:
                unit = access.buffer.unit(item)
                for first, end, part in parts:
                    hit = part.view(self._marked[number], unit, item // unit)
                    hit = hit.any(-1) if item > unit else hit
                    if not bool(hit.any()):
                        continue
                    hit = hit if mask is None else hit & mask.rows(torch.arange(first, end)).data
                    hit = hit.expand(end - first, *shape).reshape(end - first, -1).any(1)
                    self.found[programs[first:end][hit]] = True
                return
        lanes = scattered(pointer, None if mask is None else mask.data, programs, full)
        for buffer, places, chosen in lanes.by_buffer(self._memory, item):
            number = self._memory.buffers.index(buffer)
            if number not in self._marked:
                continue
            units = unit_places(places, item, buffer.unit(item))
            if self._marks:
                self._marked[number][units] = True
            else:
                owners = lanes.programs if chosen is None else lanes.programs[chosen]
                self.found[owners[self._marked[number][units].any(-1)]] = True


class DependsOnData(Exception):
    """Addresses or stores of a launch depend on floating-point data, so it cannot be surveyed without."""


class PartialExecution:
    """Check of a part of a plan: a survey of all launches without floating-point data, then some programs with data."""

    def __init__(
        self, plan: Plan, modules: Sequence[IRModule], memory: DeviceMemory, deadline: float, generator: torch.Generator
    ) -> None:
        self._plan, self._memory, self._deadline, self._generator = plan, memory, deadline, generator
        self._launches = plan.launches
        self._computed = [_computed(plan, view) for view in plan.outputs]  # views with the outputs' elements
        self._modules = [modules[node.kernel] for node in self._launches]
        self.chosen: list[torch.Tensor] = []
        self._conflicts: list[tuple[int, int]] = []
        self._stored: dict[int, torch.Tensor] = {}
        self._alone = False  # the last launch alone stores its outputs, each element by one program
        self.writers: dict[int, torch.Tensor] = {}  # of the last launch, by buffer
        self._spans: list[tuple[int, ...]] = []  # by output
        self._surveyed: list[Counter] = []
        self._ran: list[Counter] = []
        self._looked_at: list[torch.Tensor] = []  # programs of each launch whose lines are recorded
        self.compared: list[torch.Tensor] = []  # by output, numbers of elements that the sampled programs must write
        self.unwritten = [0] * len(plan.outputs)  # elements that no launch writes

    # --- all programs, without data -------------------------------------------------------------------------------

    def survey(self, number: int, module: IRModule, node: Launch) -> Launched:
        """Survey a launch, for `run_nodes`. Raises DependsOnData."""
        counter = Counter(module, self._memory, math.prod(node.grid), footprints=False, blocks=True)
        self._surveyed.append(counter)
        launched = self._skipping(number, counter, None)
        if launched.finding is not None and launched.finding.kind == "undefined":
            raise DependsOnData
        self._conflicts += launched.conflicts
        stored = {place for place, buffer in enumerate(self._memory.buffers) if buffer.writer is not None}
        self._alone = not (self._conflicts or "atomic" in counter.by_program or stored & self._stored.keys())
        for place, buffer in enumerate(self._memory.buffers):
            if buffer.writer is not None:
                marks, before = buffer.writer != 0, self._stored.get(place)
                self._stored[place] = marks if before is None else marks | buffer.refined(before)
        self._stored = {place: self._memory.buffers[place].refined(marks) for place, marks in self._stored.items()}
        return launched

    def seconds(self) -> float:
        """Estimated time of executing the whole plan."""
        return self._seconds_of([torch.arange(math.prod(node.grid)) for node in self._launches])

    def _seconds_of(self, programs: Sequence[torch.Tensor]) -> float:
        """Estimated time of executing some programs of each launch."""
        return sum(float(self._seconds(number)[some].sum()) for number, some in enumerate(programs))

    def _seconds(self, number: int) -> torch.Tensor:
        """Estimated time of one launch, by program."""
        counts, node = self._surveyed[number].by_program, self._launches[number]
        none = torch.zeros(math.prod(node.grid), dtype=torch.float64)
        moved = counts.get("load_bytes", none) + counts.get("store_bytes", none)
        flops = sum((counts[name] for name in counts if name.startswith("flops.")), none)
        iterations = counts.get("iterations", none)
        return seconds_of(self._modules[number], none.numel(), moved, flops, iterations)

    def _unwritten(self, view: View) -> int:
        buffer, stored = self._memory.buffers[view.buffer], self._stored.get(view.buffer)
        if buffer.defined is None:
            return 0
        buffer.unit(view.item_bytes)
        marks = buffer.defined if stored is None else stored | buffer.defined
        return view.elements - int(elements_of(marks, buffer, view).sum())

    def _skipping(
        self, number: int, observer: ExecutionObserver, programs: torch.Tensor | None, heeds_loads: bool | None = None
    ) -> Launched:
        node = self._launches[number]
        return launch(
            self._modules[number], node.grid, node.args, self._memory, programs=programs, deadline=self._deadline,
            observer=observer, skips_floats=True, surveys=True, heeds_loads=heeds_loads,
        )  # fmt: skip

    def _seek(
        self, number: int, marked: dict[int, torch.Tensor], programs: torch.Tensor | None, *, loads: bool, marks: bool
    ) -> torch.Tensor:
        """Programs of a launch that a Seeker finds among `programs`, or among all."""
        if programs is not None and not programs.numel():
            return programs
        seeker = Seeker(self._memory, math.prod(self._launches[number].grid), marked, loads=loads, marks=marks)
        self._skipping(number, seeker, programs, None if loads else False)
        return seeker.found.nonzero().squeeze(1)

    # --- which programs -------------------------------------------------------------------------------------------

    def choose(self, limit_s: float) -> None:
        """Choose programs of each launch: sampled ones, and those whose results they need; about `limit_s` in total."""
        self.unwritten = [self._unwritten(view) for view in self._computed]
        self.writers = {n: b.writer for n, b in enumerate(self._memory.buffers) if b.writer is not None}
        self._spans = [self._span(view) for view in self._computed]
        drawn = self._drawn(limit_s)
        self._resolve(drawn)
        taken = self._seconds_of(self.chosen)
        if taken > 2 * limit_s > 2 * self._seconds_of(drawn):  # they need more of earlier launches than planned
            self._resolve(self._drawn(limit_s * limit_s / taken))

    def _drawn(self, limit_s: float) -> list[torch.Tensor]:
        """Sampled programs of each launch, and readers of what those of earlier launches store."""
        share = limit_s / len(self._launches)
        drawn = [
            draw(node.grid, self._surveyed[number], self._seconds(number), share, self._generator)
            for number, node in enumerate(self._launches)
        ]
        if len(self._launches) > MOST_HANDED_ON:
            return drawn
        for number in range(len(self._launches) - 1):
            if not groups_of(self._surveyed[number], math.prod(self._launches[number].grid)):
                continue  # its programs are chosen by what others need
            stored = self._marks()
            self._seek(number, stored, drawn[number], loads=False, marks=True)
            for later in range(number + 1, len(self._launches)):
                readers = self._seek(later, stored, None, loads=True, marks=False)
                some = torch.randperm(readers.numel(), generator=self._generator)[:READERS]
                drawn[later] = torch.unique(torch.cat([drawn[later], readers[some]]))
        return drawn

    def _marks(self) -> dict[int, torch.Tensor]:
        """Empty marks for all buffers that launches may write: scratch, outputs, and inputs that some stores to."""
        some = {view.buffer for view in self._plan.outputs} | self._stored.keys()
        written = (n for n, buffer in enumerate(self._plan.buffers) if buffer.kind == "scratch" or n in some)
        return {number: self._memory.buffers[number].marks() for number in written}

    def _resolve(self, drawn: Sequence[torch.Tensor]) -> None:
        """Determine the elements to compare, which sampled programs store, and all programs needed for them."""
        marks = self._marks()
        outputs = {view.buffer: marks[view.buffer] for view in self._computed if view.buffer in marks}
        inputs = {n for n in self._stored if self._plan.buffers[n].kind == "input"}  # whether they change is told too
        outputs |= {number: marks[number] for number in inputs}
        for view in self._computed:
            self._draw_elements(view, outputs)
        for buffer, place in self._conflicts:
            if buffer in marks:
                marks[buffer][(PADDING + place) // self._memory.buffers[buffer].unit(1 << 30)] = True
        owners = [writer[outputs[n]] for n, writer in self.writers.items() if n in outputs]
        for number, programs in enumerate(drawn):
            if self._alone and number == len(self._launches) - 1:
                among = torch.zeros(1 + math.prod(self._launches[number].grid), dtype=torch.bool)
                among[programs + 1] = True
                for place in outputs.keys() & self.writers.keys():
                    outputs[place] |= among[self.writers[place]]
            else:
                self._seek(number, outputs, programs, loads=False, marks=True)
        self.compared = [self._elements(view, outputs) for view in self._computed]
        chosen: list[torch.Tensor] = []
        number = len(self._launches)
        for node in reversed(self._plan.nodes):
            if isinstance(node, Copy) and node.target.buffer in marks and node.source.buffer in marks:
                source, target = (self._memory.buffers[view.buffer] for view in (node.source, node.target))
                copied = elements_of(marks[node.target.buffer], target, node.target)
                shadow_of(marks[node.source.buffer], source, node.source).logical_or_(copied.unsqueeze(-1))
            if not isinstance(node, Launch):
                continue
            number -= 1
            if self._alone and number == len(self._launches) - 1:
                programs = torch.unique(torch.cat([drawn[-1], *(owner[owner > 0].long() - 1 for owner in owners)]))
            else:
                programs = self._seek(number, marks, None, loads=False, marks=False)
            if number:
                self._seek(number, marks, programs, loads=True, marks=True)
            chosen.append(programs)
        self.chosen = chosen[::-1]

    def _draw_elements(self, view: View, marks: dict[int, torch.Tensor]) -> None:
        """Mark the last element of an output and random ones."""
        if view.buffer not in marks or not view.elements:
            return
        numbers = torch.randint(view.elements, (ELEMENTS,), generator=self._generator).tolist()
        unit = self._memory.buffers[view.buffer].unit(1 << 30)
        for number in (*numbers, view.elements - 1):
            offset, rest = view.offset, number
            for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
                offset, rest = offset + rest % size * stride, rest // size
            first = PADDING + offset * view.item_bytes
            marks[view.buffer][first // unit : -(-(first + view.item_bytes) // unit)] = True
        self._mark_unstored(view, marks[view.buffer], unit)

    def _mark_unstored(self, view: View, marks: torch.Tensor, unit: int) -> None:
        """Mark elements that no launch stores, for which nothing has to be executed: where most of an output is zero,
        few of them would tell nothing."""
        offsets = view.offset + crossings(positions(view.shape, MOST_TOLD, self._generator), view.strides)
        first = (PADDING + offsets * view.item_bytes) // unit
        if (stored := self._stored.get(view.buffer)) is not None:
            first = first[~stored[first]]
        for part in range(max(1, view.item_bytes // unit)):
            marks[first + part] = True

    def _elements(self, view: View, marks: dict[int, torch.Tensor]) -> torch.Tensor:
        """Numbers, in row-major order, of the marked elements of an output."""
        if view.buffer not in marks or not view.elements:
            return torch.zeros(0, dtype=torch.int64)
        element_marks = elements_of(marks[view.buffer], self._memory.buffers[view.buffer], view)
        return element_marks.reshape(-1).nonzero().squeeze(1)

    def told(self, output: int) -> torch.Tensor:
        """The elements to compare with the reference: of very many, a share along each axis of every program's tile."""
        numbers, view, spans = self.compared[output], self._computed[output], self._spans[output]
        long = [axis for axis, span in enumerate(spans) if span > 1]
        share = (MOST_TOLD / max(1, numbers.numel())) ** (1 / max(1, len(long)))
        if share >= 1:
            return numbers
        where = np.unravel_index(numbers.numpy(), view.shape)  # torch's own imports sympy, in every child anew
        kept = torch.ones(numbers.numel(), dtype=torch.bool)
        for axis in long:
            kept &= (torch.rand(view.shape[axis], generator=self._generator) < max(share, 1 / spans[axis]))[where[axis]]
        return numbers[kept]

    def _span(self, view: View) -> tuple[int, ...]:
        """Number of elements of an output that one program writes along each axis; the whole size if unknown."""
        buffer = self._memory.buffers[view.buffer]
        if buffer.writer is None or not view.elements:
            return view.shape
        times, start = view.item_bytes // buffer.unit(1 << 30), PADDING + view.offset * view.item_bytes
        strides = [stride * max(1, times) for stride in view.strides]
        writer = buffer.writer.as_strided(view.shape, strides, start // buffer.unit(1 << 30))
        middle = writer[tuple(size // 2 for size in view.shape)]
        return tuple(axis.unique().numel() for axis in (writer == middle).nonzero(as_tuple=True))

    # --- those, with data -----------------------------------------------------------------------------------------

    def run(self, memory: DeviceMemory, reverse: bool = False) -> Callable[[int, IRModule, Launch], Launched]:
        """Run the chosen programs of each launch, for `run_nodes`."""
        self._ran, self._looked_at = [], []

        def launched(number: int, module: IRModule, node: Launch) -> Launched:
            programs = self.chosen[number]
            seed = self._generator.initial_seed()
            few = programs_with_lines(programs, seed)
            self._ran.append(Counter(module, memory, math.prod(node.grid), footprints=few, seed=seed))
            self._looked_at.append(few)
            if not programs.numel():
                return Launched()
            return launch(
                module, node.grid, node.args, memory, programs=programs, deadline=self._deadline, seed=seed + number,
                observer=self._ran[-1], reverse=reverse,
            )  # fmt: skip

        return launched

    def executed(self) -> list[dict[str, float]]:
        """Mean work of programs:

        the survey's, times the ratio of executed to surveyed work of the programs that ran.
        """
        by_launch = []
        for surveyed, ran, programs, few in zip(self._surveyed, self._ran, self.chosen, self._looked_at, strict=True):
            means = means_of(surveyed)
            for name, amounts in ran.by_program.items() if programs.numel() else ():
                did, surveyed_sum = (float(counts[programs].sum()) for counts in (amounts, surveyed.by_program[name]))
                mean = did / programs.numel() if surveyed_sum == 0 else means.get(name, 0.0) * did / surveyed_sum
                means[name] = max(mean, means.get(name, 0.0))
            for name, amount in most_of(ran).items():
                means[name] = max(amount, means.get(name, 0.0))
            by_launch.append(means | touched(ran, few))
        return by_launch


def seconds_of(module: IRModule, programs: int, moved: _Amount, flops: _Amount, iterations: _Amount) -> _Amount:
    """Estimated time of a program, of a launch of so many, that moves so many bytes."""
    each = ITERATION_S / min(programs, chunk_size(traits_of(module)))
    return moved / BYTES_PER_S + flops / FLOPS_PER_S + (1 + iterations) * each


def _computed(plan: Plan, output: View) -> View:
    """The view whose elements a copy after the last launch puts into an output; else the output itself."""
    for node in reversed(plan.nodes):
        if isinstance(node, Copy) and node.target == output:
            return node.source
        if isinstance(node, Launch):
            break
    return output
