"""Is a task worth searching? Probes, on its own check cases, for answers that would pass without the work.

Evolution optimises whatever is rewarded: where zeros, a constant or an input passed through are within the task's own
tolerance, that is the kernel it will find. So a task is probed when it is loaded, and what it would let through is
named. The rules of the file (deterministic, finite, leaves its inputs alone) are probed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import torch

from evo_kernel.errors import TaskError
from evo_kernel.tasks.task import Case, Input, Task
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
    truth: Outputs  # in float64


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
    found = broken + _degenerate(task, drawn) + _float64(task, cases[-1])
    return sorted(found, key=lambda finding: not finding.fatal)


def within(task: Task, got: Outputs, honest: Outputs, truth: Outputs) -> bool:
    """Whether `got` is within the task's tolerance of `truth`, given an honest kernel's outputs (integers: equal)."""
    return all(_close(task, *triple) for triple in zip(got, honest, truth, strict=True))


def _close(task: Task, got: torch.Tensor, honest: torch.Tensor, truth: torch.Tensor) -> bool:
    if got.shape != honest.shape:
        return False
    if not honest.is_floating_point():
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
    try:
        truth = task.truth(*inputs)
    except TaskError:  # named by _float64
        truth = honest
    return _Drawn(case, inputs, task.inputs(case, _generator(2), "cpu"), honest, truth)


def _same(left: tuple[Input, ...], right: tuple[Input, ...]) -> bool:
    """Bit-equal, NaN included; numbers equal."""
    if len(left) != len(right):
        return False
    return all(
        torch.equal(_plain(a).nan_to_num(), _plain(b).nan_to_num())
        and torch.equal(_plain(a).isnan(), _plain(b).isnan())
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape
        else not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and a == b
        for a, b in zip(left, right, strict=True)
    )


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Eight-bit floats as float32, which holds them exactly: they have hardly any operations of their own."""
    return x.float() if x.is_floating_point() and x.element_size() == 1 else x


def _rules(task: Task, case: Case) -> list[ProbeFinding]:
    """The rules of a task file: deterministic, pure, finite, real outputs."""
    inputs, again = (task.inputs(case, _generator(1), "cpu") for _ in range(2))
    where = f"{task.path}: on case {case.name!r}, "
    if not _same(inputs, again):
        return [
            ProbeFinding(
                "inputs-vary",
                where + "inputs drew other values from the same generator. Pass generator=generator to every draw.",
                fatal=True,
            )
        ]
    outputs = task.outputs(*inputs)
    if not _same(inputs, again):
        return [
            ProbeFinding(
                "reference-mutates",
                where + "reference changes its inputs. Work on a copy: the judge compares inputs before and after.",
                fatal=True,
            )
        ]
    found = []
    for position in sorted(task.host_known):
        if not 0 <= position < len(inputs):
            sentence = (
                f"{task.path}: HOST_KNOWN names input {position}, but inputs returns {len(inputs)}, counted from 0."
            )
            found.append(ProbeFinding("host-known", sentence, fatal=True))
    if not _same(outputs, task.outputs(*inputs)):
        sentence = "reference gave two results for the same inputs. Remove what is random or remembered."
        found.append(ProbeFinding("reference-varies", where + sentence, fatal=True))
    for position, output in enumerate(outputs):
        which = f"output {position} " if len(outputs) > 1 else "the output "
        if output.numel() == 0:
            found.append(
                ProbeFinding("empty-output", where + which + "has no elements. Choose larger sizes.", fatal=True)
            )
        elif output.is_complex():
            sentence = "is complex. Return torch.view_as_real of it: kernels write real numbers."
            found.append(ProbeFinding("complex-output", where + which + sentence, fatal=True))
        elif output.is_floating_point() and not output.isfinite().all():
            sentence = "holds inf or NaN, which no error bound can measure. Draw inputs that keep it finite."
            found.append(ProbeFinding("not-finite", where + which + sentence))
    return found


def _float64(task: Task, case: Case) -> list[ProbeFinding]:
    try:
        task.truth(*task.inputs(case, _generator(1), "cpu"))
    except TaskError as error:
        return [
            ProbeFinding(
                "no-float64",
                f"{error}. This was with float64 inputs, from which errors are measured: derive dtypes from the "
                "inputs instead of writing them down.",
            )
        ]
    return []


def _degenerate(task: Task, drawn: list[_Drawn]) -> list[ProbeFinding]:
    """Answers without work that pass on every probed case."""
    checked = "on every check case that was probed (" + ", ".join(draw.case.name for draw in drawn) + ")"
    accepted = "Make the inputs such that the output depends on them, or tighten TOLERANCE."
    found = []
    if _passes(task, drawn, lambda draw: tuple(torch.zeros_like(part) for part in draw.honest)):
        sentence = f"{task.name}: an output of zeros passes {checked}. {accepted}"
        found.append(ProbeFinding("zeros", sentence, fatal=True))
    elif _passes(task, drawn, lambda draw: task.outputs(*draw.others)):
        sentence = f"{task.name}: the output for other inputs passes {checked}: it is as good as constant. {accepted}"
        found.append(ProbeFinding("constant", sentence, fatal=True))
    else:
        found += [
            ProbeFinding(
                "ignored-input", f"{task.name}: the output hardly depends on {name}: other values of it pass {checked}."
            )
            for position, name in _tensors(task, drawn[0])
            if _passes(task, drawn, lambda draw, position=position: _without(task, draw, position))
        ]
    for position, name in _tensors(task, drawn[0]):
        if _passes(task, drawn, lambda draw, position=position: _passed_through(draw, position)):
            sentence = f"{task.name}: {name} passed through as the output passes {checked}. {accepted}"
            found.append(ProbeFinding("passed-through", sentence))
    for (left, one), (right, other) in _pairs(task, drawn[0]):
        if _passes(task, drawn, lambda draw, left=left, right=right: _swapped(task, draw, left, right)):
            sentence = f"{task.name}: the output with {one} and {other} swapped passes {checked}. {accepted}"
            found.append(ProbeFinding("swapped", sentence))
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

    def kind(position: int) -> tuple[torch.Size, torch.dtype]:
        value = draw.inputs[position]
        assert isinstance(value, torch.Tensor)
        return value.shape, value.dtype

    found = [pair for pair in combinations(_tensors(task, draw), 2) if kind(pair[0][0]) == kind(pair[1][0])]
    return found[:: -(-len(found) // MAX_SWAPS) or 1]


def _without(task: Task, draw: _Drawn, position: int) -> Outputs | None:
    """The output with one input drawn anew; None where the file always draws the same."""
    if _same((draw.inputs[position],), (draw.others[position],)):
        return None
    inputs = (*draw.inputs[:position], draw.others[position], *draw.inputs[position + 1 :])
    try:
        return task.outputs(*inputs)
    except TaskError:  # the inputs belong together, such as offsets and what they point into
        return None


def _passed_through(draw: _Drawn, position: int) -> Outputs | None:
    value, first = draw.inputs[position], draw.honest[0] if len(draw.honest) == 1 else None
    if first is None or not isinstance(value, torch.Tensor) or value.shape != first.shape:
        return None
    return (value.to(first.dtype),)


def _swapped(task: Task, draw: _Drawn, left: int, right: int) -> Outputs | None:
    """The output with two inputs of one kind exchanged; None where that is no mistake (a sum is the same)."""
    one, other = draw.inputs[left], draw.inputs[right]
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None
    if one.shape != other.shape or one.dtype != other.dtype:
        return None
    inputs = list(draw.inputs)
    inputs[left], inputs[right] = other, one
    try:
        got = task.outputs(*inputs)
    except TaskError:  # positions into tables of different lengths
        return None
    return None if _same(got, draw.honest) else got
