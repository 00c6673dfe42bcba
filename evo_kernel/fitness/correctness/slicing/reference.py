"""What chosen elements of a task's outputs must be, at a small part of the cost of all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness.error_bounds import RECIPE, Change, Expected, expect_by
from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.cover import cover
from evo_kernel.fitness.correctness.slicing.program import Program, Slicer
from evo_kernel.fitness.correctness.slicing.regions import Region
from evo_kernel.fitness.correctness.slicing.rules import is_known
from evo_kernel.fitness.correctness.slicing.tracing import Graph, NotSliceable, TraceValue, trace
from evo_kernel.tasks.task import Input, Task, as_float64

REGIONS = 192
"""At most so many of an output: each costs its own run of a program."""
ASKED = 1 << 20
"""At most so many elements of an output are looked through for regions."""
_INSTRUCTION_S = 20e-6
_ELEMENT_S = 1.2e-9  # at least, of a result too large for a cache
_READ = 4.0  # an input's element is copied, widened and moved
_ROUNDED = 2.0  # what an evaluation with rounding costs, in evaluations without
_OWN = 0.5  # what one in the task's own dtypes costs


@dataclass(frozen=True)
class _Part:
    """One region of one output."""

    output: int
    elements: torch.Tensor  # numbers of those that were asked for
    kept: torch.Tensor  # where they are among the region's
    own: Program
    double: Program


@dataclass(frozen=True)
class Sample:
    """Elements whose expected values can be had within the time that was given."""

    elements: tuple[torch.Tensor, ...]  # per output, int64 numbers in a dense tensor of its shape
    seconds: float  # estimated, for `expect`
    left_out: tuple[str, ...]  # per output, why fewer than asked for; empty where all are there
    parts: tuple[_Part, ...]


class SlicedReference:
    """A task's reference on these inputs (on the CPU, as drawn), of which elements can be had without the others."""

    def __init__(self, task: Task, inputs: Sequence[Input]) -> None:
        self._task, self._inputs = task, inputs
        self._slicer = Slicer(inputs)
        self._has_read = False  # values of integer inputs, while it was traced

    def renewed(self, inputs: Sequence[Input]) -> SlicedReference:
        """The same for other inputs of the same case; the reference is looked at again only where it must be."""
        made = SlicedReference(self._task, inputs)
        made._has_read = self._has_read
        if not self.fault and (not self._has_read or all(map(_same_integers, self._inputs, inputs))):
            made._own, made._double = self._own, self._double
        return made

    @cached_property
    def fault(self) -> str:
        """Why only the whole reference can be had; empty where slices can. It is found out on the first call."""
        try:
            if len(self._own.outputs) != len(self._double.outputs):
                return "it returns another number of outputs in float64"
            for number, output in enumerate(self._own.outputs):
                if math.prod(output.shape):
                    self.programs(number, tuple(range(size - 1, size) for size in output.shape))
        except NotSliceable as error:
            return str(error)
        return ""

    @cached_property
    def _own(self) -> Graph:
        return self._traced(self._inputs)

    @cached_property
    def _double(self) -> Graph:
        metas = [_meta(value) for value in self._inputs]
        return self._traced([as_float64(value) for value in metas])

    def _traced(self, inputs: Sequence[Input]) -> Graph:
        def read(value: TraceValue) -> torch.Tensor:
            self._has_read = True
            return self._slicer.known(value)

        return trace(self._task.outputs, inputs, read, is_known)

    @cached_property
    def whole_seconds(self) -> float:
        """About what `expect` of the whole reference costs here; infinite where it cannot be told."""
        try:
            outputs = enumerate(self._own.outputs)
            return sum(self.seconds(*self.programs(number, regions.everything(own.shape))) for number, own in outputs)
        except NotSliceable:
            return math.inf

    def sample(self, elements: Sequence[torch.Tensor], seconds: float, generator: np.random.Generator) -> Sample:
        """As many of these elements as `expect` can have within this time, chosen at random.

        `elements`: per output, the int64 numbers (in a dense tensor of its shape) of those whose values are there to be
        compared. Raises NotSliceable.
        """
        if self.fault:
            raise NotSliceable(self.fault)
        if len(elements) != len(self._own.outputs):
            raise ValueError(f"elements of {len(elements)} outputs, where there are {len(self._own.outputs)}")
        rising = [self._some(asked, generator) for asked in elements]
        return _Sampling(self, seconds, generator).of(rising)

    def _some(self, asked: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        """The elements, each once and rising; of very many those in one random stretch, which has whole rows in it."""
        start = int(generator.integers(max(1, asked.numel() - ASKED + 1)))
        return torch.from_numpy(np.unique(np.sort(asked.numpy())[start : start + ASKED]))

    def expect(self, sample: Sample) -> tuple[Expected, ...]:
        """What `expect` says of these elements; per output tensors of one dimension, in the sample's order.

        Raises TaskError where the operations of the reference fail on slices.
        """
        return tuple(self._expected(output, sample) for output in range(self.outputs))

    def _expected(self, output: int, sample: Sample) -> Expected:
        """Of one output: how often the reference runs depends on how many elements there are."""
        parts = [part for part in sample.parts if part.output == output]
        floating = [v for v in self._inputs if isinstance(v, torch.Tensor) and v.is_floating_point()]

        def run(change: Change) -> list[torch.Tensor]:
            made = change(floating[0].new_empty(0)) if floating else None
            is_own = not isinstance(made, torch.Tensor) or made.dtype == floating[0].dtype
            dtype = (self._own if is_own else self._double).outputs[output].dtype
            found = [self._run(part.own if is_own else part.double, change).flatten()[part.kept] for part in parts]
            return [torch.cat(found) if found else torch.empty(0, dtype=dtype)]

        return expect_by(run, self._inputs, self._task.tolerance.precision)[0]

    def _run(self, program: Program, change: Change) -> torch.Tensor:
        try:
            pieces = {}
            for number, region in program.reads.items():
                whole = self._inputs[number]
                assert isinstance(whole, torch.Tensor)
                pieces[number] = change(regions.take(whole, region))
            return program.run(pieces)
        except Exception as error:  # the reference's own operations, on slices that they may not take
            raise TaskError(f"{self._task.path}: part of the reference failed: {error}") from error

    def programs(self, output: int, region: Region) -> tuple[Program, Program]:
        """For a region of an output: in the task's own dtypes and in float64. Raises NotSliceable."""
        return self._slicer.program(self._own.outputs[output], region), self._slicer.program(
            self._double.outputs[output], region
        )

    @property
    def outputs(self) -> int:
        return len(self._own.outputs)

    def shape(self, output: int) -> tuple[int, ...]:
        return self._own.outputs[output].shape

    def seconds(self, own: Program, double: Program, few: bool = False) -> float:
        """About what `expect` takes for a region, in which many elements are asked for or few."""
        runs = 2 + (RECIPE.patterns if few else 1) + _ROUNDED * (RECIPE.rounded_patterns if few else 1)
        of_own = 2 if self._task.tolerance.precision == "tf32" else 1
        return of_own * _run_seconds(own, _OWN) + runs * _run_seconds(double, 1.0)


class _Sampling:
    """One choice of elements: regions of the outputs in turn, until the time is spent."""

    def __init__(self, reference: SlicedReference, seconds: float, generator: np.random.Generator) -> None:
        self._reference, self._left, self._generator = reference, seconds, generator
        self._seconds = seconds
        self._parts: list[_Part] = []
        self._leasts: dict[int, float] = {}  # by output
        self._rates: dict[int, float] = {}  # by output, elements a second at most

    def of(self, elements: Sequence[torch.Tensor]) -> Sample:
        shapes = [self._reference.shape(output) for output in range(len(elements))]
        waiting = [
            self._ordered(cover(asked, shape, REGIONS, self._generator))
            for asked, shape in zip(elements, shapes, strict=True)
        ]
        faults = [""] * len(elements)
        while any(waiting) and self._left > 0:
            for output in self._generator.permutation(len(elements)).tolist():
                if waiting[output] and self._left > 0:
                    each, region = self._left / sum(map(len, waiting)), waiting[output].pop()
                    # No more time for what is always to be read than for the rest.
                    share = min(self._left, max(each, 2 * self._least(output, region)))
                    faults[output] = self._add(output, region, elements[output], share) or faults[output]
        return Sample(
            elements=tuple(self._chosen(output) for output in range(len(elements))),
            seconds=self._seconds - self._left,
            left_out=tuple(
                fault or ("the time was spent" if left else "") for fault, left in zip(faults, waiting, strict=True)
            ),
            parts=tuple(self._parts),
        )

    def _ordered(self, waiting: Sequence[Region]) -> list[Region]:
        """In random order, larger ones sooner the last (Efraimidis and Spirakis, IPL 97, 2006)."""
        keys = self._generator.random(len(waiting)) ** (1 / np.array([regions.count(region) for region in waiting]))
        return [waiting[place] for place in np.argsort(keys)]

    def _least(self, output: int, region: Region) -> float:
        """Seconds for the element in the middle of the first region of an output."""
        if output not in self._leasts:
            middle = (range(len(index) // 2, len(index) // 2 + 1) for index in region)
            one = tuple(regions.chosen(index, place) for index, place in zip(region, middle, strict=True))
            self._leasts[output] = self._reference.seconds(*self._reference.programs(output, one))
        return self._leasts[output]

    def _chosen(self, output: int) -> torch.Tensor:
        found = [part.elements for part in self._parts if part.output == output]
        return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)

    def _add(self, output: int, region: Region, asked: torch.Tensor, share: float) -> str:
        """Take the region into the sample, or a part of it that takes its share of the time; else say why not."""
        began, before = time.thread_time(), math.inf
        few = asked.numel() < RECIPE.many_outputs
        if (foreseen := regions.count(region) / self._rates.get(output, math.inf)) > share:
            region = self._smaller(region, share / foreseen)
        while True:
            own, double = self._reference.programs(output, region)
            cost = self._reference.seconds(own, double, few)
            self._rates[output] = max(self._rates.get(output, 0.0), regions.count(region) / cost)
            is_least = regions.count(region) == 1 or cost > 0.9 * before
            if cost <= share or (is_least and cost <= self._left):
                break
            if is_least:
                self._left -= time.thread_time() - began
                return f"{regions.count(region)} of its elements would take {cost:.2g} s"
            before, region = cost, self._smaller(region, share / cost)
        numbers = regions.flat_of(region, self._reference.shape(output))
        kept = _found(numbers, asked)
        self._parts.append(_Part(output, numbers[kept], kept, own, double))
        self._left -= cost + time.thread_time() - began
        return ""

    def _smaller(self, region: Region, share: float) -> Region:
        """About this share of the region, at random: the same share of every index set."""
        longer = sum(len(index) > 1 for index in region)
        each = min(0.7, max(0.1, 0.9 * share ** (1 / max(1, longer))))
        parts = (
            np.sort(self._generator.permutation(len(index))[: max(1, int(each * len(index)))]).tolist()
            for index in region
        )
        return tuple(regions.chosen(index, regions.index_of(part)) for index, part in zip(region, parts, strict=True))


def _found(numbers: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Places of numbers that are among others, which rise. By numpy, which waits for no other threads."""
    places = np.searchsorted(among.numpy(), numbers.numpy()).clip(max=among.numel() - 1)
    return torch.from_numpy(np.flatnonzero(among.numpy()[places] == numbers.numpy()))


def _run_seconds(program: Program, cost: float) -> float:
    """`cost`: of this dtype, in that of float64."""
    product, element = _rates()
    read = sum(map(regions.count, program.reads.values()))
    return (
        cost * (program.flops * product + (program.elements + _READ * read) * element) + len(program) * _INSTRUCTION_S
    )


@cache
def _rates() -> tuple[float, float]:
    """Seconds of float64 that this machine takes: an operation of a product of matrices, and an element of anything."""
    side, amount = 256, 1 << 14  # so few elements are one core's work, and stay in its cache
    square, line = torch.ones(side, side).double(), torch.rand(amount).double()
    product, exponential, sums = (_shortest(run) for run in (lambda: square @ square, line.exp, lambda: line + line))
    return product / (2.0 * side**3), max(_ELEMENT_S, (exponential + 3 * sums) / (4 * amount))


def _shortest(run: Callable[[], object]) -> float:
    """Of many runs the shortest, by this thread's clock: others may use the machine's cores at the same time."""
    taken = []
    for _ in range(24):
        began = time.thread_time()
        run()
        taken.append(time.thread_time() - began)
    return min(taken)


def _meta(value: Input) -> Input:
    """Of a tensor no more than shape, strides and dtype; integers as they are."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _same_integers(one: Input, other: Input) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.is_floating_point() or torch.equal(one, other)
    return not isinstance(one, torch.Tensor) and one == other
