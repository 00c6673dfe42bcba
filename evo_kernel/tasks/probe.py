"""Checks of a task: answers without work that would pass on its check cases, and what its file states about itself.

The rules of the file (deterministic, finite, leaves its inputs alone) are checked on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch.utils.flop_counter import FlopCounterMode

from evo_kernel.errors import TaskError
from evo_kernel.tasks.task import Case, Input, Task, as_tuple, describe, functional, same_values
from evo_kernel.types import CaseKind

MAX_CASES = 3
"""Check cases probed at most, smallest first."""
MAX_SWAPS = 12
"""Pairs of inputs that are swapped at most: a network of a hundred layers has thousands of one shape."""

Outputs = tuple[torch.Tensor, ...]  # at least one


@dataclass(frozen=True)
class ProbeFinding:
    """One thing that a probe found: `sentence` says what, and what to do. A fatal one makes every score worthless."""

    name: str
    sentence: str
    fatal: bool = False


@dataclass(frozen=True)
class _Drawn:
    """One check case, drawn: what goes in, what the reference makes of it, and what other inputs would give."""

    case: Case
    inputs: tuple[Input, ...]
    others: tuple[Input, ...]  # of the same case, from another seed
    honest: Outputs  # the reference in the task's own dtypes
    truth: Outputs  # in float64, or `honest` where the reference does not run on it
    fault: str = ""  # why it does not


def probe(task: Task) -> list[ProbeFinding]:
    """What is wrong with the task, worst first; empty when nothing is.

    Raises TaskError when the file's functions fail. Runs on the CPU, in about the time of a dozen reference calls on
    small cases.
    """
    cases = sorted(task.cases_of(CaseKind.CHECK), key=task.elements)[:MAX_CASES]
    broken = _rules(task, cases[-1])
    if any(finding.fatal for finding in broken):
        return broken
    drawn = [_draw(task, case) for case in cases]
    found = broken + _degenerate(task, drawn)
    if fault := drawn[-1].fault:
        why = "This was with float64 inputs, from which errors are measured: derive dtypes from the inputs"
        found.append(ProbeFinding("no-float64", f"{fault}. {why} instead of writing them down."))
    return sorted(found, key=lambda finding: not finding.fatal)


def within(task: Task, got: Outputs, honest: Outputs, truth: Outputs) -> bool:
    """Whether `got` is within the task's tolerance of `truth`, given an honest kernel's outputs (integers: equal)."""
    return all(_close(task, *triple) for triple in zip(got, honest, truth, strict=True))


def _close(task: Task, got: torch.Tensor, honest: torch.Tensor, truth: torch.Tensor) -> bool:
    if got.shape != honest.shape:
        return False
    if not honest.is_floating_point() or not honest.numel():
        return torch.equal(got.to(honest.dtype), honest)
    tolerance, epsilon = task.tolerance, torch.finfo(honest.dtype).eps
    truth = truth.double()
    error, reached = (got.double() - truth).abs(), (honest.double() - truth).abs()
    scale = float(truth.abs().max())
    # An honest kernel may be exact by luck: it is never held to less than half a unit in the last place.
    frobenius = max(float(reached.norm()), epsilon / 2 * float(truth.norm()), tolerance.absolute)
    largest = max(float(reached.max()), epsilon / 2 * scale, tolerance.absolute)
    return bool(
        error.norm() <= tolerance.relative_multiple * frobenius and error.max() <= tolerance.max_multiple * largest
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def _draw(task: Task, case: Case) -> _Drawn:
    inputs = task.inputs(case, _generator(1), "cpu")
    honest = task.outputs(*inputs)
    others = task.inputs(case, _generator(2), "cpu")
    try:
        return _Drawn(case, inputs, others, honest, task.truth(*inputs))
    except TaskError as error:
        return _Drawn(case, inputs, others, honest, honest, str(error))


def _changed(task: Task, inputs: tuple[Input, ...], drawn: tuple[Input, ...]) -> tuple[str, ...]:
    """Names of the inputs that differ from what was drawn, and of those that may, as MUTATES takes them."""
    differ = [not _same(pair[:1], pair[1:]) for pair in zip(inputs, drawn, strict=True)]
    return tuple(name for n, name in enumerate(task.input_names) if n in task.mutates or differ[n : n + 1] == [True])


def _same(left: tuple[Input, ...], right: tuple[Input, ...]) -> bool:
    """Bit-equal, NaN included; numbers equal."""
    return len(left) == len(right) and all(
        same_values(a, b)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and a == b
        for a, b in zip(left, right, strict=True)
    )


def _rules(task: Task, case: Case) -> list[ProbeFinding]:
    """The rules of a task file: deterministic, pure, finite, real outputs."""
    found: list[ProbeFinding] = []

    def note(name: str, sentence: str, fatal: bool = True) -> list[ProbeFinding]:
        found.append(ProbeFinding(name, f"{task.path}: on case {case.name!r}, {sentence}", fatal))
        return found

    inputs, again = (task.inputs(case, _generator(1), "cpu") for _ in range(2))
    if not _same(inputs, again):
        varies = "inputs drew other values from the same generator. Pass generator=generator to every draw."
        return note("inputs-vary", varies)
    outputs = task.outputs(*inputs)
    if not _same(inputs, again):
        mutates = (
            "reference changes its inputs. Work on a copy, or name those that kernels shall change too: "
            f"MUTATES = {_changed(task, inputs, again)!r}."
        )
        return note("reference-mutates", mutates)
    for position in sorted(task.host_known):
        if not 0 <= position < len(inputs):
            missing = f"HOST_KNOWN names input {position}, but inputs returns {len(inputs)}, counted from 0."
            note("host-known", missing)
    if not _same(outputs, task.outputs(*inputs)):
        note("reference-varies", "reference gave two results for the same inputs. Remove what is random or remembered.")
    for position, output in enumerate(outputs):
        which = f"output {position}" if len(outputs) > 1 else "the output"
        if output.numel() == 0:
            note("empty-output", f"{which} has no elements. Choose larger sizes.")
        elif output.is_complex():
            note("complex-output", f"{which} is complex. Return torch.view_as_real of it: kernels write real numbers.")
        elif output.is_floating_point() and not output.double().isfinite().all():
            infinite = f"{which} holds inf or NaN, which no error bound can measure. Draw inputs that keep it finite."
            note("not-finite", infinite, fatal=False)
    return found


def _degenerate(task: Task, drawn: list[_Drawn]) -> list[ProbeFinding]:
    """Answers without work that pass on every probed case."""
    checked = "on every check case that was probed (" + ", ".join(draw.case.name for draw in drawn) + ")"
    accepted = "Make the inputs such that the output depends on them, or tighten TOLERANCE."
    found = []

    def tried(name: str, sentence: str, answer: Callable[[_Drawn], Outputs | None], fatal: bool = False) -> bool:
        passes = _passes(task, drawn, answer)
        found.extend([ProbeFinding(name, f"{task.name}: {sentence}", fatal)] if passes else [])
        return passes

    zeros = f"an output of zeros passes {checked}. {accepted}"
    constant = f"the output for other inputs passes {checked}: it is as good as constant. {accepted}"
    tensors = list(_tensors(task, drawn[0]))
    if not tried("zeros", zeros, lambda draw: tuple(map(torch.zeros_like, draw.honest)), fatal=True) and not tried(
        "constant", constant, lambda draw: task.outputs(*draw.others), fatal=True
    ):
        for position, name in tensors:
            ignored = f"the output hardly depends on {name}: other values of it pass {checked}."
            tried("ignored-input", ignored, lambda draw, position=position: _without(task, draw, position))
    for position, name in tensors:
        if position not in task.host_known and all(_is_fixed(draw, position) for draw in drawn):
            fixed = f"{name} is the same for every seed, so a kernel that assumes its values passes. Draw it anew."
            found.append(ProbeFinding("fixed-input", f"{task.name}: {fixed}"))
        through = f"{name} passed through as the output passes {checked}. {accepted}"
        tried("passed-through", through, lambda draw, position=position: _passed_through(draw, position))
    for (left, one), (right, other) in _pairs(task, drawn[0]):
        swapped = f"the output with {one} and {other} swapped passes {checked}. {accepted}"
        tried("swapped", swapped, lambda draw, left=left, right=right: _swapped(task, draw, left, right))
    return found


def _passes(task: Task, drawn: list[_Drawn], answer: Callable[[_Drawn], Outputs | None]) -> bool:
    """Whether the answer without work applies somewhere, and passes wherever it does."""
    applied = False
    for draw in drawn:
        got = answer(draw)
        if got is None:
            continue
        if not within(task, got, draw.honest, draw.truth):
            return False
        applied = True
    return applied


def _tensors(task: Task, draw: _Drawn) -> Iterator[tuple[int, str]]:
    """Position and name of each tensor input."""
    for position, value in enumerate(draw.inputs):
        if isinstance(value, torch.Tensor):
            yield position, task.input_names[position] if position < len(task.input_names) else f"input {position}"


def _pairs(task: Task, draw: _Drawn) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    """Pairs of tensor inputs of one shape and dtype, evenly spread where many: each costs a reference call."""
    found = [
        (one, other)
        for one, other in combinations(_tensors(task, draw), 2)
        if _alike(draw.inputs[one[0]], draw.inputs[other[0]])
    ]
    return found[:: -(-len(found) // MAX_SWAPS) or 1]


def _alike(one: Input, other: Input) -> bool:
    """Whether both are tensors, of one shape and dtype."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _without(task: Task, draw: _Drawn, position: int) -> Outputs | None:
    """The output with one input drawn anew; None where the file always draws the same."""
    if _same((draw.inputs[position],), (draw.others[position],)):
        return None
    inputs = (*draw.inputs[:position], draw.others[position], *draw.inputs[position + 1 :])
    try:
        return task.outputs(*inputs)
    except TaskError:  # the inputs belong together, such as offsets and what they point into
        return None


FEW = 16
"""Inputs with fewer than one in so many of the largest one's elements cost a kernel nothing to read."""


def _is_fixed(draw: _Drawn, position: int) -> bool:
    """Whether a tensor of integers or booleans was drawn equal twice. Confirmations change floats that are."""
    value = draw.inputs[position]
    most = max(one.numel() for one in draw.inputs if isinstance(one, torch.Tensor))
    assert isinstance(value, torch.Tensor)
    if value.is_floating_point() or value.numel() * FEW < most:
        return False
    return _same((value,), draw.others[position : position + 1])


def _passed_through(draw: _Drawn, position: int) -> Outputs | None:
    value, first = draw.inputs[position], draw.honest[0] if len(draw.honest) == 1 else None
    if first is None or not isinstance(value, torch.Tensor) or value.shape != first.shape:
        return None
    return (value.to(first.dtype),)


def _swapped(task: Task, draw: _Drawn, left: int, right: int) -> Outputs | None:
    """The output with two inputs of one kind exchanged; None where that is no mistake (a sum is the same)."""
    inputs = list(draw.inputs)
    inputs[left], inputs[right] = inputs[right], inputs[left]
    if not _alike(inputs[left], inputs[right]):
        return None
    try:
        got = task.outputs(*inputs)
    except TaskError:  # positions into tables of different lengths
        return None
    return None if _same(got, draw.honest) else got


DIFFERS = 0.05
"""A baseline whose relative Frobenius distance from the reference is above this computes something else: rounding in
bfloat16 along another path stays below a fifth of it."""
FLOPS_FACTOR = 8.0
"""How far stated flops may be from those of the products and convolutions that the reference runs: a causal mask halves
them, and a reference may compute what a kernel need not."""


def examine(task: Task) -> list[ProbeFinding]:
    """What is wrong with what the file states; empty when nothing is. Raises TaskError when its functions fail."""
    case = max(task.cases_of(CaseKind.CHECK), key=task.elements)
    found: list[ProbeFinding] = []

    def note(name: str, sentence: str) -> None:
        found.append(ProbeFinding(name, f"{task.path}: on case {case.name!r}, {sentence}"))

    inputs = task.inputs(case, torch.Generator("cpu").manual_seed(1), "cpu")
    with FlopCounterMode(display=False) as counter:
        outputs = task.outputs(*inputs)
    for name, baseline in task.baselines.items():
        try:
            with torch.no_grad():  # as it is timed
                made = as_tuple(functional(baseline, task.mutates)(*inputs))
        except Exception as error:  # noqa: BLE001 (a user's function, or a library's without a CPU version)
            why = f"the baseline {name!r} failed on the CPU: {describe(error)}. On a GPU it may run; look there."
            note("baseline-fails", why)
            continue
        if fault := difference(made, outputs):
            note(
                "baseline-differs", f"the baseline {name!r} computes something else: {fault}. Mend it, or take it out."
            )
    # Only products and convolutions are counted: where there are none, nothing can be said.
    flops, counted = task.flops(case), counter.get_total_flops()
    if flops is not None and counted and not 1 / FLOPS_FACTOR <= flops / counted <= FLOPS_FACTOR:
        takes = f"the reference's products and convolutions take {counted:.4g}. Mend flops."
        note("flops", f"flops says {flops:.4g}, but {takes}")
    moved, whole = task.bytes(case), sum(v.nbytes for v in (*inputs, *outputs) if isinstance(v, torch.Tensor))
    if moved is not None and moved > whole:
        note(
            "bytes", f"bytes says {moved:.4g}, more than all inputs and outputs have, {whole}. Count each once at most."
        )
    return found


def difference(parts: Outputs, outputs: Outputs) -> str:
    """How outputs differ from the reference's, roundings aside; an empty string where they do not."""
    if len(parts) != len(outputs):
        return f"{len(parts)} outputs, not {len(outputs)}"
    for position, (got, wanted) in enumerate(zip(parts, outputs, strict=True)):
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            return f"output {position} is {got.dtype} {tuple(got.shape)}, not {wanted.dtype} {tuple(wanted.shape)}"
        off = float((got.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))
        if not off <= DIFFERS:
            return f"output {position} is {off:.2g} of its norm away"
    return ""
