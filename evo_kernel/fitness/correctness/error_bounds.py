"""What the outputs must be, from a float64 reference, and how far an honest kernel in the same dtype may be off.

An honest kernel's error on these very inputs is estimated as the largest of
    own          the task's reference run eagerly in the task's own dtypes (operands rounded to tf32 too, where the
                 task's precision allows tf32),
    sensitivity  how far the float64 reference moves when every floating-point input moves by `perturbation` units of
                 rounding: what any backward-stable algorithm may cost (Higham, Accuracy and Stability of Numerical
                 Algorithms, 2nd ed., section 1.5), so that exp2 in place of exp is not an error; in several
                 patterns of signs where outputs are few,
    rounding     how far it moves when the result of every operation inside it is rounded (rounding.py): what an
                 intermediate result of zero variance, or a sum that is normalised afterwards, makes of one, and
    floor        one rounding of the output, and the growth of a sum's error with the square root of its length
                 (ibid., section 4.2: the statistical estimate), so that a reference that is exact by luck binds nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness.rounding import Rounding
from evo_kernel.tasks.task import Input, Task, as_float64

_AT_ONCE, AT_ONCE_ON_CPU = 1 << 22, 1 << 17
"""Elements that are moved, or looked at, at a time. On a CPU a megabyte of float64, which stays in its cache: memory
for large intermediate results costs more there than the arithmetic."""


@dataclass(frozen=True)
class Recipe:
    """The constants of the estimate, in one place."""

    perturbation: float = 2.0  # units of rounding of float32 (float64 for float64 inputs)
    growth: float = 0.25  # of a sum's relative error, in roundings, per square root of its length
    cancellation: float = 0.5  # roundings of the result with all inputs positive: what cancels in the true result
    rounding: float = 1.0  # roundings of the output in its own dtype
    patterns: int = 12  # of signs, in which inputs are moved where there are fewer outputs than
    many_outputs: int = 64
    rounded_patterns: int = 4  # the same, of roundings inside the reference; 0 to leave them out


RECIPE = Recipe()


@dataclass(frozen=True)
class Expected:
    """One output: the truth, and how large an honest kernel's error may be."""

    truth: torch.Tensor  # float64, or the exact integers
    honest: torch.Tensor  # what the reference gives in the task's own dtypes
    compared: torch.Tensor  # bool: elements that bind; not those that overflow in this dtype alone
    frobenius: float
    largest: float


_NEAR_OVERFLOW = 8.0  # honest errors: so near to the largest number rounding decides about infinity

Change = Callable[[Input], Input]
"""Makes of an input, or of a part of one, a copy to compute with; numbers and integers stay as they are."""


def expect(task: Task, inputs: Sequence[Input], recipe: Recipe = RECIPE) -> tuple[Expected, ...]:
    """What the outputs must be: costs about five to six runs of the reference. Inputs are left alone."""
    return expect_by(lambda change: task.outputs(*map(change, inputs)), inputs, task.tolerance.precision, recipe)


def expect_by(
    run: Callable[[Change], Sequence[torch.Tensor]], inputs: Sequence[Input], precision: str, recipe: Recipe = RECIPE
) -> tuple[Expected, ...]:
    """The same of what `run` gives: the reference's outputs, or chosen elements of them, for changed inputs.

    One run at a time, and what it gives is measured and freed before the next: inputs may be half of what a GPU holds.
    """
    own = tuple(map(_compact, run(_copied)))
    truth = tuple(map(_compact, run(_double)))
    found = [_Estimate(*both) for both in zip(truth, own, strict=True)]
    _note(found, own)
    if precision == "tf32":
        _note(found, run(_as_tf32))
    length = max((max(v.shape, default=1) for v in inputs if isinstance(v, torch.Tensor)), default=1)
    few = min(filter(None, (part.numel() for part in own)), default=0) < recipe.many_outputs
    for pattern in range(recipe.patterns if few else 1):
        _note(found, run(partial(_moved, units=recipe.perturbation, pattern=pattern)))
    dtypes = {value.dtype for value in inputs if isinstance(value, torch.Tensor) and value.is_floating_point()}
    unit = max(map(_unit, dtypes), default=_unit(torch.float32))
    for pattern in range(recipe.rounded_patterns if few else min(1, recipe.rounded_patterns)):
        try:
            with Rounding(unit, recipe.growth, length, pattern):
                rounded = run(_double)
        except TaskError:  # it has run on the same inputs twice: what fails is our looking on, which it may forbid
            continue
        _note(found, rounded)
        del rounded
    positive = run(_positive)
    return tuple(
        estimate.expected(part, length=length, recipe=recipe) for estimate, part in zip(found, positive, strict=True)
    )


class _Estimate:
    """One output, and the largest errors among what honest kernels may make of it so far."""

    def __init__(self, truth: torch.Tensor, own: torch.Tensor) -> None:
        if truth.shape != own.shape:
            raise TaskError("the reference returns another shape in float64 than in its own dtype")
        self._own, self._truth = own, truth
        self._compared = torch.ones_like(own, dtype=torch.bool)
        self._errors = (0.0, 0.0)
        if own.is_floating_point():
            self._truth = truth.double()
            # finite in float64 and not here: an overflow of this dtype
            parts = [~(t.isfinite() & ~o.isfinite()) for t, o in in_parts(self._truth, own)]
            self._compared = torch.cat(parts).view(own.shape) if parts else self._compared

    def note(self, other: torch.Tensor) -> None:
        """What another honest way of computing it gives."""
        if self._own.is_floating_point():
            frobenius, largest = _measures(other, self._compared, self._truth)
            self._errors = (max(self._errors[0], frobenius), max(self._errors[1], largest))

    def expected(self, positive: torch.Tensor, *, length: int, recipe: Recipe) -> Expected:
        """The bounds; `positive` is the output for inputs without signs, `length` that of the longest sum."""
        truth, own, compared = self._truth, self._own, self._compared
        if not own.is_floating_point():
            return Expected(truth, own, compared, 0.0, 0.0)
        rounding = torch.finfo(own.dtype).eps / 2
        inner = min(rounding, torch.finfo(torch.float32).eps / 2)
        growth = recipe.growth * math.sqrt(length)
        size, uncancelled = _measures(truth, compared), _measures(positive, compared)
        underflow = _underflow(own.dtype)
        floors = [
            rounding * recipe.rounding * size[i] + inner * (growth * size[i] + recipe.cancellation * uncancelled[i])
            for i in (0, 1)
        ]
        largest = max(self._errors[1], floors[1]) + underflow
        limit = torch.finfo(own.dtype).max - _NEAR_OVERFLOW * largest
        if size[1] > limit:  # an honest kernel may overflow there, and another may not
            compared = compared & ~(truth.isfinite() & (truth.abs() > limit))
        return Expected(
            truth=truth,
            honest=own,
            compared=compared,
            frobenius=max(self._errors[0], floors[0]) + underflow * math.sqrt(own.numel()),
            largest=largest,
        )


def _note(found: Sequence[_Estimate], outputs: Sequence[torch.Tensor]) -> None:
    for estimate, output in zip(found, outputs, strict=True):
        estimate.note(output)


def _measures(values: torch.Tensor, compared: torch.Tensor, less: torch.Tensor | None = None) -> tuple[float, float]:
    """Frobenius norm and largest magnitude of `values`, `less` subtracted in float64, over the finite elements that are
    compared."""
    if not values.numel():
        return 0.0, 0.0
    found = []
    for part, counts, subtracted in in_parts(values, compared, less):
        wide = part.double() if subtracted is None else part.double() - subtracted
        kept = torch.where(counts & wide.isfinite(), wide, 0.0)
        found.append(torch.stack([kept.norm(), kept.abs_().max()]))
    norms, largest = torch.stack(found, 1)
    return float(norms.norm()), float(largest.max())


def in_parts(*tensors: torch.Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The same elements of tensors of one shape, flat, as many as are looked at at a time."""
    rows = [None if one is None else one.reshape(-1) for one in tensors]
    assert rows[0] is not None
    size = _at_once(rows[0])
    for start in range(0, len(rows[0]), size):
        yield tuple(None if row is None else row[start : start + size] for row in rows)


def _at_once(values: torch.Tensor) -> int:
    return AT_ONCE_ON_CPU if values.device.type == "cpu" else _AT_ONCE


def _underflow(dtype: torch.dtype) -> float:
    """What may be flushed to zero: float32 and bfloat16 below their smallest normal number, others half a step."""
    info = torch.finfo(dtype)
    flushes = dtype in (torch.float32, torch.bfloat16)
    return info.smallest_normal if flushes else info.smallest_normal * info.eps / 2


def _copied(value: Input) -> Input:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _double(value: Input) -> Input:
    """A copy, in float64 where it is a floating-point tensor."""
    made = as_float64(value)
    return _copied(made) if made is value else made


def _compact(values: torch.Tensor) -> torch.Tensor:
    """Without memory that nobody sees: what torch returns for a mean loss holds as much as the losses did."""
    used = values.numel() * values.element_size()
    return values.clone() if values.untyped_storage().nbytes() > 2 * used else values


def _unit(dtype: torch.dtype) -> float:
    """One rounding of the dtype that an honest kernel computes in."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2


def _moved(value: Input, units: float, pattern: int) -> Input:
    """A float64 copy, every element moved by `units` roundings of float32 up or down, in a fixed pattern.

    In one pattern the terms of an output move apart or together by chance, and together they may cancel: log(sum of
    exp(x)) - x[i] does not move when both of two elements go up. The largest over many outputs does not care; where
    there are few, more patterns are tried.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    unit = _unit(value.dtype)
    generator = torch.Generator(value.device).manual_seed(20240229 + pattern)  # the host would take seconds a gigabyte
    is_up = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8, device=value.device)
    up, down = torch.tensor([1.0 + unit * units, 1.0 - unit * units], dtype=torch.float64, device=value.device)
    moved = value.to(torch.float64, copy=True)
    is_dense = moved.is_contiguous()
    parts = in_parts(moved, is_up) if is_dense else ((moved, is_up),)
    for part, is_part_up in parts:
        part.mul_(torch.where(is_part_up.bool(), up, down))
    return moved


def _positive(value: Input) -> Input:
    moved = _double(value)
    return moved.abs_() if isinstance(moved, torch.Tensor) and moved.is_floating_point() else moved


def _as_tf32(value: Input) -> Input:
    """float32 operands rounded to the 10 bits of fraction that tf32 has, to nearest, ties to even.

    Hardware that drops the last 13 bits instead is off by twice as much: within what the multiples allow, which
    bfloat16 operands are not.
    """
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return _copied(value)
    bits = value.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000
    return torch.where(value.isfinite(), rounded.view(torch.float32), value)
