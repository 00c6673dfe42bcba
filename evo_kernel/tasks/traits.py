"""Properties of a task's reference: fake tensors, differentiation, and the least bytes and flops that it needs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evo_kernel.errors import TaskError
from evo_kernel.tasks.task import Case, Task, TensorSpec, as_float64, as_tuple, without_data
from evo_kernel.types import CaseKind

DIFFERENTIABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def takes_fakes(task: Task) -> bool:
    """Whether the reference runs on tensors without values, as compilers ask of an operator."""
    inputs = _drawn(task)
    try:
        with FakeTensorMode() as mode:
            task.outputs(*(mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in inputs))
    except TaskError:
        return False
    return True


def differentiable(task: Task) -> list[int]:
    """Positions of the floating-point inputs if the reference can be differentiated; none if it cannot, or changes
    inputs in place."""
    if task.mutates:
        return []
    inputs = _drawn(task)
    places = [p for p, v in enumerate(inputs) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if any(inputs[place].dtype not in DIFFERENTIABLE for place in places):
        return []

    try:
        made, pull = _pullback(task, inputs, places)
        pull(tuple(torch.ones_like(one) for one in made))
    except (TaskError, RuntimeError):  # PyTorch has no derivative of something that the file does
        return []
    return places


SAME = 2.0**-6
"""Relative error within which references in float64 are the same, though one rounds to 16 bits on its way."""


def computes_the_same(task: Task, other: Task) -> bool:
    """Whether two references return the same on the other's check cases, and change the same inputs.

    Dtypes and shapes are held against each other in the case's own dtypes, values in float64.
    """
    return task.mutates == other.mutates and all(_same_on(inputs, task, other) for inputs in _draws(other))


def _same_on(inputs: tuple[Any, ...], task: Task, other: Task) -> bool:
    try:
        made, wanted, wide, truth = (
            one.outputs(*given) for given in (inputs, tuple(map(as_float64, inputs))) for one in (task, other)
        )
    except TaskError:  # one does not take what the other takes
        return False
    return [(one.dtype, one.shape) for one in made] == [(one.dtype, one.shape) for one in wanted] and all(
        _apart(*pair) <= SAME for pair in zip(wide, truth, strict=True)
    )


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative error; infinities are numbers, and alike."""
    one, other = (torch.nan_to_num(value.double(), 0.0, 1e30, -1e30) for value in (one, other))
    return float((one - other).norm() / other.norm().clamp(min=1e-30))


def backward_arguments(task: Task, gradient: Task) -> list[int]:
    """For every parameter of a backward task its place among the task's inputs and the gradients of its outputs.

    A parameter with the name of an input is that input; the others are the gradients of the floating-point outputs, in
    order; and it must return the gradients of the floating-point inputs, in order. Raises TaskError where it does not,
    on a check case of either, or changes inputs, which autograd keeps for others.
    """
    names, wanted = list(task.input_names), [n for n in gradient.input_names if n not in task.input_names]
    places = differentiable(task)
    if not places:
        raise TaskError(f"{task.name} cannot be differentiated, so {gradient.name} cannot be held against anything")
    if gradient.mutates:
        raise TaskError(f"{gradient.name} changes its inputs, which others need: give a task without MUTATES")
    outputs, _ = _pullback(task, _drawn(task), places)
    if len(wanted) != len(outputs) or any(name not in gradient.input_names for name in names):
        raise TaskError(
            f"{gradient.name} takes {', '.join(gradient.input_names)}; the gradients of {task.name} follow from "
            f"{', '.join(names)} and the gradients of its {len(outputs)} floating-point outputs: give a task that "
            "takes these, by these names"
        )
    order = [names.index(name) if name in names else len(names) + wanted.index(name) for name in gradient.input_names]
    generator = torch.Generator().manual_seed(1)
    own = (tuple(given[order.index(place)] for place in range(len(names))) for given in _draws(gradient))
    for case in (*_draws(task), *own):
        inputs = tuple(map(as_float64, case))
        outputs, pull = _pullback(task, inputs, places)
        drawn = (torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in outputs)
        outer = tuple(one**3 for one in drawn)  # small and large ones
        full = [*inputs, *outer]
        got, truth = gradient.outputs(*(full[place] for place in order)), pull(outer)
        alike = len(got) == len(truth) and all(
            one.shape == two.shape and torch.allclose(one.double(), two.double(), rtol=1e-6, atol=1e-8)
            for one, two in zip(got, truth, strict=True)
        )
        if not alike:
            raise TaskError(
                f"{gradient.name} does not compute the gradients of {task.name}: they differ on a check case"
            )
    return order


def _pullback(task: Task, inputs: tuple[Any, ...], places: list[int]) -> tuple[tuple[torch.Tensor, ...], Any]:
    """The floating-point outputs, and what takes their gradients to those of the inputs at these places."""

    def outputs(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full = list(inputs)
        for place, leaf in zip(places, leaves, strict=True):
            full[place] = leaf
        return tuple(one for one in task.outputs(*full) if one.is_floating_point())

    return torch.func.vjp(outputs, *(inputs[place] for place in places))[:2]


def _drawn(task: Task) -> tuple[Any, ...]:
    return next(_draws(task))


def _draws(task: Task) -> Iterator[tuple[Any, ...]]:
    """Inputs of each check case."""
    for case in task.cases_of(CaseKind.CHECK) or task.cases[:1]:
        yield task.inputs(case, torch.Generator().manual_seed(0), "cpu")


_PICK = {"embedding", "gather", "index", "index_select", "take", "_unsafe_index", "_embedding_bag"}
"""Operations that read as much of their first tensor as they return."""


_OVERWRITE = {"copy_", "fill_", "zero_"}
"""Operations that write their first tensor without reading it."""


class LeastWork(NamedTuple):
    """Of one case; None: not known."""

    flops: float | None  # of products, convolutions and attention
    moved_bytes: float | None  # each input as far as it is read, each output, once


@functools.lru_cache(maxsize=256)
def least_work(task: Task, case: Case) -> LeastWork:
    """What the file states; else what the reference's operations read, write and multiply."""
    flops, moved = task.flops(case), task.bytes(case)
    if flops is not None and moved is not None:
        return LeastWork(flops, moved)
    inputs = [without_data(spec) if isinstance(spec, tuple) else spec for spec in task.input_specs(case)]
    try:
        with _Counter(inputs) as counted:
            outputs = as_tuple(task.reference(*inputs))
    except TaskError:  # it reads values, or uses an operation that knows no tensors without memory
        return LeastWork(flops, moved)
    written = {_storage(one): min(one.nbytes, one.untyped_storage().nbytes()) for one in outputs}
    for one in [inputs[position] for position in task.mutates]:
        if isinstance(one, torch.Tensor):
            written.pop(_storage(one), None)  # counted, as far as it is written
    return LeastWork(
        counted.flops if flops is None else flops,
        float(counted.moved_bytes + sum(written.values())) if moved is None else moved,
    )


def multiplies_eight_bits(task: Task, case: Case) -> bool:
    """Whether products may be of 8-bit operands: the case has 8-bit numbers and no floats of 16 bits."""
    dtypes = {spec.dtype for spec in task.input_specs(case) if isinstance(spec, TensorSpec)}
    if dtypes & {"float16", "bfloat16"}:
        return False
    return any(dtype.startswith(("float8", "int8", "uint8")) for dtype in dtypes)


@functools.cache
def _formulas() -> dict[Any, Any]:
    from torch.utils.flop_counter import flop_registry  # imports triton

    return flop_registry


class _Counter(TorchDispatchMode):
    """Adds up flops, and what is read and written of some tensors: each view once, and of none more than it has."""

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()
        held = [one for one in tensors if isinstance(one, torch.Tensor)]
        self._whole = {_storage(one): min(one.nbytes, one.untyped_storage().nbytes()) for one in held}
        self._moved: dict[tuple[int, bool], dict[Any, int]] = {}  # (storage, whether written) → bytes by view
        self.flops = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `Blank`

    @property
    def moved_bytes(self) -> int:
        return sum(min(self._whole[one], sum(views.values())) for (one, _), views in self._moved.items())

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.is_view:
            return made
        if (formula := _formulas().get(func._overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=made)
        name = func._schema.name.partition("::")[2]
        for place, one in enumerate(tree_leaves((args, kwargs))):
            if place == 0 and name in _OVERWRITE:
                continue
            picks = place == 0 and name in _PICK
            much = sum(out.nbytes for out in tree_leaves(made)) if picks else None
            self._note(one, False, much, func if picks else None)
        for argument, one in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._note(one, True)
        return made

    def _note(self, one: Any, written: bool, most: int | None = None, by: Any = None) -> None:
        if isinstance(one, torch.Tensor) and _storage(one) in self._whole:
            views = self._moved.setdefault((_storage(one), written), {})
            view = (one.storage_offset(), one.shape, one.stride(), by)
            views[view] = max(one.nbytes if most is None else min(one.nbytes, most), views.get(view, 0))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
