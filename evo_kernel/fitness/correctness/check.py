"""Compares outputs with a float64 reference; the allowed error is estimated from honest kernels (error_bounds.py).

A candidate passes if its Frobenius error is at most `relative_multiple` times, and its largest error at most
`max_multiple` times, the honest error. Integers and booleans must be equal, but for `relative_multiple` times as many
as differ between honest computations (a float next to a half, rounded), and by no more; an index may select any of
values that are equal, where PyTorch leaves it open, or nearer than honest errors (selections.py). Of 8-bit floats, no
more may be rounded to other numbers than `relative_multiple` times as many as in honest computations, and none further
than `max_multiple` times as far.

A reference may be well-conditioned on small check cases, and chaotic after as many steps as a timed case has, or
overflow there at every element. Then a kernel that does nothing there would pass: `unbound` finds such cases.

Elements that are much smaller than the largest of the same output may have the same absolute error as the largest, but
all of them together must be right to some digits, or as an honest kernel's are. Nor may a few elements that are wrong
in honest kernels hide the errors of the others: the smallest errors are compared, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness.error_bounds import (
    TYPICAL,
    Expected,
    beyond_next,
    drawn_sizes,
    errors_at,
    expect,
    in_parts,
    norm_apart,
    rounded_apart,
    thinned,
    typical_of,
)
from evo_kernel.fitness.marks import all_of, any_of
from evo_kernel.tasks.task import Case, Task, Tolerance
from evo_kernel.types import CaseKind, CheckResult

_AT_ONCE = 1 << 18
"""Elements compared at once on a CPU."""


def compare(
    case: str,
    outputs: Sequence[torch.Tensor],
    expected: Sequence[Expected],
    tolerance: Tolerance,
    regime: str = "nominal",
) -> CheckResult:
    """The verdict on all outputs of one case; `error` is the largest ratio of an error to its bound."""
    if len(outputs) != len(expected):
        reason = (
            f"it returns {len(outputs)} output{'s' * (len(outputs) != 1)} where the reference returns {len(expected)}"
        )
        return CheckResult(case=case, passed=False, error=math.inf, reason=reason)
    worst = 0.0
    for number, (got, wanted) in enumerate(zip(outputs, expected, strict=True)):
        name = f"output {number}" if len(expected) > 1 else "the output"
        fault, error = _fault(got, wanted, tolerance)
        worst = max(worst, error)
        if not fault and regime == "nominal" and got.is_floating_point():
            fault = _overflow_fault(got, wanted, bounds_of(wanted, tolerance)[0]) or _drawn_fault(
                got, wanted, tolerance
            )
        if fault:
            return CheckResult(case=case, passed=False, error=worst, reason=f"{name} {fault}")
    return CheckResult(case=case, passed=True, error=worst)


def _fault(got: torch.Tensor, wanted: Expected, tolerance: Tolerance) -> tuple[str, float]:
    """The fault of one output ("" if none), and its error relative to its bound."""
    honest = wanted.honest
    if got.shape != honest.shape:
        return f"has shape {tuple(got.shape)} where the reference has {tuple(honest.shape)}", math.inf
    if got.dtype != honest.dtype:
        return f"is {_spell(got.dtype)} where the reference is {_spell(honest.dtype)}", math.inf
    if got.numel() == 0:
        return "", 0.0
    if not honest.is_floating_point():
        return _integer_fault(got, wanted, tolerance)
    if wanted.narrow is not None:
        got = _overflown(got, wanted)
    return _float_fault(got, wanted, tolerance)


def _integer_fault(got: torch.Tensor, wanted: Expected, tolerance: Tolerance) -> tuple[str, float]:
    if got.dtype == torch.bool and bool((odd := got.view(torch.uint8) > 1).any()):
        where = _first(odd)
        return f"has the byte {got.view(torch.uint8)[where].item()} at {where}, where booleans are 0 or 1", math.inf
    wrong = (got != wanted.honest) & (got != wanted.truth.to(got.dtype)) & wanted.compared
    if wanted.undecided is not None:
        wrong &= (got.double() - wanted.honest.double()).abs() > wanted.undecided
    if wanted.selection is not None and bool(wrong.any()):
        same, near = wanted.selection.ties(got, wanted.honest, tolerance.relative_multiple / 2)
        if not bool((wrong & ~near).any()):
            return "", 0.0
        wrong &= ~same
    count = int(wrong.sum())
    if not count:
        return "", 0.0
    error = _ratio(count, tolerance.relative_multiple * wanted.frobenius)
    if error <= 1.0 and (got[wrong].double() - wanted.honest[wrong].double()).abs().max() <= wanted.largest:
        return "", error
    where = _first(wrong)
    return (
        f"differs at {count} of {got.numel()} elements; at {where} it is {got[where].item()} where the reference is "
        f"{wanted.honest[where].item()}",
        math.inf,
    )


def _float_fault(got: torch.Tensor, wanted: Expected, tolerance: Tolerance) -> tuple[str, float]:
    """Compare floating-point values.

    On a GPU all quantities are computed before one synchronisation. On a CPU the comparison goes through parts that fit
    the cache, because allocating large temporaries would cost more than the arithmetic.
    """
    truth, values = wanted.truth, (got, wanted.truth, wanted.honest, wanted.compared)
    size = _AT_ONCE if got.device.type == "cpu" else got.numel()
    parts = list(zip(*(value.reshape(-1).split(size) for value in values), strict=True))
    any_unwritten, any_odd, frobenius, largest = _worst([_figures_if_finite(*part) for part in parts])
    if not math.isfinite(frobenius):
        any_unwritten, any_odd, frobenius, largest = _worst([_figures(*_marks(*part)) for part in parts])
    if any_unwritten:
        unwritten, _, _ = _marks(*values)
        return (
            f"has {int(unwritten.sum())} of {got.numel()} elements that were never written, or that come from memory "
            f"nothing wrote; the first at {_first(unwritten)}",
            math.inf,
        )
    if any_odd:
        _, odd, _ = _marks(*values)
        where = _first(odd)
        return (
            f"is {got[where].item()} at {where} where the reference is {truth[where].item():.6g}; {int(odd.sum())} of "
            f"{got.numel()} elements are like that",
            math.inf,
        )
    bounds = bounds_of(wanted, tolerance)
    ratio = max(_ratio(frobenius, bounds[0]), _ratio(largest, bounds[1]))
    if ratio <= 1.0 and wanted.apart is not None:
        bound = max(tolerance.relative_multiple * wanted.apart, tolerance.absolute * math.sqrt(got.numel()))
        apart = _ratio(norm_apart(got, truth, wanted.compared), bound)
        if apart > 1.0:
            return (
                f"is off by {apart:.3g}x what is allowed beside a common factor: by fewer digits than TF32 has",
                apart,
            )
        ratio = max(ratio, apart)
    if ratio <= 1.0:
        return _rounding_fault(got, wanted, tolerance), ratio
    _, _, error = _marks(*values)
    where = _first(error == error.max())
    return (
        f"is off by {ratio:.3g}x what is allowed: at {where} it is {got[where].item():.9g} where the reference is "
        f"{truth[where].item():.9g} (an honest kernel's error there is at most {wanted.largest:.3g})",
        ratio,
    )


def _overflown(got: torch.Tensor, wanted: Expected) -> torch.Tensor:
    """8-bit floats with the reference's infinities and NaN in place of the largest number: PyTorch overflows to the
    former, GPUs convert to the latter (PTX: cvt.satfinite)."""
    values, honest = got.float(), wanted.honest.float()
    is_cut = (values.abs() == torch.finfo(got.dtype).max) & ~honest.isfinite() & ~wanted.truth.isfinite()
    is_cut &= honest.isnan() | (honest.sign() == values.sign())
    return torch.where(is_cut, wanted.honest.view(torch.int8), got.view(torch.int8)).view(got.dtype)


def _rounding_fault(got: torch.Tensor, wanted: Expected, tolerance: Tolerance) -> str:
    """The fault of 8-bit floats of which too many are neither what the reference gives in its own dtypes nor the true
    value, rounded, or one is far from it."""
    if wanted.narrow is None:
        return ""
    apart = rounded_apart(got, wanted.honest) & rounded_apart(wanted.truth, got) & wanted.compared
    beyond = torch.where(wanted.compared, beyond_next(got, wanted.truth, got.dtype), 0.0)
    count, most = int(apart.sum()), tolerance.relative_multiple * wanted.narrow.others
    furthest = float(beyond.max())
    if count > most:
        where = _first(apart)
        what = f"has {count} of {got.numel()} elements that are rounded to other numbers, {most:.0f} allowed"
    elif furthest > tolerance.max_multiple * wanted.narrow.beyond:
        where = _first(beyond == furthest)
        what = "is more than a step off"
    else:
        return ""
    return f"{what}: at {where} it is {got[where].item():.6g} where the reference is {wanted.truth[where].item():.6g}"


def bounds_of(wanted: Expected, tolerance: Tolerance) -> tuple[float, float]:
    """The largest Frobenius norm and the largest magnitude that errors may have."""
    return (
        max(tolerance.relative_multiple * wanted.frobenius, tolerance.absolute * math.sqrt(wanted.honest.numel())),
        max(tolerance.max_multiple * wanted.largest, tolerance.absolute),
    )


_NEAR = 0.5
"""Relative error of finite results where the reference overflows in the task's dtype."""


def _overflow_fault(got: torch.Tensor, wanted: Expected, bound: float) -> str:
    """The fault of elements that are not compared: an honest kernel may overflow there, or give about the true value
    (cut to the largest number), but no other number. With large inputs its intermediate results may overflow too."""
    if bool(all_of(wanted.compared)):
        return ""
    wide, most = got.double(), torch.finfo(got.dtype).max
    where = ~wanted.compared & wanted.truth.isfinite() & wide.isfinite()
    truth = wanted.truth[where]
    cut = truth.clamp(-most, most)
    if float((wide[where] - cut).norm()) <= _NEAR * float(cut.norm()) + bound:
        return ""
    return (
        f"is {wide[where][0].item():.6g} at {_first(where)}, where it may overflow, but the reference is "
        f"{truth[0].item():.6g}"
    )


_LEAST_COMPARED, _MOST_APART = 32, 2
"""Elements that tell something of all like them; and those among small ones that honest kernels may have far off, where
terms cancel by chance: another honest kernel is right there by chance."""


def _drawn_fault(got: torch.Tensor, wanted: Expected, tolerance: Tolerance) -> str:
    """The fault of elements whose errors those of others hide."""
    if not wanted.small and not wanted.typical:
        return ""
    places, sizes = drawn_sizes(wanted.truth, wanted.compared, wanted.honest.dtype)
    fault = _small_fault(got, wanted, tolerance, places, sizes)
    return fault or _typical_fault(got, wanted, tolerance, thinned(places))


def _small_fault(
    got: torch.Tensor, wanted: Expected, tolerance: Tolerance, places: torch.Tensor, sizes: torch.Tensor
) -> str:
    """The fault of small elements that tell nothing: zeros, say, since the largest elements of the output hide them."""
    for group in wanted.small:
        places, sizes = places[sizes <= group.limit], sizes[sizes <= group.limit]
        if places.numel() < _LEAST_COMPARED:
            return ""
        truth = wanted.truth.reshape(-1)[places]
        allowed = max(
            max(group.least, tolerance.relative_multiple * group.share) * float(truth.norm()),
            tolerance.absolute * math.sqrt(places.numel()),
        )
        errors = errors_at(got, wanted.truth, places).nan_to_num(math.inf, math.inf)
        furthest = errors.topk(_MOST_APART + 1)
        errors[furthest.indices[:-1]] = 0.0
        if float(errors.norm()) > allowed:
            first = int(places[int(furthest.indices[-1])])
            where = tuple(int(i) for i in np.unravel_index(first, tuple(got.shape)))
            return (
                f"has small elements that are wrong: the {places.numel()} that are at most {group.limit:.3g}, by "
                f"{float(errors.norm() / truth.norm()):.2g} of what they are; at {where} it is "
                f"{got[where].item():.6g} where the reference is {wanted.truth[where].item():.6g}"
            )
    return ""


def _typical_fault(got: torch.Tensor, wanted: Expected, tolerance: Tolerance, places: torch.Tensor) -> str:
    """The fault of errors that are too large but for a few that honest kernels have, too."""
    if not wanted.typical or places.numel() < _LEAST_COMPARED:
        return ""
    errors, sizes = errors_at(got, wanted.truth, places), wanted.truth.reshape(-1)[places].abs()
    for share, error, size, honest in zip(TYPICAL, typical_of(errors), typical_of(sizes), wanted.typical, strict=True):
        floor = min(tolerance.absolute, _MOST_ABSOLUTE * size)
        if error > (allowed := max(tolerance.relative_multiple * honest, floor)):
            return (
                f"is off by {error / allowed:.3g}x what is allowed where it is off least: {share:.0%} of its elements "
                f"by {error:.3g} in the root mean square, where those of an honest kernel are by {honest:.3g}"
            )
    return ""


_MOST_ABSOLUTE = 2.0**-10
"""Share of what most elements are that a task's absolute tolerance may reach: one for losses is more than the elements
of their gradients are."""


def _marks(
    got: torch.Tensor, truth: torch.Tensor, honest: torch.Tensor, compared: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Elements never written; elements infinite or NaN in only one of the two; errors of the compared elements."""
    unwritten = poisoned(got) & ~honest.isnan()
    got, finite = got.double(), truth.isfinite()
    same = torch.where(finite, got.isfinite(), (got == truth) | (got.isnan() & truth.isnan()))
    return unwritten, compared & ~same, torch.where(compared & finite, (got - truth).abs(), 0.0)


def _figures(unwritten: torch.Tensor, odd: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Whether there are elements of the first two kinds, the norm of the errors, and the largest error."""
    return torch.stack([unwritten.any().double(), odd.any().double(), error.norm(), error.max()])


def _figures_if_finite(
    got: torch.Tensor, truth: torch.Tensor, honest: torch.Tensor, compared: torch.Tensor
) -> torch.Tensor:
    """The same in a third of the time, but no finite norm if an element is not finite or not compared."""
    error = got.double() - truth
    least, most = error.aminmax()
    norm = torch.where(all_of(compared) & ~any_of(poisoned(got)), error.norm(), math.nan)
    zero = torch.zeros_like(norm)
    return torch.stack([zero, zero, norm, torch.maximum(-least, most)])


def _worst(parts: Sequence[torch.Tensor]) -> list[float]:
    """Figures of all parts together."""
    unwritten, odd, norms, errors = torch.stack(list(parts)).unbind(1)
    return torch.stack([unwritten.max(), odd.max(), norms.norm(), errors.max()]).tolist()


def _ratio(error: float, bound: float) -> float:
    return error / bound if bound > 0 else (0.0 if error == 0 else math.inf)


def poisoned(values: torch.Tensor) -> torch.Tensor:
    """Elements whose bytes all equal the poison byte."""
    raw = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.view(raw) == -1


def changed_reason(position: int) -> str:
    return (
        f"the kernel changes its input {position}: write to a tensor of its own; or, if the change is what the task "
        "wants, name the input in its MUTATES"
    )


def _first(where: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in where.nonzero()[0])


def _spell(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def unbound(task: Task, case: Case, expected: Sequence[Expected]) -> str:
    """Why nothing can be told about an output on a timed case with nominal inputs; empty if something can.

    An output that does not bind on check cases either is left alone: its task is degenerate, which its probe tells.
    """
    if case.kind is CaseKind.CHECK:
        return ""
    loose = [number for number, part in enumerate(expected) if not _binds(part, task.tolerance)]
    if not loose:
        return ""
    try:
        smallest = min(task.cases_of(CaseKind.CHECK), key=task.elements)
        checked = expect(task, task.inputs(smallest, torch.Generator("cpu").manual_seed(0), "cpu"))
    except TaskError:
        return ""
    for number in loose:
        if number < len(checked) and bool(checked[number].truth.any()) and _binds(checked[number], task.tolerance):
            which = f"output {number}" if len(expected) > 1 else "the output"
            return (
                f"nothing can be told about {which} on this case: the error of an honest kernel is as large as the "
                "result, so zeros would pass. Give the case another size, or other inputs"
            )
    return ""


def _binds(part: Expected, tolerance: Tolerance) -> bool:
    """Whether zeros would be wrong, or are right. Mostly the first elements tell."""
    if not part.truth.is_floating_point() or not part.honest.numel():
        return True
    frobenius, largest = bounds_of(part, tolerance)
    norm, is_zero = 0.0, True
    for truth, compared in in_parts(part.truth, part.compared):
        size = torch.where(compared & truth.isfinite(), truth, 0.0)
        norm = math.hypot(norm, float(size.norm()))
        if norm > frobenius or bool(size.abs().max() > largest):
            return True
        is_zero = is_zero and not bool(truth.any())
    return is_zero
