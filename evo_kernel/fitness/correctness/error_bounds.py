"""Computes expected outputs in float64, and the error that an honest kernel in the task's dtypes may have.

An honest kernel's error on these inputs is estimated as the largest of
    own          the error of the task's reference, run eagerly in the task's own dtypes (also with inputs, and with the
                 operands of products alone, rounded to tf32, and truncated half-way there, if the task's precision
                 allows tf32),
    sensitivity  the change of the float64 reference when every floating-point input changes by `perturbation` units of
                 rounding: the error of a backward-stable algorithm (Higham, Accuracy and Stability of Numerical
                 Algorithms, 2nd ed., section 1.5), so that exp2 in place of exp is not an error; in several patterns
                 of signs if there are few outputs, or few elements at all,
    rounding     its change when the result of every operation inside it is rounded (rounding.py), which matters for
                 intermediate results of zero variance and sums that are normalised afterwards, and
    floor        one rounding of the output (of its norm, that of the largest element and typical ones of all), and the
                 growth of a sum's error with the square root of its length (ibid., section 4.2: the statistical
                 estimate), in case the reference is exact by chance.

An output for which the reference converts its inputs to float64, and computes in nothing else, is moved and rounded by
units of float64.

Of an output of integers, such as a quantised tensor, it is how many elements differ in these computations, and by how
much. Where the reference rounds to a narrow dtype first, most may: then it is how many are neither what the reference
gives in its own dtypes nor what it gives in float64, since an element may be either. Beside these, each that is next to
a tie by what is rounded inside the reference may differ by as much as there; where ties decide many, no others.

Operands of TF32 that are truncated make the errors of all terms of one sign: where the terms are, too, they add up, to
many times what rounding makes, and allow as much of operands with fewer digits, whose errors do not add up. All that
such errors have in common is a factor; so without one, errors have a bound of their own.

An element much smaller than the largest of its output may have the absolute error allowed for that one. So beside the
largest norm of an honest error, that of the smaller elements is told, and of the smaller ones of these. And a few
elements may have honest errors far above all others, such as steps of a floor, or the -1 of a gradient: so beside the
norm of all errors, that of the smallest errors is told, for some shares of the elements.

Of an output of 8-bit floats, these bounds would allow half of the largest element. There it is also how many elements
are rounded to other numbers, and by how much they differ beyond the next one.

Some instructions take denormal operands for zeros (rsqrt.approx.ftz, which torch.compile's kernels have too): an
element that this changes, such as 1 / sqrt(x), is not compared.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness.rounding import (
    Cancelling,
    ComputedDtypes,
    Contracted,
    NarrowDtypes,
    Narrowed,
    Rounding,
    flat_of,
    signs,
    unnoticed,
)
from evo_kernel.fitness.correctness.selections import OtherOrder, Selection, Selections
from evo_kernel.fitness.marks import all_of, any_of
from evo_kernel.fitness.plan.torch_operations import searching
from evo_kernel.tasks.task import Input, Task, as_float64

_AT_ONCE, AT_ONCE_ON_CPU = 1 << 22, 1 << 17
"""Elements that are moved, or looked at, at a time. On a CPU a megabyte of float64, which stays in its cache: memory
for large intermediate results costs more there than the arithmetic."""


@dataclass(frozen=True)
class Recipe:
    """Constants of the estimate."""

    perturbation: float = 2.0  # roundings of float32 (float64 for float64 inputs)
    growth: float = 0.25  # of a sum's relative error, in roundings, per square root of its length
    cancellation: float = 0.5  # roundings of the result with all inputs positive, for cancellation
    most_cancelled: float = 8.0  # times the largest honest error, and times the square root of an input's elements
    chained: float = 4.0  # times what cancels in each sum by itself, where products are made of products
    rounding: float = 1.0  # roundings of the output in its own dtype, in the worst case
    typical: float = 6**-0.5  # the same in the mean square: errors and mantissas are spread evenly
    patterns: int = 12  # of signs in which inputs are perturbed, if there are fewer outputs than
    many_outputs: int = 64
    small_patterns: int = 6  # the same if inputs and outputs have fewer elements than
    small: int = 1 << 12
    rounded_patterns: int = 4  # the same for roundings inside the reference; 0: none
    rounded_small: int = 1 << 16  # the same for them, unless inputs are nominal
    undecided_patterns: int = 16  # the same to find integers next to ties: all combinations of four roundings
    narrow_elements: int = 1 << 18  # at most, of which narrow roundings take several patterns until an integer differs


RECIPE = Recipe()
UNSURE = 0.01
"""Share of integers that may differ between honest computations; where more do, they decide ties, and must be equal."""
UNSURE_TF32 = 0.1
"""The same where honest computations differ by TF32 operands, and by one at most: then half of them may."""
TIES = 2.0**-14
"""Share of integers that lie next to a tie of a narrow dtype to which the reference rounds first, as a sum of float32
may fall on either side."""
_EIGHT_BITS = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"
EIGHT_BITS = frozenset(dtype for name in _EIGHT_BITS if (dtype := getattr(torch, name, None)))
SIXTEEN_BITS, NARROW_LEAST = 2.0**-9, 1.0
"""Relative rounding of bfloat16, to which a kernel may round before: an error, and a share of those that are rounded to
other 8-bit floats. And the least number of these."""
LONGEST = 1 << 20
"""Terms that an honest kernel adds one after the other at most: it splits longer sums over lanes and programs."""
LONGEST_ELEMENTWISE = 1 << 10
"""The same of a reference that adds nothing up, as an allowance for its approximations of functions: else it would grow
with the number of elements of a flat tensor."""


@dataclass(frozen=True)
class Expected:
    """Expected values of one output, and the largest error of an honest kernel."""

    truth: torch.Tensor  # float64, or exact integers
    honest: torch.Tensor  # the reference's result in the task's own dtypes
    compared: torch.Tensor  # bool: elements that are compared; see `expect`
    frobenius: float  # of integers: the number of elements that differ
    largest: float
    undecided: torch.Tensor | None = None  # float32: by how much integers next to ties may differ, beside these
    narrow: NarrowBounds | None = None  # of 8-bit floats, beside these
    small: tuple[SmallElements, ...] = ()  # each holds the next; none of 8-bit floats
    selection: Selection | None = None  # of indices
    apart: float | None = None  # where products may be of TF32: the norm of errors, but for a factor common to all
    typical: tuple[float, ...] = ()  # errors by share in TYPICAL, in the root mean square; none of 8-bit floats

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        selection = self.selection
        return (
            self.truth,
            self.honest,
            self.compared,
            *(() if self.undecided is None else (self.undecided,)),
            *((selection.values, selection.rows, selection.errors) if selection else ()),
        )

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Expected:
        """The same with others in place of `tensors`."""
        truth, honest, compared, *selected = tensors
        undecided = None if self.undecided is None else selected.pop(0)
        selection = self.selection and Selection(
            *selected, is_open=self.selection.is_open, are_sums=self.selection.are_sums
        )
        return replace(self, truth=truth, honest=honest, compared=compared, undecided=undecided, selection=selection)


@dataclass(frozen=True)
class NarrowBounds:
    """Of an honest kernel's 8-bit floats."""

    others: float  # elements that are rounded to other numbers
    beyond: float  # largest difference beyond the next number

    def of_part(self, share: float) -> NarrowBounds:
        """Of this share of the elements."""
        return NarrowBounds(max(NARROW_LEAST, self.others * share), self.beyond)


TYPICAL = 0.9, 0.99
"""Shares of elements whose errors are the smallest: more than half, which may be next to nothing, as after silu."""
_OF_ONE = 2.0**-16
"""Share of what most elements are that a rounding of 1 may reach: kernels have no expm1, and other forms of tanh."""
SMALLER, LEAST_SMALLER, _MOST_GROUPS = 2.0**-4, 64, 16
"""Smaller elements are at most so large as a share of the others, and so many at least; how often they are divided."""
_DRAWN, _THINNED = 1 << 18, 1 << 14
"""Elements of an output among which small ones are looked for: to gather all of them would take several times as long
as all other comparisons. And those of them that tell typical errors."""


_LEAST_SQUARED = 2.0**-500
"""Norms of smaller numbers are 0 in float64."""


@dataclass(frozen=True)
class SmallElements:
    """Elements of one output of at most some size, but for zeros and what may be flushed to them."""

    limit: float
    share: float  # norm of honest errors, as a share of their own norm; of what they are without cancellation, one
    # rounding in the coarsest dtype, which an honest kernel may give intermediate results
    least: float  # share that is always allowed: other formulas cancel more, such as log(1 + exp(x)) for small elements


_LEAST_SHARE, _MOST_LEAST = 2.0**15, 0.1
"""Norm of the errors of small elements that is always allowed, in roundings, and at most, as a share of theirs."""
_TF32 = 2.0**-11  # relative rounding
_OF_HALF = 0.75
"""Share of the errors of half a truncation: four times that is half more than those of a whole one, and no more than
four times those of rounding where signs differ."""
_NEAR_OVERFLOW = 8.0  # honest errors: so near to the largest number rounding decides about infinity

Change = Callable[[Input], Input]
"""Maps an input, or a part of one, to a copy to compute with; numbers and integers stay as they are."""


def expect(
    task: Task, inputs: Sequence[Input], recipe: Recipe = RECIPE, is_nominal: bool = True
) -> tuple[Expected, ...]:
    """Expected outputs with error bounds. Takes about five to six runs of the reference. Does not modify inputs.

    Elements are not compared that overflow in the task's dtypes only, or that change where denormal inputs are zeros.
    Nor are, unless inputs are nominal, those that finite inputs make NaN (a regime may leave the reference's domain)
    or that follow from which of equal values is selected.
    """
    precision = task.tolerance.precision
    return expect_by(lambda change: task.outputs(*map(change, inputs)), inputs, precision, recipe, is_nominal)


def expect_by(
    run: Callable[[Change], Sequence[torch.Tensor]],
    inputs: Sequence[Input],
    precision: str,
    recipe: Recipe = RECIPE,
    is_nominal: bool = True,
    is_whole: bool = True,
) -> tuple[Expected, ...]:
    """The same for a function `run` that returns the reference's outputs, or some of their elements (`is_whole`), for
    changed inputs.

    Each run's result is measured and freed before the next: inputs may fill half of a GPU's memory.
    """
    if precision == "tf32" and not _may_contract(run):
        precision = "ieee"
    own, selections = _with_selections(run, precision)
    truth = tuple(map(_compact, run(_double)))
    estimates = [_Estimate(*both, precision) for both in zip(truth, own, strict=True)]
    if any(map(_has_denormals, inputs)):
        for estimate, output in zip(estimates, run(_flushed), strict=True):
            estimate.leave_out_changes(output)
    if not is_nominal and all(map(_is_finite, inputs)):
        for estimate in estimates:
            estimate.leave_out_nans()
    if not is_nominal and is_whole:  # parts know no indices
        _leave_out_orders(run, estimates, own, selections)
    _add_result(estimates, own)
    if precision == "tf32":
        _add_result(estimates, run(_as_tf32))
        _add_result(estimates, run(_half_truncated), _OF_HALF)
        _add_contracted(run, estimates)
        _add_tf32_ties(run, estimates, selections, recipe.patterns)
    length = max((max(v.shape, default=1) for v in inputs if isinstance(v, torch.Tensor)), default=1)
    length = min(length, LONGEST)
    few = min(filter(None, (part.numel() for part in own)), default=0) < recipe.many_outputs
    elements = sum(part.numel() for part in (*inputs, *own) if isinstance(part, torch.Tensor))
    # With large inputs a softmax is near 0 or 1 but in a row or two, where one pattern may cancel.
    patterns = recipe.patterns if few else recipe.small_patterns if elements < recipe.small else 1
    dtypes = {value.dtype for value in inputs if isinstance(value, torch.Tensor) and value.is_floating_point()}
    in_doubles = [dtypes != {torch.float64} and one for one in _in_doubles(run, own)]
    unit = max(map(_unit, dtypes), default=_unit(torch.float32))
    kinds = [(wide, [wide == one for one in in_doubles]) for wide in sorted(set(in_doubles))]
    for pattern, (wide, chosen) in itertools.product(range(patterns), kinds):
        move = partial(_moved, units=recipe.perturbation, pattern=pattern, in_doubles=wide)
        _add_result(itertools.compress(estimates, chosen), itertools.compress(run(move), chosen))
    coarse = max([_TF32 * (precision == "tf32"), *(torch.finfo(dtype).eps / 2 for dtype in dtypes)])
    are_few = few or (not is_nominal and elements < recipe.rounded_small)  # rows whose errors do not cancel, by chance
    products, are_simulated = 0, False
    rounded_patterns = range(recipe.rounded_patterns if are_few else min(1, recipe.rounded_patterns))
    for pattern, (wide, chosen) in itertools.product(rounded_patterns, kinds):
        try:
            with Rounding(_unit(torch.float64) if wide else unit, recipe.growth, length, pattern) as seen:
                rounded = run(_double)
        except TaskError:  # it succeeded before: it does not allow the dispatch mode
            continue
        products, are_simulated = seen.products, not seen.unsimulated
        if not seen.sums:  # an axis along which nothing is added up, such as rows of a tall matrix, does not count
            length = min(length, max(LONGEST_ELEMENTWISE, math.ceil(seen.length)))
        _add_result(itertools.compress(estimates, chosen), itertools.compress(rounded, chosen))
        del rounded
    integers = [number for number, part in enumerate(own) if not part.is_floating_point()]
    if integers and any(torch.finfo(dtype).bits < 32 for dtype in dtypes):
        _add_narrow_ties(run, estimates, integers, recipe, recipe.patterns if elements < recipe.narrow_elements else 1)
    if precision == "ieee":  # TF32 decides more of them, a reference that computes in float64 leaves none
        decided = [wide or selection is not None for wide, selection in zip(in_doubles, selections, strict=True)]
        # Twice as far as elsewhere: a kernel may round where the reference does not, as before a reciprocal.
        _add_undecided(run, estimates, decided, 2 * recipe.perturbation * min(unit, _unit(torch.float32)), recipe)
    positive = tuple(run(_positive))
    if products:
        _limit_cancellation(run, estimates, positive, unit, length, recipe, chained=products > 1)
    terms = max((v.numel() for v in inputs if isinstance(v, torch.Tensor)), default=1)
    return tuple(
        replace(
            estimate.expected(
                part,
                length=length,
                terms=terms,
                coarse=coarse,
                precision=precision,
                recipe=recipe,
                are_simulated=are_simulated,
            ),
            selection=selection,
        )
        for estimate, part, selection in zip(estimates, positive, selections, strict=True)
    )


def _limit_cancellation(
    run: Callable[[Change], Sequence[torch.Tensor]],
    estimates: Sequence[_Estimate],
    positive: Sequence[torch.Tensor],
    unit: float,
    length: int,
    recipe: Recipe,
    chained: bool,
) -> None:
    """Limit what cancellation allows to what comes of it in each sum by itself: of products that are made of products,
    such as layers of a network (`chained`), what there is without signs grows with each of them; and what exp makes of
    a sum without signs is another number altogether, which tells nothing of drawn and of small elements."""
    unit = max([unit, *(one.inner for one in estimates)])
    both = list(zip(estimates, positive, strict=True))
    chained = chained and any(one.allows_more(part, unit, recipe) for one, part in both)
    if not chained and not any(one.allows_more_at(part, unit, recipe) for one, part in both):
        return
    try:
        with Cancelling(unit, recipe.growth, length, recipe.cancellation) as seen:
            outputs = run(_double)
    except (TaskError, torch.OutOfMemoryError):  # it does not allow the dispatch mode, or this takes too much
        return
    for estimate, output in zip(estimates, outputs, strict=True):
        if seen.knows:
            estimate.limit_cancellation(output, chained)


def _may_contract(run: Callable[[Change], Sequence[torch.Tensor]]) -> bool:
    """Whether the reference may have products that TF32 is for: it adds something up."""
    try:
        with Selections() as seen:
            run(_copied)
    except TaskError:  # it may not allow the dispatch mode
        return True
    return seen.sums


def _in_doubles(run: Callable[[Change], Sequence[torch.Tensor]], own: Sequence[torch.Tensor]) -> list[bool]:
    """Which outputs the reference converts its inputs to float64 for, and computes in nothing else: so must a
    kernel."""
    if any(part.dtype == torch.float64 for part in own):
        try:
            with ComputedDtypes() as computed:
                outputs = run(unnoticed(_copied))
            wide = [one.dtype == torch.float64 or not one.is_floating_point() for one in outputs]
            return [one and computed.of(output) == {torch.float64} for one, output in zip(wide, outputs, strict=True)]
        except TaskError:  # it succeeded before: it does not allow the dispatch mode
            pass
    return [False] * len(own)


def _with_selections(
    run: Callable[[Change], Sequence[torch.Tensor]], precision: str
) -> tuple[tuple[torch.Tensor, ...], Sequence[Selection | None]]:
    """Outputs in the task's own dtypes, and what each selects from, if it is indices: then they take more runs."""
    with searching(deterministic=True):
        own = tuple(map(_compact, run(_copied)))
    if any(part.element_size() > 1 and not part.is_floating_point() for part in own):
        try:
            outputs, seen = _selecting(run, _copied)
            if any(seen):
                _, truth = _selecting(run, _double)
                changes = (_as_tf32, _half_truncated) if precision == "tf32" else ()
                others = [_selecting(run, change)[1] for change in changes]
                seen = [
                    part and part.with_errors(true, [other[n] for other in others if part.are_sums])
                    for n, (part, true) in enumerate(zip(seen, truth, strict=True))
                ]
            return tuple(map(_compact, outputs)), seen
        except TaskError:  # it succeeded before: it does not allow the dispatch mode
            pass
    return own, [None] * len(own)


def _selecting(
    run: Callable[[Change], Sequence[torch.Tensor]], change: Change
) -> tuple[Sequence[torch.Tensor], Sequence[Selection | None]]:
    """Outputs, and what each selects from."""
    with Selections() as seen:
        outputs = run(change)
    return outputs, [seen.of(output) for output in outputs]


def _leave_out_orders(
    run: Callable[[Change], Sequence[torch.Tensor]],
    estimates: Sequence[_Estimate],
    own: Sequence[torch.Tensor],
    selections: Sequence[Selection | None],
) -> None:
    """Do not compare what is another where equal values are selected in another order, such as how often `topk` chose
    each place. Indices themselves are known to be right."""
    try:
        with OtherOrder() as order:
            outputs = run(_copied)
    except TaskError:  # it may not allow the dispatch mode
        return
    for estimate, mine, other, selection in zip(estimates, own, outputs, selections, strict=True):
        if order.differs and selection is None and not mine.equal(other):
            estimate.leave_out(order.behind(mine, other))


def _add_contracted(run: Callable[[Change], Sequence[torch.Tensor]], estimates: Sequence[_Estimate]) -> None:
    """Add what comes of such operands in products alone, also of those that the reference computes itself: inputs may
    be exact in TF32."""
    try:
        for change, share in ((_as_tf32, 1.0), (_half_truncated, _OF_HALF)):
            with Contracted(change) as products:
                outputs = run(unnoticed(_copied))
            if products.hidden:
                with _without_libraries(), Contracted(change) as products:
                    outputs = run(unnoticed(_copied))
            if not products.any:
                return
            _add_result(estimates, outputs, share)
    except TaskError:  # it succeeded before: it does not allow the dispatch mode
        return


_libraries = threading.Lock()


@contextlib.contextmanager
def _without_libraries() -> Iterator[None]:
    """Layers of recurrent networks are computed by products of their own."""
    with _libraries:  # the flags are the process's
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
                yield
        finally:
            torch._C._set_mkldnn_enabled(before)


def _add_tf32_ties(
    run: Callable[[Change], Sequence[torch.Tensor]],
    estimates: Sequence[_Estimate],
    selections: Sequence[Selection | None],
    patterns: int,
) -> None:
    """Add what integers may be of which few differ so far: of a few, one may be many steps away all the same, where a
    sum cancels. Of indices, where none differs: near values have bounds of their own."""

    def moved(value: Input, pattern: int) -> Input:
        is_rounded = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return _moved(value, _TF32 / 2 / _unit(torch.float32), pattern) if is_rounded else _double(value)

    for pattern in range(patterns):
        few = [
            one.is_integer and (one.has_few_differences if selection is None else not one.has_differed)
            for one, selection in zip(estimates, selections, strict=True)
        ]
        if not any(few):
            return
        for estimate, is_one, output in zip(estimates, few, run(partial(moved, pattern=pattern)), strict=True):
            if is_one:
                estimate.add_result(output)


def _add_narrow_ties(
    run: Callable[[Change], Sequence[torch.Tensor]],
    estimates: Sequence[_Estimate],
    integers: Sequence[int],
    recipe: Recipe,
    patterns: int,
) -> None:
    """Add what integers may be where the reference rounds sums to a narrow dtype first: one next to a tie falls on
    either side. In as many patterns as it takes until one differs."""
    try:
        with NarrowDtypes() as dtypes:
            run(unnoticed(_copied))
        for pattern in range(patterns):
            with Narrowed(dtypes.seen) as narrowed:
                outputs = run(unnoticed(partial(_moved, units=recipe.perturbation, pattern=pattern)))
            if not narrowed.is_alike:
                return
            for number in integers:
                estimates[number].add_result(outputs[number])
            if all(estimates[number].has_differed for number in integers):
                return
    except TaskError:  # it succeeded before: it does not allow the dispatch mode
        return


def _add_undecided(
    run: Callable[[Change], Sequence[torch.Tensor]],
    estimates: Sequence[_Estimate],
    decided: Sequence[bool],
    amount: float,
    recipe: Recipe,
) -> None:
    """Add which integers are next to ties by what is inexact inside the reference, such as a row's largest over 127:
    another honest computation rounds them to the other side. Of what float32 holds ties decide."""
    chosen = [one.is_integer and not known for one, known in zip(estimates, decided, strict=True)]
    try:
        for pattern in range(recipe.undecided_patterns if any(chosen) else 0):
            with Rounding(amount, 0.0, 1, pattern, inexact=True):
                outputs = run(_double)
            for estimate, output in itertools.compress(zip(estimates, outputs, strict=True), chosen):
                estimate.add_undecided(output)
    except TaskError:  # it succeeded before: it does not allow the dispatch mode
        return


class _Estimate:
    """One output and the largest errors of honest computations so far."""

    def __init__(self, truth: torch.Tensor, own: torch.Tensor, precision: str) -> None:
        if truth.shape != own.shape:
            raise TaskError("the reference returns another shape in float64 than in its own dtype")
        self._own, self._truth = own, truth
        self._compared = torch.ones_like(own, dtype=torch.bool)
        self._errors = (0.0, 0.0)
        self._cancelled = (math.inf, math.inf)  # of what cancels in each sum by itself, if it is known
        self._cancelled_at: list[torch.Tensor] = []  # the same of drawn elements, and of groups of small ones
        self._unsure = torch.zeros_like(own, dtype=torch.bool)  # integers that differ
        self._undecided: torch.Tensor | None = None
        self._is_narrow, self._other = own.dtype in EIGHT_BITS, torch.zeros_like(own, dtype=torch.bool)
        self._beyond = 0.0
        self._apart = 0.0 if precision == "tf32" and own.dtype.is_floating_point and not self._is_narrow else None
        self._small_errors: list[float] = []  # by group of small elements
        self._typical_errors: list[float] = []  # by share of elements
        self._neither = 0.0  # most in one computation that are what the reference gives in neither dtype
        ends = [torch.stack(part.double().aminmax()) for (part,) in in_parts(own)] if own.is_floating_point() else []
        self._are_all_finite = not ends or bool(torch.stack(ends).isfinite().all())
        if own.is_floating_point():
            self._truth = truth.double()
            if self._is_narrow:
                self._add_narrow(own)
        if not self._are_all_finite:
            # Finite in float64 but not here: an overflow of this dtype. So is NaN where float64 has an infinity: of the
            # same operations in another order either may come.
            parts = [
                ~(t.isfinite() & ~o.double().isfinite()) & ~(o.isnan() & t.isinf())
                for t, o in in_parts(self._truth, own)
            ]
            self._compared = torch.cat(parts).view(own.shape)

    @property
    def is_integer(self) -> bool:
        return not self._own.is_floating_point()

    @property
    def has_differed(self) -> bool:
        return self._errors[0] > 0

    @property
    def has_few_differences(self) -> bool:
        """Whether the largest of them says little about others; half of what may be unsure is never few."""
        return self._errors[0] < max(1.0, min(8.0, UNSURE / 2 * self._own.numel()))

    def leave_out_changes(self, flushed: torch.Tensor) -> None:
        """Do not compare elements that differ where inputs have zeros in place of denormal numbers."""
        if not self._own.is_floating_point():
            self._compared &= flushed == self._truth
            return
        flushed = flushed.double()  # 8-bit floats are compared with no others
        allowed = _unit(self._own.dtype) * self._truth.abs() + _underflow(self._own.dtype)
        same = (flushed == self._truth) | ((flushed - self._truth).abs() <= allowed)
        self._compared &= same | (flushed.isnan() & self._truth.isnan())
        self._are_all_finite = False  # so that what is not compared is not measured, either

    def leave_out_nans(self) -> None:
        """Do not compare elements that are NaN in float64."""
        nans = self._truth.isnan()
        if bool(any_of(nans)):
            self._compared &= ~nans
            self._are_all_finite = False

    def leave_out(self, places: torch.Tensor) -> None:
        self._compared = self._compared & ~places
        self._are_all_finite = False

    def add_result(self, other: torch.Tensor, share: float = 1.0) -> None:
        """Add the result of another honest computation. `share`: that its errors count beside a common factor."""
        if self._own.is_floating_point():
            if self._is_narrow:
                self._add_narrow(other)
            found = [norm_of_errors(other, self._truth, places) for _, places in self._small]
            self._small_errors = list(map(max, found, self._small_errors or found))
            typical = typical_of(errors_at(other, self._truth, self._drawn))
            self._typical_errors = list(map(max, typical, self._typical_errors or typical))
            if self._apart is not None:
                self._apart = max(self._apart, share * norm_apart(other, self._truth, self._compared))
            frobenius, largest = self._measures(other, self._truth)
            self._errors = (max(self._errors[0], frobenius), max(self._errors[1], largest))
        elif other.dtype == self._own.dtype and bool((differs := other != self._own).any()):
            self._unsure |= differs
            step = (other[differs].double() - self._own[differs].double()).abs().max()
            self._errors = (float(self._unsure.sum()), max(self._errors[1], float(step)))
            self._neither = max(self._neither, float((differs & (other != self._truth)).sum()))

    @property
    def inner(self) -> float:
        """Relative rounding inside a kernel."""
        return min(torch.finfo(self._own.dtype).eps / 2, _unit(torch.float32)) if not self.is_integer else 0.0

    def allows_more(self, positive: torch.Tensor, unit: float, recipe: Recipe) -> bool:
        """Whether cancellation allows much more than honest computations show."""
        if self.is_integer:
            return False
        return self._is_more(self._measures(positive), self._errors, unit, recipe)

    def allows_more_at(self, positive: torch.Tensor, unit: float, recipe: Recipe) -> bool:
        """The same of drawn elements, or of a group of small ones."""
        if self.is_integer:
            return False
        at = [positive.reshape(-1)[places].double().abs().nan_to_num() for places in self._told_at()]
        sizes = [*typical_of(at[0]), *(float(one.norm()) for one in at[1:])]
        return self._is_more(sizes, [*self._typical_errors, *self._small_errors], unit, recipe)

    @staticmethod
    def _is_more(sizes: Sequence[float], errors: Sequence[float], unit: float, recipe: Recipe) -> bool:
        allowed = unit * recipe.cancellation / recipe.chained
        return any(allowed * size > error for size, error in zip(sizes, errors, strict=True))

    def limit_cancellation(self, other: torch.Tensor, chained: bool) -> None:
        if self.is_integer:
            return
        if chained:
            self._cancelled = self._measures(other, self._truth)
        self._cancelled_at = [errors_at(other, self._truth, places) for places in self._told_at()]

    def _told_at(self) -> list[torch.Tensor]:
        """Places of the drawn elements, and of groups of small ones."""
        return [self._drawn, *(places for _, places in self._small)]

    def add_undecided(self, other: torch.Tensor) -> None:
        if self._undecided is None:
            self._undecided = torch.zeros(self._own.shape, dtype=torch.float32, device=self._own.device)
        for most, part, own in in_parts(self._undecided, other, self._own):
            torch.maximum(most, (part.double() - own.double()).abs().float(), out=most)

    @cached_property
    def _places(self) -> tuple[torch.Tensor, list[tuple[float, torch.Tensor]]]:
        """Of `_drawn` and of `_small`."""
        if self._is_narrow:
            return torch.arange(0), []
        found: list[tuple[float, torch.Tensor]] = []
        places, sizes = drawn_sizes(self._truth, self._compared, self._own.dtype)
        drawn = thinned(places).clone()  # a view would keep all of them
        while len(found) < _MOST_GROUPS and places.numel():
            limit = SMALLER * float(sizes.max())
            places, sizes = places[sizes <= limit], sizes[sizes <= limit]
            if places.numel() < LEAST_SMALLER:
                break
            found.append((limit, places))
        return drawn, found

    @cached_property
    def _drawn(self) -> torch.Tensor:
        """Places of elements of which typical errors are told."""
        return self._places[0]

    @cached_property
    def _small(self) -> list[tuple[float, torch.Tensor]]:
        """Groups of small elements: limits of their sizes, and their places."""
        return self._places[1]

    def _add_narrow(self, other: torch.Tensor) -> None:
        if not other.numel():
            return
        self._other |= rounded_apart(other, self._own) | rounded_apart(self._truth, self._own)
        self._beyond = max(self._beyond, float(beyond_next(other, self._truth, self._own.dtype).max()))

    def _measures(self, values: torch.Tensor, less: torch.Tensor | None = None) -> tuple[float, float]:
        """Over finite compared elements; see below."""
        if not values.numel():
            return 0.0, 0.0
        found = _measures(values, None, less) if self._are_all_finite else (math.nan, math.nan)
        return found if math.isfinite(sum(found)) else _measures(values, self._compared, less)

    def _cancellation_at(
        self, number: int, positive: torch.Tensor, growing: float, once: float, chained: float
    ) -> torch.Tensor:
        """What cancellation makes of roundings of intermediate results: of the drawn elements, or a group of small
        ones. `growing`: with the length of sums, of what there is without signs; at most `once`, of what there is with
        them, and of what cancels in each sum by itself, as if that was `chained` so often."""
        places = self._told_at()[number]
        found = growing * positive.reshape(-1)[places].double().abs().nan_to_num()
        if self._cancelled_at:
            known = once * (self._truth.reshape(-1)[places].abs() + chained / self.inner * self._cancelled_at[number])
            found = torch.minimum(found, known)
        return found

    def _small_groups(
        self, positive: torch.Tensor, coarse: float, growth: float, chained: float
    ) -> tuple[SmallElements, ...]:
        """`coarse`: rounding of intermediate results, by which elements may be wrong that are small because terms
        cancel."""
        found, least = [], min(_MOST_LEAST, _LEAST_SHARE * coarse)
        growing = coarse + self.inner * growth
        for number, ((limit, places), error) in enumerate(zip(self._small, self._small_errors, strict=True), 1):
            cancellation = float(self._cancellation_at(number, positive, growing, coarse, chained).norm())
            norm = float(self._truth.reshape(-1)[places].norm())
            found.append(SmallElements(limit, max(error, cancellation, growing * norm) / norm, least))
        return tuple(found)

    def _typical(
        self, positive: torch.Tensor, rounding: float, cancellation: float, chained: float
    ) -> tuple[float, ...]:
        """`rounding`: of results; `cancellation`: of intermediate ones."""
        size = self._truth.reshape(-1)[self._drawn].abs()
        cancelled = self._cancellation_at(0, positive, cancellation, cancellation, chained)
        of_one = torch.clamp(_OF_ONE * size, max=self.inner)
        floors = typical_of(rounding * size + torch.maximum(cancellation * size, cancelled) + of_one)
        return tuple(map(max, self._typical_errors, floors))

    def expected(
        self,
        positive: torch.Tensor,
        *,
        length: int,
        terms: int,
        coarse: float,
        precision: str,
        recipe: Recipe,
        are_simulated: bool,
    ) -> Expected:
        """The bounds. `positive`: the output for inputs without signs; `length`: of the longest sum; `coarse`: of the
        inputs, the largest relative rounding; `are_simulated`: whether roundings of all sums were."""
        truth, own, compared = self._truth, self._own, self._compared
        if not own.is_floating_point():
            differ, step = self._errors
            if precision == "tf32" and step > 1:
                step *= 2  # `_half_truncated` simulates half of the error
            if precision == "tf32" and step <= 1 and UNSURE < differ / max(1, own.numel()) <= UNSURE_TF32:
                differ /= 2
            elif differ > (most := UNSURE * own.numel()):
                rounds_first = float((own != truth).sum()) > most
                differ = max(self._neither, TIES * own.numel()) if rounds_first and self._neither <= most else 0.0
            return Expected(truth, own, compared, differ, step if differ else 0.0, undecided=self._undecided)
        rounding = torch.finfo(own.dtype).eps / 2
        inner = self.inner
        growth = recipe.growth * math.sqrt(length)
        size, uncancelled = self._measures(truth), self._measures(positive)
        underflow = _underflow(own.dtype)
        # Without their signs, factors that decay grow: no sum of so many terms cancels more than errors show.
        most = recipe.most_cancelled * math.sqrt(terms) / inner
        uncancelled = [min(uncancelled[i], size[i] + most * self._errors[i]) for i in (0, 1)]
        most = recipe.chained / (inner * recipe.cancellation)
        uncancelled = [min(uncancelled[i], size[i] + most * self._cancelled[i]) for i in (0, 1)]
        rounded = list(size)
        if not self._is_narrow:  # errors are typical ones, but that of the largest element, which may be the whole norm
            rounded[0] = min(size[0], recipe.typical * size[0] + size[1])
        floors = [
            rounding * recipe.rounding * rounded[i] + inner * (growth * size[i] + recipe.cancellation * uncancelled[i])
            for i in (0, 1)
        ]
        largest = max(self._errors[1], floors[1]) + underflow
        end, narrow, near, few = torch.finfo(own.dtype).max, None, largest, own.numel() < recipe.many_outputs
        if self._is_narrow:
            narrow = NarrowBounds(
                others=float(self._other.sum()) + max(NARROW_LEAST, SIXTEEN_BITS * own.numel()),
                beyond=max(self._beyond, SIXTEEN_BITS * size[1] + inner * (growth * size[1] + uncancelled[1])),
            )
            near = min(narrow.beyond, end / 2 / _NEAR_OVERFLOW)  # one step is no overflow: GPUs saturate
        limit = end - _NEAR_OVERFLOW * near
        if size[1] > limit:  # an honest kernel may overflow there, and another may not
            compared = compared & ~(truth.isfinite() & (truth.abs() > limit))
        return Expected(
            truth=truth,
            honest=own,
            compared=compared,
            frobenius=max(self._errors[0], floors[0]) + underflow * math.sqrt(own.numel()),
            largest=largest,
            narrow=narrow,
            small=self._small_groups(positive, max(coarse, rounding), growth, recipe.chained / recipe.cancellation),
            apart=None
            if few or self._apart is None
            else max(self._apart, floors[0]) + underflow * math.sqrt(own.numel()),
            typical=self._typical(
                positive,
                rounding * recipe.typical + (0.0 if are_simulated else inner * growth),
                inner * recipe.cancellation,
                recipe.chained / recipe.cancellation,
            ),
        )


def drawn_sizes(truth: torch.Tensor, compared: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of elements, all or one drawn from each of as many stretches, and their sizes: of those that are compared,
    and no zeros, nor flushed to zero."""
    count = truth.numel()
    places = torch.arange(min(count, _DRAWN), device=truth.device)
    if count > _DRAWN:
        chance = torch.Generator(truth.device).manual_seed(secrets.randbits(63))  # nobody can tell which ones
        within = torch.rand(_DRAWN, dtype=torch.float64, device=truth.device, generator=chance)
        places = ((places + within) * (count / _DRAWN)).long().clamp(max=count - 1)
    sizes = truth.reshape(-1)[places].abs()
    kept = compared.reshape(-1)[places] & sizes.isfinite() & (sizes > max(_underflow(dtype), _LEAST_SQUARED))
    return places[kept], sizes[kept]


def thinned(places: torch.Tensor) -> torch.Tensor:
    """Some of many drawn places, of all columns of a matrix: an odd number is skipped each time."""
    step = len(places) // _THINNED | 1
    return places[secrets.randbelow(step) :: step]


def norm_of_errors(values: torch.Tensor, truth: torch.Tensor, places: torch.Tensor) -> float:
    """Of the elements at some places; infinite where a value is not finite."""
    norm = float(errors_at(values, truth, places).norm())
    return norm if math.isfinite(norm) else math.inf


def errors_at(values: torch.Tensor, truth: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Magnitudes of the errors of the elements at some places."""
    return (values.reshape(-1)[places].double() - truth.reshape(-1)[places]).abs()


def typical_of(errors: torch.Tensor) -> list[float]:
    """Root mean square of the smallest errors, by share in `TYPICAL`."""
    if not errors.numel():
        return []
    squares = np.cumsum(np.sort(np.square(errors.nan_to_num(math.inf, math.inf).cpu().numpy())))
    counts = [max(1, int(share * errors.numel())) for share in TYPICAL]
    return [math.sqrt(squares[count - 1] / count) for count in counts]


def norm_apart(values: torch.Tensor, truth: torch.Tensor, compared: torch.Tensor) -> float:
    """Norm of the errors of compared elements, but for what one factor of all elements explains."""
    sums = torch.zeros(3, dtype=torch.float64, device=truth.device)
    for part, true, counts in in_parts(values, truth, compared):
        error = part.double() - true
        kept = counts & error.isfinite()
        error, size = torch.where(kept, error, 0.0), torch.where(kept, true, 0.0)
        sums += torch.stack([error.square().sum(), (error * size).sum(), size.square().sum()])
    errors, common, sizes = sums.tolist()
    return math.sqrt(max(0.0, errors - common * common / sizes if sizes > 0 else errors))


def rounded_apart(values: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    """Where values differ from `narrow` once they are rounded to its dtype. NaN is NaN."""
    rounded, other = values.to(narrow.dtype).float(), narrow.float()
    return (rounded != other) & ~(rounded.isnan() & other.isnan())


def beyond_next(values: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """By how much finite values differ from the true ones beyond one and a half steps of an 8-bit dtype."""
    info, wide = torch.finfo(dtype), truth.double()
    _, exponent = torch.frexp(wide.abs().clamp(min=info.smallest_normal))
    step = torch.ldexp(torch.full_like(wide, info.eps / 2), exponent)
    beyond = (values.double() - wide).abs() - 1.5 * step
    return torch.where(beyond.isfinite(), beyond, 0.0).clamp(min=0.0)


def _add_result(estimates: Iterable[_Estimate], outputs: Iterable[torch.Tensor], share: float = 1.0) -> None:
    for estimate, output in zip(estimates, outputs, strict=True):
        estimate.add_result(output, share)


def _measures(values: torch.Tensor, compared: torch.Tensor | None, less: torch.Tensor | None) -> tuple[float, float]:
    """Frobenius norm and largest magnitude of `values` - `less` (in float64), over finite elements of `compared`.

    None: all are compared, and the figures are not finite if an element is not, which takes a third of the time.
    """
    measures = []
    for part, counts, subtracted in in_parts(values, compared, less):
        wide = part.double() if subtracted is None else part.double() - subtracted
        kept = wide if counts is None else torch.where(counts & wide.isfinite(), wide, 0.0)
        least, most = kept.aminmax()
        measures.append(torch.stack([kept.norm(), torch.maximum(-least, most)]))
    norms, largest = torch.stack(measures, 1)
    return float(norms.norm()), float(largest.max())


def in_parts(*tensors: torch.Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Corresponding parts of tensors of one shape, flattened."""
    rows = [None if tensor is None else tensor.reshape(-1) for tensor in tensors]
    assert rows[0] is not None
    size = AT_ONCE_ON_CPU if rows[0].device.type == "cpu" else _AT_ONCE
    for start in range(0, len(rows[0]), size):
        yield tuple(None if row is None else row[start : start + size] for row in rows)


_FLUSHING = torch.float32, torch.bfloat16
"""Dtypes whose denormal numbers instructions may take for zeros; those of float16 are normal numbers of float32."""


def _underflow(dtype: torch.dtype) -> float:
    """Threshold below which values may be flushed to zero: the smallest normal number of float32 and bfloat16, half the
    smallest step of others."""
    info = torch.finfo(dtype)
    return info.smallest_normal if dtype in _FLUSHING else info.smallest_normal * info.eps / 2


def _is_finite(value: Input) -> bool:
    if not isinstance(value, torch.Tensor):
        return math.isfinite(value)
    wide = value.float() if value.dtype in EIGHT_BITS else value
    return not value.is_floating_point() or all(bool(all_of(part.isfinite())) for (part,) in in_parts(wide))


def _has_denormals(value: Input) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype not in _FLUSHING:
        return False
    return any(bool(any_of(_denormals(part))) for (part,) in in_parts(value))


def _denormals(value: torch.Tensor) -> torch.Tensor:
    return (value != 0) & (value.abs() < torch.finfo(value.dtype).smallest_normal)


def _flushed(value: Input) -> Input:
    """A float64 copy with zeros in place of denormal numbers; signs stay."""
    copy = _double(value)
    if isinstance(value, torch.Tensor) and isinstance(copy, torch.Tensor) and value.dtype in _FLUSHING:
        copy[_denormals(value)] *= 0.0
    return copy


def _copied(value: Input) -> Input:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _double(value: Input) -> Input:
    """A copy, in float64 if it is a floating-point tensor."""
    copy = as_float64(value)
    return _copied(copy) if copy is value else copy


def _compact(values: torch.Tensor) -> torch.Tensor:
    """A copy without hidden memory: torch's result for a mean loss keeps the memory of all losses."""
    used = values.numel() * values.element_size()
    return values.clone() if values.untyped_storage().nbytes() > 2 * used else values


def _unit(dtype: torch.dtype) -> float:
    """Relative rounding error of the dtype in which an honest kernel computes."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2


def _moved(value: Input, units: float, pattern: int, in_doubles: bool = False) -> Input:
    """A float64 copy with every element moved by `units` roundings of float32, or of float64, up or down, in a fixed
    pattern.

    In one pattern the effects on an output may cancel by chance: log(sum of exp(x)) - x[i] does not change if both of
    two elements increase. The maximum over many outputs is not affected; for few outputs, several patterns are used.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    moved = value.to(torch.float64, copy=True)
    unit = _unit(torch.float64 if in_doubles else value.dtype)
    amounts = signs(pattern, moved.numel()).to(value.device).double().mul_(unit * units)
    factors = (1.0 + amounts, 1.0 - amounts)
    blocks = flat_of(moved).split(len(amounts))
    turned = np.random.default_rng(pattern).integers(2, size=len(blocks))  # so that a sum over blocks grows as a walk
    for block, number in zip(blocks, turned.tolist(), strict=True):
        block.mul_(factors[number][: len(block)])
    return moved


def _positive(value: Input) -> Input:
    moved = _double(value)
    return moved.abs_() if isinstance(moved, torch.Tensor) and moved.is_floating_point() else moved


def _as_tf32(value: Input) -> Input:
    """float32 operands rounded to the 10 fraction bits of tf32, to nearest, ties to even."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return _copied(value)
    bits = value.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000
    return torch.where(value.isfinite(), rounded.view(torch.float32), value)


def _half_truncated(value: Input) -> Input:
    """float32 operands moved half of the way to what tensor cores make of them, which ignore the last 13 bits.

    All errors of truncation have one sign, so in a sum of positive terms they add up. Where signs differ, half of it is
    a third more than the error of rounding, so the allowed multiples stay too small for bfloat16 operands.
    """
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return _copied(value)
    truncated = (value.contiguous().view(torch.int32) & -0x2000).view(torch.float32)
    return torch.where(value.isfinite(), (value + truncated) / 2, value)
