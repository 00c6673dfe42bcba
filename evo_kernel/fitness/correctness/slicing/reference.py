"""Expected values of chosen output elements, at a small part of the cost of the whole reference."""

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
from evo_kernel.fitness.correctness.selections import NAMES
from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.program import Program, Slicer
from evo_kernel.fitness.correctness.slicing.regions import Region, cover
from evo_kernel.fitness.correctness.slicing.rules import is_known
from evo_kernel.fitness.correctness.slicing.tracing import NotSliceable, TraceValue, trace
from evo_kernel.tasks.task import Input, Task, as_float64

REGIONS = 192
"""Maximal regions per output: each runs its own program."""
ASKED = 1 << 20
"""Maximal elements of an output that are searched for regions."""
FEW = 32
"""Positions along an axis that tell what the others are like."""
_PIECES_BYTES = 256 << 20
"""Gathered regions of inputs that are kept for the runs of one `expect`."""
_INSTRUCTION_S = 20e-6
_ELEMENT_S = 1.2e-9  # at least, for a result too large for a cache
_READ = 4.0  # reading an input's element: copied, widened and moved
_ROUNDED = 2.0  # cost of an evaluation with rounding, relative to one without
_SAME = 1e-6  # error of slices in float64, relative to the largest element, at most
_OWN = 0.5  # cost of one in the task's own dtypes


@dataclass(frozen=True)
class _Part:
    """One region of one output."""

    output: int
    elements: torch.Tensor  # numbers of the requested elements
    kept: torch.Tensor  # their positions in the region
    own: Program
    double: Program


@dataclass(frozen=True)
class Sample:
    """Elements whose expected values can be computed within the given time."""

    elements: tuple[torch.Tensor, ...]  # per output, int64 numbers in a dense tensor of its shape
    parts: tuple[_Part, ...]
    few: bool  # along an axis of an output, less than half of the positions asked for, and less than FEW


class SlicedReference:
    """A task's reference for given inputs (on the CPU), of which chosen elements can be computed."""

    def __init__(self, task: Task, inputs: Sequence[Input], refused: str = "") -> None:
        """`refused`: why slices of this task's reference may not be used, if so."""
        self._task, self._inputs, self._refused = task, inputs, refused
        self._slicer = Slicer(inputs)

    @cached_property
    def fault(self) -> str:
        """Why slices are impossible for this reference; empty if they are possible. Determined on the first call."""
        if self._refused:
            return self._refused
        try:
            if len(self._own) != len(self._double):
                return "it returns another number of outputs in float64"
            for number, output in enumerate(self._own):
                if math.prod(output.shape):
                    self.programs(number, tuple(range(size - 1, size) for size in output.shape))
        except NotSliceable as error:
            return str(error)
        return ""

    def wrong(self) -> str:
        """Why slices of all outputs are not what the whole reference gives; empty if they are, or there are none.

        Not all of PyTorch's decompositions compute what its operations do: multilabel_margin_loss is one.
        """
        try:
            every = [torch.arange(math.prod(output.shape)) for output in self._own]
            sample = self.sample(every, math.inf, np.random.default_rng(0))
            found, whole = self.expect(sample), self._task.truth(*self._inputs)
        except (NotSliceable, TaskError):  # a faulty reference also fails as a whole
            return ""
        for part, numbers, values in zip(found, sample.elements, whole, strict=True):
            wanted = values.flatten()[numbers].double()
            bound = _SAME * float(torch.where(wanted.isfinite(), wanted, 0.0).abs().max()) if len(wanted) else 0.0
            if not torch.allclose(part.truth.double(), wanted, rtol=0.0, atol=bound, equal_nan=True):
                return "PyTorch's decomposition of an operation gives other values than the operation"
        return ""

    @cached_property
    def _own(self) -> tuple[TraceValue, ...]:
        return self._traced(self._inputs)

    @cached_property
    def _double(self) -> tuple[TraceValue, ...]:
        metas = [_meta(value) for value in self._inputs]
        return self._traced([as_float64(value) for value in metas])

    def _traced(self, inputs: Sequence[Input]) -> tuple[TraceValue, ...]:
        return trace(self._task.outputs, inputs, self._slicer.known, is_known)

    @cached_property
    def may_tie(self) -> bool:
        """Whether integers of an output come from a selection, among equal values or among such as errors decide."""
        seen = dict.fromkeys(value.node for value in self._own if not value.dtype.is_floating_point)
        waiting = list(seen)
        while waiting:
            before = [value.node for value in waiting.pop().values if value.node not in seen]
            seen |= dict.fromkeys(before)
            waiting += before
        return any(node.func is not None and node.name in NAMES for node in seen)

    @cached_property
    def whole_seconds(self) -> float:
        """Estimated time of `expect` for the whole reference; infinite if unknown."""
        try:
            outputs = enumerate(self._own)
            return sum(self.seconds(*self.programs(number, regions.everything(own.shape))) for number, own in outputs)
        except NotSliceable:
            return math.inf

    def sample(self, elements: Sequence[torch.Tensor], seconds: float, generator: np.random.Generator) -> Sample:
        """As many of these elements as `expect` can compute within this time, chosen at random.

        `elements`: per output, int64 numbers (in a dense tensor of its shape) of the elements to choose from. Raises
        NotSliceable.
        """
        if self.fault:
            raise NotSliceable(self.fault)
        if len(elements) != len(self._own):
            raise ValueError(f"elements of {len(elements)} outputs, where there are {len(self._own)}")
        rising = [self._some(asked, generator) for asked in elements]
        return _Sampling(self, seconds, generator).of(rising)

    def _some(self, requested: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        """Distinct elements in ascending order; of very many, those in a random contiguous range, which contains whole
        rows."""
        start = int(generator.integers(max(1, requested.numel() - ASKED + 1)))
        rising = np.sort(requested.numpy())[start : start + ASKED]
        return torch.from_numpy(rising[np.diff(rising, prepend=rising[:1] - 1) > 0])  # np.unique takes long

    def expect(self, sample: Sample, is_nominal: bool = True) -> tuple[Expected, ...]:
        """Expected values and bounds of these elements; per output one-dimensional tensors in the sample's order.

        Raises TaskError if the reference's operations fail on slices.
        """
        return tuple(self._expected(output, sample, is_nominal) for output in range(len(self._own)))

    def _expected(self, output: int, sample: Sample, is_nominal: bool) -> Expected:
        """For one output: the number of runs depends on its number of elements."""
        parts = [part for part in sample.parts if part.output == output]
        floating = [v for v in self._inputs if isinstance(v, torch.Tensor) and v.is_floating_point()]
        pieces = _Pieces(self._inputs)

        def run(change: Change) -> list[torch.Tensor]:
            probe = change(floating[0].new_empty(0)) if floating else None
            is_own = not isinstance(probe, torch.Tensor) or probe.dtype == floating[0].dtype
            dtype = (self._own if is_own else self._double)[output].dtype
            programs = ((part.own if is_own else part.double, part.kept) for part in parts)
            results = [self._run(program, change, pieces).flatten()[kept] for program, kept in programs]
            return [torch.cat(results) if results else torch.empty(0, dtype=dtype)]

        return expect_by(run, self._inputs, self._task.tolerance.precision, is_nominal=is_nominal, is_whole=False)[0]

    def _run(self, program: Program, change: Change, pieces: _Pieces) -> torch.Tensor:
        try:
            read = {}
            for number, region in program.reads.items():
                piece = change(pieces.of(number, region))
                assert isinstance(piece, torch.Tensor)
                read[number] = piece
            return program.run(read)
        except Exception as error:  # an operation of the reference may reject slices
            raise TaskError(f"{self._task.path}: part of the reference failed: {error}") from error

    def programs(self, output: int, region: Region) -> tuple[Program, Program]:
        """Programs for a region of an output: in the task's own dtypes and in float64. Raises NotSliceable."""
        return self._slicer.program(self._own[output], region), self._slicer.program(self._double[output], region)

    def shape(self, output: int) -> tuple[int, ...]:
        return self._own[output].shape

    def seconds(self, own: Program, double: Program, few: bool = False) -> float:
        """Estimated time of `expect` for a region with many or few requested elements."""
        runs = 2 + (RECIPE.patterns if few else 1) + _ROUNDED * (RECIPE.rounded_patterns if few else 1)
        of_own = 2 if self._task.tolerance.precision == "tf32" else 1
        return of_own * _run_seconds(own, _OWN) + runs * _run_seconds(double, 1.0)


class _Pieces:
    """Regions of inputs, each gathered once for all runs over it, as far as memory allows."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs, self._left = inputs, _PIECES_BYTES
        self._kept: dict[tuple[object, ...], torch.Tensor] = {}

    def of(self, number: int, region: Region) -> torch.Tensor:
        """A region of an input, not to be changed."""
        key = (number, *regions.key_of(region))
        if (known := self._kept.get(key)) is not None:
            return known
        whole = self._inputs[number]
        assert isinstance(whole, torch.Tensor)
        piece = regions.take(whole, region)
        is_view = piece.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        if not is_view and piece.nbytes <= self._left:
            self._left -= piece.nbytes
            self._kept[key] = piece
        return piece


class _Sampling:
    """Chooses elements: adds regions of the outputs in turn until the time is spent."""

    def __init__(self, reference: SlicedReference, seconds: float, generator: np.random.Generator) -> None:
        self._reference, self._left, self._generator = reference, seconds, generator
        self._parts: list[_Part] = []
        self._leasts: dict[int, float] = {}  # by output
        self._rates: dict[int, float] = {}  # per output, maximal elements per second

    def of(self, elements: Sequence[torch.Tensor]) -> Sample:
        shapes = [self._reference.shape(output) for output in range(len(elements))]
        waiting = [
            self._ordered(cover(asked, shape, REGIONS, self._generator))
            for asked, shape in zip(elements, shapes, strict=True)
        ]
        while any(waiting) and self._left > 0:
            for output in self._generator.permutation(len(elements)).tolist():
                if waiting[output] and self._left > 0:
                    each, region = self._left / sum(map(len, waiting)), waiting[output].pop()
                    # The mandatory reads get at most half of the time.
                    share = min(self._left, max(each, 2 * self._least(output, region)))
                    self._add(output, region, elements[output], share)
        had = tuple(map(self._chosen, range(len(elements))))
        few = any(map(_is_few, had, elements, shapes))
        return Sample(had, tuple(self._parts), few)

    def _ordered(self, waiting: Sequence[Region]) -> list[Region]:
        """In random order, weighted by size (Efraimidis and Spirakis, IPL 97, 2006)."""
        keys = self._generator.random(len(waiting)) ** (1 / np.array([regions.count(region) for region in waiting]))
        return [waiting[place] for place in np.argsort(keys)]

    def _least(self, output: int, region: Region) -> float:
        """Seconds for the middle element of the first region of an output."""
        if output not in self._leasts:
            middle = (range(len(index) // 2, len(index) // 2 + 1) for index in region)
            element = tuple(regions.chosen(index, place) for index, place in zip(region, middle, strict=True))
            self._leasts[output] = self._reference.seconds(*self._reference.programs(output, element))
        return self._leasts[output]

    def _chosen(self, output: int) -> torch.Tensor:
        chosen = [part.elements for part in self._parts if part.output == output]
        return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)

    def _add(self, output: int, region: Region, requested: torch.Tensor, share: float) -> None:
        """Add the region, or a part that takes its share of the time, unless that is impossible."""
        began, before = time.thread_time(), math.inf
        few = requested.numel() < RECIPE.many_outputs
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
                return
            before, region = cost, self._smaller(region, share / cost)
        numbers = regions.flat_of(region, self._reference.shape(output))
        kept = _found(numbers, requested)
        self._parts.append(_Part(output, numbers[kept], kept, own, double))
        self._left -= cost + time.thread_time() - began

    def _smaller(self, region: Region, share: float) -> Region:
        """A random part of the region of about this share: the same share of every index set."""
        longer = sum(len(index) > 1 for index in region)
        each = min(0.7, max(0.1, 0.9 * share ** (1 / max(1, longer))))
        parts = (
            np.sort(self._generator.permutation(len(index))[: max(1, int(each * len(index)))]).tolist()
            for index in region
        )
        return tuple(regions.chosen(index, regions.index_of(part)) for index, part in zip(region, parts, strict=True))


def _is_few(had: torch.Tensor, asked: torch.Tensor, shape: Sequence[int]) -> bool:
    """Whether elements lie at few of the positions along an axis at which those asked for lie."""
    if not shape:
        return False
    places = (np.unravel_index(some.numpy(), tuple(shape)) for some in (had, asked))
    counts = ([np.count_nonzero(np.bincount(at)) for at in both] for both in zip(*places, strict=True))
    return any(one < min(FEW, every / 2) for one, every in counts)


def _found(numbers: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Positions of `numbers` that are in the ascending `among`. numpy, which does not wait for other threads."""
    places = np.searchsorted(among.numpy(), numbers.numpy()).clip(max=among.numel() - 1)
    return torch.from_numpy(np.flatnonzero(among.numpy()[places] == numbers.numpy()))


def _run_seconds(program: Program, cost: float) -> float:
    """Estimated seconds of one run. `cost`: relative to float64."""
    product, element = _rates()
    read = sum(map(regions.count, program.reads.values()))
    return (
        cost * (program.flops * product + (program.elements + _READ * read) * element) + len(program) * _INSTRUCTION_S
    )


@cache
def _rates() -> tuple[float, float]:
    """Seconds per float64 operation on this machine: of a matrix product, and per element of other operations."""
    side, amount = 256, 1 << 14  # so few elements run on one core, in its cache
    square, line = torch.ones(side, side).double(), torch.rand(amount).double()
    product, exponential, sums = _shortest(lambda: square @ square, line.exp, lambda: line + line)
    return product / (2.0 * side**3), max(_ELEMENT_S, (exponential + 3 * sums) / (4 * amount))


def _shortest(*runs: Callable[[], object]) -> list[float]:
    """The shortest of many times of each, by this thread's CPU clock: other processes may use the cores. With pauses: a
    machine's owner may take the core for milliseconds."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(4):
        for run, times in zip(runs, taken, strict=True):
            for _ in range(6):
                began = time.thread_time()
                run()
                times.append(time.thread_time() - began)
        time.sleep(0.005)
    return [min(times) for times in taken]


def _meta(value: Input) -> Input:
    """Shape, strides and dtype of a tensor; integers unchanged."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
