"""Value regimes: transformations of check inputs that reveal kernels that are correct for ordinary values only.

A regime transforms the floating-point inputs drawn by a task, some also integers of both signs. Plain numbers stay, and
so do marks, which are elements that are not finite or near the end of their dtype. Seeds come from a secret generator
after the plan exists, so no kernel can be specialised to them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from evo_kernel.tasks.layout import once, write
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec

LARGE, MODERATE, SMALL, TINY, HUGE = 64.0, 4.0, 1e-3, 1e-15, 2.0**17
TIE_STEP, FEW_DIGITS = 0.5, 16
FILLING = 0.25


def _wide(x: torch.Tensor) -> torch.Tensor:
    """The tensor in at least float32: 8-bit floats have no arithmetic."""
    return x if x.dtype == torch.float64 else x.float()


def _ties(x: torch.Tensor) -> torch.Tensor:
    """Many equal values, on a grid so coarse that honest sums are exact in float32. Of those below it every third has
    few digits instead: some lie half-way between steps of any power of two, and none is half of a row's largest."""
    wide = _wide(x)
    fractions, exponents = torch.frexp(wide)
    few = torch.ldexp(torch.round(fractions * FEW_DIGITS) / FEW_DIGITS, exponents)
    coarse = torch.round(wide / TIE_STEP).mul(TIE_STEP)
    return torch.where(_thirds(x) & (few.abs() < TIE_STEP), few, coarse).to(x.dtype)


def _thirds(x: torch.Tensor) -> torch.Tensor:
    """Every third element."""
    return torch.arange(x.numel(), device=x.device).reshape(x.shape) % 3 == 0


def _denormals(x: torch.Tensor) -> torch.Tensor:
    """Every third element below the smallest normal number of its dtype; signs stay."""
    tiny = torch.full_like(_wide(x), torch.finfo(x.dtype).smallest_normal / 8)
    return torch.where(_thirds(x), torch.copysign(tiny, _wide(x)), _wide(x)).to(x.dtype)


def _uneven(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Times the inverse of each place's number along every axis, as no independent draws are: from HUGE times the
    value, which float16 does not hold, or LARGE times in narrow dtypes, to 1 / LARGE times.

    So few terms make up a sum, however long it is, and errors of their roundings do not cancel: narrower operands show.
    No part of a row tells what the others are. Zeros are filled: a kernel may leave out what a task draws as zeros,
    such as a bias.
    """
    high = HUGE if torch.finfo(x.dtype).max > HUGE**2 else LARGE
    factor = torch.full([1] * x.dim(), high, dtype=_wide(x).dtype, device=x.device)
    for axis, size in enumerate(x.shape):
        numbers = _numbers(size, seed, x.device).to(factor.dtype)
        factor = factor / numbers.reshape([-1 if other == axis else 1 for other in range(x.dim())])
    return (torch.where(x == 0, FILLING, _wide(x)) * factor.clamp(min=1 / LARGE)).to(x.dtype)


def _few(x: torch.Tensor, seed: int, *, is_alone: bool) -> torch.Tensor:
    """HUGE times one element of each row, as far as its dtype holds, or `is_alone`: of one row. Samples of all others
    are as drawn, so what they tell of a total, or of what need not be read, is no answer. Zeros are filled."""
    if not x.numel():
        return x
    generator, length = np.random.default_rng((seed, x.numel())), max(x.shape[-1:], default=1)
    rows = np.arange(x.numel() // length)
    places = generator.integers(length, size=rows.size) + length * rows
    where = torch.from_numpy(generator.choice(places, 1) if is_alone else places).to(x.device)
    flat, most = _wide(x).reshape(-1).clone(), torch.finfo(x.dtype).max / 4
    flat[where] = torch.where(flat[where] == 0, FILLING, flat[where]).mul(HUGE).clamp(-most, most)
    return flat.reshape(x.shape).to(x.dtype)


def _numbers(size: int, seed: int, device: torch.device) -> torch.Tensor:
    """From 1 to the size, neighbours far apart: the same for axes of one size, so that a product's terms differ."""
    generator = np.random.default_rng((seed, size))
    first, step = generator.integers(size, size=2).tolist() if size else (0, 1)
    while math.gcd(step, size) > 1:
        step += 1
    return torch.arange(size, device=device).mul_(step).add_(first).remainder_(size).add_(1)


_BOTH_SIGNS = 0.25
"""Share of each sign, at least, in a tensor whose signs a regime may change."""


def _has_both_signs(x: torch.Tensor) -> bool:
    """Not so tensors such as variances, which stay."""
    values = _usual(x) if x.is_floating_point() else x
    shares = [float(part.float().mean()) for part in (values < 0, values > 0)] if values.numel() else [0.0]
    return min(shares) >= _BOTH_SIGNS


def _one_sign(x: torch.Tensor, is_negative: bool) -> torch.Tensor:
    """Large, far from zero and of one sign: so are all elements of a row, of a product or a sum of some tensors, and a
    maximum that starts from zero, or from what is far below usual values, shows."""
    if not _has_both_signs(x):
        return x
    if not x.is_floating_point():
        return _integers_of_one_sign(x, is_negative)
    return ((_wide(x).abs() + 2 * _size(x)) * (-LARGE if is_negative else LARGE)).to(x.dtype)


def _integers_of_one_sign(x: torch.Tensor, is_negative: bool) -> torch.Tensor:
    """Of those drawn, since they may be places or bits; as drawn if only one is negative, which may stand for none."""
    below = x[x < 0].max()
    if x.min() == below:
        return x
    return x.clamp(max=below) if is_negative else x.clamp(min=x[x > 0].min())


def _size(x: torch.Tensor) -> torch.Tensor:
    """Root of the mean square."""
    return _usual(x).square().mean().sqrt()


def _is_usual(x: torch.Tensor) -> torch.Tensor:
    """Where it is no mark, such as the -inf or the lowest number of what is masked, or the NaN of what is missing."""
    return _wide(x).abs() < torch.finfo(x.dtype).max / 2


def _usual(x: torch.Tensor) -> torch.Tensor:
    """The elements that are no marks, in at least float32."""
    is_usual = _is_usual(x)
    return _wide(x) if bool(is_usual.all()) else _wide(x)[is_usual]


def _with_marks(result: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """A regime's result with the marks as drawn: their sign and size mean something to the task."""
    is_usual = _is_usual(drawn)
    return result if bool(is_usual.all()) else torch.where(is_usual, _wide(result), _wide(drawn)).to(drawn.dtype)


_TRANSFORMS: Mapping[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "nominal": lambda x, *_: x,
    "small": lambda x, *_: (_wide(x) * SMALL).to(x.dtype),
    "tiny": lambda x, *_: (_wide(x) * TINY).to(x.dtype),  # below what guards divisions
    "moderate": lambda x, *_: (_wide(x) * MODERATE).to(x.dtype),  # terms of all sizes matter in a softmax
    "large": lambda x, *_: (_wide(x) * LARGE).to(x.dtype),
    "uneven": lambda x, _, seed: _uneven(x, seed),
    "one large": lambda x, place, seed: _few(x, seed + place, is_alone=True),
    "one large a row": lambda x, place, seed: _few(x, seed + place, is_alone=False),
    # Of one tensor alone: what others tell of their sizes says nothing of it.
    "one uneven": lambda x, _, seed: _uneven(x, seed),
    "another uneven": lambda x, _, seed: _uneven(x, seed),
    "positive": lambda x, *_: _wide(x).abs().to(x.dtype),
    "one sign": lambda x, place, _: _one_sign(x, place % 2 == 0),  # the first, third and so on are negative
    "other sign": lambda x, place, _: _one_sign(x, place % 2 == 1),
    "signs of pairs": lambda x, place, _: _one_sign(x, place // 2 % 2 == 0),  # so that the first and third differ, too
    "other signs of pairs": lambda x, place, _: _one_sign(x, place // 2 % 2 == 1),
    "negative": lambda x, *_: _one_sign(x, True),
    "ties": lambda x, *_: _ties(x),
    "zeros": lambda x, *_: torch.zeros_like(x),
    "denormals": lambda x, *_: _denormals(x),
}
_OF_ONE_SIGN = {"one sign", "other sign", "signs of pairs", "other signs of pairs", "negative"}
_SIGNED = {torch.int8, torch.int16, torch.int32, torch.int64}
REGIMES: tuple[str, ...] = tuple(_TRANSFORMS)
SEARCH: tuple[str, ...] = ("nominal", "large")
"""Rounds of a check during search: they detect most wrong kernels in few executions."""
WIDE, OTHERS = "uneven", ("negative", "one large", "one large a row")
"""Additional rounds of a confirmation at timed sizes, whose kernels may take paths of their own: all, one of each."""
APART = ("one uneven", "another uneven")
"""Also one of each, where there are several tensors. The first, third and so on are drawn from, or the others."""
CONFIRM: tuple[str, ...] = ("nominal",) * 5 + tuple(name for name in REGIMES if name != "nominal")
"""Rounds of a confirmation: five seeds of nominal values, and every other regime once."""


def drawn(task: Task, case: Case, seed: int, regime: str, device: str) -> tuple[Input, ...]:
    """What the host may know stays: plans hold it."""
    inputs = task.inputs(case, torch.Generator(device).manual_seed(seed), device)
    both = zip(inputs, apply(regime, inputs, seed), strict=True)
    return tuple(kept if place in task.host_known else changed for place, (kept, changed) in enumerate(both))


def others(task: Task, case: Case) -> tuple[str, ...]:
    """OTHERS, and APART where these differ from uneven and nominal values."""
    specs = task.input_specs(case)
    changed = [one for one in specs if isinstance(one, TensorSpec) and getattr(torch, one.dtype).is_floating_point]
    return OTHERS + APART * (len(changed) > 1)


def apply(regime: str, inputs: Sequence[Input], seed: int = 0) -> tuple[Input, ...]:
    """The inputs in a regime, with the same shapes, dtypes and strides. Raises KeyError for an unknown regime.

    `seed`: of the places where uneven ones are large.
    """
    transform = _TRANSFORMS[regime]

    count = sum(isinstance(value, torch.Tensor) and _is_changed(value, regime) for value in inputs)
    some = range(count)[APART.index(regime) :: 2] if regime in APART else ()
    only = {some[seed % len(some)]} if some else set[int]()
    places = itertools.count()

    def changed(value: Input) -> Input:
        if not isinstance(value, torch.Tensor) or not _is_changed(value, regime):
            return value
        place, alone = next(places), once(value)
        result = transform(alone, place, seed) if place in only or regime not in APART else alone
        if result is alone:
            return value
        if value.is_floating_point():
            result = _with_marks(result, alone)
        if (result.shape, result.stride()) == (value.shape, value.stride()):
            return result
        restored = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        write(restored, result)
        return restored

    return tuple(map(changed, inputs))


def _is_changed(value: torch.Tensor, regime: str) -> bool:
    return value.is_floating_point() or (regime in _OF_ONE_SIGN and value.dtype in _SIGNED)
