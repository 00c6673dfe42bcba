"""Small sizes for an imported problem: its own module constants, made as small as its reference still means the same.

A proposal is accepted when the whole problem runs on fake tensors, and no operation on the way has a dimension of one
that it did not have at the problem's own sizes (a softmax over one element is a constant). What is tried, in which
order and how often follows from the text alone, so that every process finds the same sizes.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from evo_kernel.tasks.blank import keep_dynamo_out
from evo_kernel.tasks.lowering.decompositions import Recurrent
from evo_kernel.tasks.lowering.failures import quiet
from evo_kernel.tasks.problems import SMALLEST, Problem, assigned, flat
from evo_kernel.tasks.scripts import own_numbers

ODD = (3, 7, 11, 13, 17, 19, 23, 29, 31, 37)
WIDE = (2, 67, 33, 35, 37, 39, 41, 43, 45, 47)
SMALL_ENOUGH = 128
"""A constant that came down to this is left in peace."""
ROUND = (16, 32, 64, 128, 256)
OPERATIONS = 15_000
"""Operations on fake tensors that may be spent on one problem; about 0.1 ms each."""

TRIED = 30_000_000
"""Elements that all operations of a run may write for it to be tried on real tensors: about a second."""

Size = int | tuple[int, ...] | list[int]


@dataclass(frozen=True)
class Ran:
    """One run of a problem on fake tensors."""

    elements: int  # of inputs, weights and outputs
    work: int  # elements that all operations write
    operations: int
    tensors: int  # inputs and the module's: a kernel takes each
    ones: tuple[tuple[bool, ...], ...]  # per operation's output, which dimensions are one
    takes_tf32: bool  # it convolves float32, or has a recurrent network: PyTorch lets cuDNN use TF32 unless told not to


_INDICES = {
    torch.ops.aten.embedding.default: 1,
    torch.ops.aten.index_select.default: 2,
    torch.ops.aten.index_add.default: 2,
}
"""Operation → which of its arguments are indices: some versions of PyTorch refuse floats there only of real tensors."""


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self.convolves = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _INDICES and args[_INDICES[func]].is_floating_point():
            raise TypeError(f"{func} is given floats as indices")
        self.convolves |= func is torch.ops.aten.convolution.default and args[0].dtype == torch.float32
        result = func(*args, **(kwargs or {}))
        parts = result if isinstance(result, (tuple, list)) else (result,)
        self.shapes += [tuple(part.shape) for part in parts if isinstance(part, torch.Tensor)]
        return result


def constants(problem: Problem) -> dict[str, Size]:
    """Module constants that are written as plain numbers (or tuples of them), and may be sizes."""
    names = problem.module({})
    found: dict[str, Size] = {}
    for statement in problem.statements:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        if any(isinstance(node, (ast.Name, ast.Call, ast.Lambda)) for node in ast.walk(statement.value)):
            continue
        for name in assigned(statement):
            value = names.get(name)
            parts: Sequence[Any] = value if isinstance(value, (tuple, list)) else [value]
            if all(type(part) is int for part in parts) and any(part >= SMALLEST for part in parts):
                found[name] = value  # pyright: ignore[reportArgumentType]
    return found


def run_fake(problem: Problem, sizes: Mapping[str, Any]) -> Ran:
    """Run the problem at these sizes on fake tensors. Raises what the problem raises."""
    try:
        return _run(problem, sizes)
    except Exception as error:
        # A constructor that reads values needs real tensors; so do weights that a checkpoint lacks.
        if not (problem.pretrained or isinstance(error, DataDependentOutputException)):
            raise
    with quiet(), _disable_current_modes(), own_numbers("cpu"):
        model = problem.model(sizes)
    return _run(problem, sizes, model)


def _run(problem: Problem, sizes: Mapping[str, Any], model: nn.Module | None = None) -> Ran:
    keep_dynamo_out()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with quiet(), _disable_current_modes(), own_numbers("cpu"), torch.no_grad(), fake:
        drawn = problem.drawn(sizes)
        model = model or problem.model(sizes)
        with Recurrent(), _Watch() as watch:
            result = model(*drawn)
    outputs = [part for part in flat(result) if isinstance(part, torch.Tensor)]
    if not outputs or any(part.numel() == 0 for part in outputs):
        raise ValueError("an output has no elements")
    held = [*model.parameters(), *model.buffers()]
    tensors = [*(value for value in (*drawn, *outputs) if isinstance(value, torch.Tensor)), *held]
    elements = sum(tensor.numel() for tensor in tensors)
    work = sum(math.prod(shape) for shape in watch.shapes)
    ones = tuple(tuple(size == 1 for size in shape) for shape in watch.shapes)
    recurrent = any(isinstance(part, nn.RNNBase) for part in model.modules())
    return Ran(elements, work, len(watch.shapes), len(tensors) - len(outputs), ones, watch.convolves or recurrent)


def reduced(problem: Problem, own: Mapping[str, Size], wanted: Sequence[int]) -> dict[str, Size]:
    """The problem's constants with as many as possible made small, each to the first of its proposals that holds."""
    sizes = dict(own)
    try:
        first = best = run_fake(problem, sizes)
    except Exception:  # noqa: BLE001  it reads values, or has an operation without a fake: nothing can be told
        return sizes
    spent = first.operations
    for _ in range(3):
        before = dict(sizes)
        for index, name in enumerate(sorted(own, key=lambda name: ("batch" not in name, _first(own[name])))):
            equal = [other for other in own if _first(own[other]) == _first(own[name]) and sizes[other] == own[other]]
            proposals = _proposals(own[name], sizes[name], index, wanted)
            trials = [sizes | {name: proposal} for proposal in proposals]
            if len(equal) > 1 and sizes[name] == own[name]:  # two names of one size may have to stay equal
                trials += [sizes | {other: _at_most(own[other], _first(p)) for other in equal} for p in proposals]
            if sizes[name] == own[name]:  # a size that is twice another, say, may have to stay so
                trials += [sizes | scaled for p in proposals if (scaled := _scaled(own, sizes, name, p))]
            for trial in trials:
                if spent > OPERATIONS:
                    return sizes
                if not _as_divided(problem, own, trial):
                    continue
                try:
                    ran = run_fake(problem, trial)
                except Exception:  # noqa: BLE001  whatever does not fit together says so in its own way
                    spent += 100
                    continue
                spent += ran.operations
                if _means_the_same(first, ran) and ran.elements + ran.work < best.elements + best.work:
                    sizes, best = trial, ran
                    break
        if sizes == before:
            break
    return sizes


def telling(problem: Problem, own: Mapping[str, Size], sizes: dict[str, Size]) -> dict[str, Size]:
    """The sizes, with one of them left at its own where the output would else say nothing of the inputs.

    A clamp or a minimum that hardly ever takes hold at a problem's own sizes may take hold of everything at small ones.
    """
    if not _says_nothing(problem, sizes):
        return sizes
    for name in sorted((name for name in own if sizes[name] != own[name]), key=lambda name: "batch" in name):
        trial = sizes | {name: own[name]}
        with contextlib.suppress(Exception):  # whatever does not fit together says so in its own way
            if _says_nothing(problem, trial) is False and _means_the_same(
                *(run_fake(problem, s) for s in (own, trial))
            ):
                return trial
    return sizes


def _says_nothing(problem: Problem, sizes: Mapping[str, Size]) -> bool | None:
    """Whether two draws of the inputs give one output but for a thousandth of it. None where that cannot be told."""
    try:
        ran = run_fake(problem, sizes)
        if ran.elements + ran.work > TRIED:
            return None
        outputs = []
        with _disable_current_modes(), own_numbers("cpu"), torch.no_grad():
            model = problem.model(sizes)
            for seed in (1, 2):
                torch.manual_seed(seed)
                outputs.append([part for part in flat(model(*problem.drawn(sizes))) if isinstance(part, torch.Tensor)])
    except Exception:  # noqa: BLE001  it needs a GPU, say; checking the task will tell
        return None
    return all(float((one != other).double().mean()) < 1e-3 for one, other in zip(*outputs, strict=True))


def _scaled(own: Mapping[str, Size], now: Mapping[str, Size], name: str, wanted: Size) -> dict[str, Size]:
    """All plain sizes that are still their own, scaled as `name` is; nothing where that does not divide."""
    had = own[name]
    if not isinstance(had, int) or not isinstance(wanted, int) or had % wanted:
        return {}
    plain = {other: value for other, value in own.items() if isinstance(value, int) and now[other] == value}
    if any(value * wanted % had or value * wanted // had < 2 for value in plain.values()):
        return {}
    return {other: value * wanted // had for other, value in plain.items()}


def _as_divided(problem: Problem, own: Mapping[str, Size], trial: Mapping[str, Size]) -> bool:
    """Whether what was a proper part of another (groups of channels, heads of a width) still is one, or none at all.

    A group of one element normalises to zero, which no shape tells.
    """
    now = {name: value for name, value in problem.module(trial).items() if type(value) is int and value >= 2}
    was = problem.module(own)
    return not any(
        one != other and now[one] == now[other] and was[other] > was[one] >= 2 and was[other] % was[one] == 0
        for one in now
        for other in now
        if type(was[one]) is int and type(was[other]) is int
    )


def _means_the_same(first: Ran, ran: Ran) -> bool:
    if first.tensors != ran.tensors:  # a number of layers: a kernel for the one could not be called for the other
        return False
    if len(first.ones) == len(ran.ones):
        return first.ones == ran.ones
    return not any(any(ones) for ones in set(ran.ones) - set(first.ones))  # loops over a size: fewer rounds


def _proposals(own: Size, now: Size, index: int, wanted: Sequence[int]) -> list[Size]:
    """Smaller values to try, best first."""
    largest = _first(now)
    if largest != _first(own) and largest <= SMALL_ENOUGH:
        return []
    parts = (_first(own) // part for part in (16, 8, 4, 2))
    ladder = [wanted[min(index, len(wanted) - 1)], *ROUND, *(part for part in parts if part >= SMALLEST)]
    found: list[Size] = []
    for value in ladder:
        if value < largest:
            proposal = _at_most(own, value)
            if proposal not in found:
                found.append(proposal)
    return found


def _at_most(own: Size, value: int) -> Size:
    return min(own, value) if isinstance(own, int) else type(own)(min(part, value) for part in own)


def _first(value: Size) -> int:
    return value if isinstance(value, int) else max(value)
