"""The operator: `torch.ops.NAMESPACE.NAME`, with an implementation for fake tensors and, where there is one, autograd.

A call goes to a kernel's recorded launches where manifest.json says that a case with these very inputs was judged, and
to the task's reference anywhere else; the first time that this happens, a warning says why (`strict` raises instead).
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import _launch, _layouts, _task

HERE = Path(__file__).parent
MANIFEST: dict[str, Any] = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
NAME = f"{MANIFEST['namespace']}::{MANIFEST['op']}"
TOLD_CASES = 3
"""How many of the judged inputs a reason names."""

TASK = _task.load(MANIFEST["task"])


@functools.cache
def program(name: str) -> _launch.Program:
    """The recorded launches of a kernel, from kernels/NAME.json."""
    return _launch.Program(json.loads((HERE / "kernels" / f"{name}.json").read_text(encoding="utf-8")))


def reference(*inputs: Any) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
    """What the operator does, by PyTorch."""
    return _one_or_all(_task.called(TASK, inputs))


class Group:
    """Cases of one task that were judged on one GPU; what the manifest has as an entry of "judged"."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self._changed = _task.mutates(_task.load(data["task"])) if data["cases"] else []
        self._by_signature: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for case in data["cases"]:
            self._by_signature.setdefault(_launch.wanted(case["inputs"]), []).append(case)
        self._known: dict[tuple[Any, ...], Mapping[str, Any]] = {}  # cases that no value decides about

    def choose(self, inputs: Sequence[Any]) -> Mapping[str, Any] | str:
        """The case with these inputs, or why there is none."""
        called_with = _launch.call_key(inputs)
        if (known := self._known.get(called_with)) is not None:
            return known
        if reason := _launch.misplaced(inputs, self.data["target"]):
            return reason
        found = _launch.signature(inputs)
        reason = ""
        for case in self._by_signature.get(found, ()):
            reason = _launch.values_differ(inputs, case["inputs"]) or _launch.shared(inputs, self._changed)
            if not reason:
                if _launch.lasts(case, inputs, self._changed):
                    self._known[called_with] = case
                return case
        return reason or self._strange(found)

    def _strange(self, found: tuple[Any, ...]) -> str:
        """What of a signature is in no case, and what is."""
        for place, (name, entry) in enumerate(zip(self.data["names"], found, strict=False)):
            known = {cased[place]: None for cased in self._by_signature}
            if entry not in known:
                told = [_launch.told(one) for one in known]
                more = f" and {len(told) - TOLD_CASES} more" if len(told) > TOLD_CASES else ""
                return f"{name} is {_launch.told(entry)}; judged with {', '.join(told[:TOLD_CASES])}{more}"
        return "these inputs were not judged together"


class Dispatcher:
    """Hands calls to the kernels that were judged on them, all others to `fallback`, with one warning."""

    def __init__(
        self, name: str, groups: Sequence[Group], fallback: Callable[[Sequence[Any]], tuple[torch.Tensor, ...]]
    ) -> None:
        self.warned = self.strict = False
        self._name, self._groups, self._fallback = name, groups, fallback

    def choose(self, inputs: Sequence[Any]) -> Mapping[str, Any] | str:
        """The case of the manifest that a call goes to, or why none."""
        reasons = []
        for group in self._groups:
            found = group.choose(inputs)
            if not isinstance(found, str):
                return found
            reasons.append(found)
        return "; or ".join(dict.fromkeys(reasons))

    def __call__(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        found = self.choose(inputs)
        if not isinstance(found, str):
            try:
                return program(found["kernel"]).run(found["name"], inputs)
            except _launch.CannotLaunch as error:  # a driver older than the machine code
                found = str(error)
        if self.strict:
            raise _launch.CannotLaunch(f"{self._name}: {found}")
        if not self.warned:
            self.warned = True
            told = f"{self._name}: computed by the reference, {found}. Told once."
            warnings.warn(told, RuntimeWarning, stacklevel=4)
        return self._fallback(inputs)


GROUPS = [Group(data) for data in MANIFEST["judged"]]
FORWARD = Dispatcher(NAME, GROUPS, lambda inputs: _task.called(TASK, inputs))


def chosen(*inputs: Any) -> str:
    """Name of the kernel that a call with these inputs goes to; `reference: WHY` where none does."""
    found = FORWARD.choose(inputs)
    return f"reference: {found}" if isinstance(found, str) else found["kernel"]


def strict(value: bool = True) -> None:
    """Whether calls that no kernel was judged on raise CannotLaunch, instead of going to the reference."""
    for dispatcher in (FORWARD, BACKWARD):
        if dispatcher is not None:
            dispatcher.strict = value


def _laid_out(made: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Outputs in the layouts that fake tensors promise, no view of an input or of another: operators return none."""
    taken = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)}
    found = []
    for tensor, order in zip(made, MANIFEST["layouts"], strict=True):
        storage = tensor.untyped_storage().data_ptr()
        whole = _layouts.lies_in(tensor, order) and storage not in taken
        found.append(tensor if whole else _empty(tensor.shape, order, tensor).copy_(tensor))
        taken.add(storage)
    return found


def _empty(shape: Sequence[int], order: Sequence[int] | None, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(shape), _layouts.dense_strides(shape, order), dtype=like.dtype, device=like.device)


def _one_or_all(tensors: Sequence[torch.Tensor]) -> Any:
    """As operators return them; None where there are none."""
    return (tensors[0] if len(tensors) == 1 else tuple(tensors)) if tensors else None


def _implementation(*inputs: Any) -> Any:
    return _one_or_all(_laid_out(FORWARD(inputs)[: MANIFEST["outputs"]], inputs))  # behind them: changed inputs


def _fake(*inputs: Any) -> Any:
    table = MANIFEST["output_shapes"]
    if table is None:
        promised = _task.called(TASK, inputs)
        made = [_empty(one.shape, order, one) for one, order in zip(promised, MANIFEST["layouts"], strict=True)]
        return _one_or_all(made)
    device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
    made = []
    for (dtype, shape), order in zip(table, MANIFEST["layouts"], strict=True):
        sizes = [part if isinstance(part, int) else inputs[part[0]].shape[part[1]] for part in shape]
        strides = _layouts.dense_strides(sizes, order)
        made.append(torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype), device=device))
    return _one_or_all(made)


CHANGED = [MANIFEST["names"][position] for position in _task.mutates(TASK)]
OP = torch.library.custom_op(NAME, _implementation, mutates_args=CHANGED, schema=MANIFEST["schema"])
OP.register_fake(_fake)


# ---- autograd: an operator of its own, so that compilers see one node ----------------------------------------------


def _differentiated(values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Gradients of the floating-point inputs, by differentiating the reference at the saved inputs."""
    places = MANIFEST["differentiable"]
    inputs, outer = values[:COUNT], values[COUNT:]

    def outputs(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full = list(inputs)
        for place, leaf in zip(places, leaves, strict=True):
            full[place] = leaf
        return tuple(one for one in _task.outputs(TASK, tuple(full)) if one.is_floating_point())

    pull = torch.func.vjp(outputs, *(inputs[place] for place in places))[1]
    return pull(tuple(outer))


def _gradients(*values: Any) -> Any:
    """By the champions of the task's backward where the package has some, and they were judged on these inputs."""
    backward = MANIFEST["backward"]
    if backward is None or BACKWARD is None:
        made = _differentiated(values)
    else:
        outer = [value.contiguous() if isinstance(value, torch.Tensor) else value for value in values[COUNT:]]
        full = [*values[:COUNT], *outer]
        made = BACKWARD([full[place] for place in backward["arguments"]])
    taken = {value.untyped_storage().data_ptr() for value in values if isinstance(value, torch.Tensor)}
    found = []
    for place, grad in zip(MANIFEST["differentiable"], made, strict=True):
        found.append(_like(values[place], grad, taken))
        taken.add(grad.untyped_storage().data_ptr())
    return _one_or_all(found)


def _like(value: torch.Tensor, grad: torch.Tensor, taken: set[int]) -> torch.Tensor:
    """The gradient in its input's layout and dtype, in memory of its own; copied only where it is not so already."""
    promised = torch.empty_like(value, device="meta")
    alike = (grad.dtype, grad.stride()) == (promised.dtype, promised.stride())
    if alike and grad.untyped_storage().data_ptr() not in taken:
        return grad
    return torch.empty_like(value).copy_(grad)


def _fake_gradients(*values: Any) -> Any:
    return _one_or_all([torch.empty_like(values[place]) for place in MANIFEST["differentiable"]])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.numbers = [None if isinstance(value, torch.Tensor) else value for value in inputs]
    ctx.floating = [one.is_floating_point() for one in (output if isinstance(output, tuple) else (output,))]
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, torch.Tensor)))


def _backward(ctx: Any, *grads: torch.Tensor) -> Any:
    tensors = iter(ctx.saved_tensors)
    inputs = [next(tensors) if number is None else number for number in ctx.numbers]
    outer = [grad for grad, floating in zip(grads, ctx.floating, strict=True) if floating]
    made = GRADIENTS(*inputs, *outer)
    made = (made,) if isinstance(made, torch.Tensor) else made
    by_place = dict(zip(MANIFEST["differentiable"], made, strict=True))
    return _one_or_all([by_place.get(place) for place in range(len(inputs))])  # type: ignore[list-item]


COUNT = len(MANIFEST["names"])
BACKWARD: Dispatcher | None = None
BACKWARD_GROUPS: list[Group] = []
if MANIFEST["backward"] is not None:
    _arguments = MANIFEST["backward"]["arguments"]
    BACKWARD_GROUPS = [Group(data) for data in MANIFEST["backward"]["judged"]]

    def _by_reference(inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The arguments of the backward task, put back in the order of inputs and gradients of outputs."""
        return _differentiated([inputs[_arguments.index(place)] for place in range(len(_arguments))])

    BACKWARD = Dispatcher(f"{NAME}_backward", BACKWARD_GROUPS, _by_reference)

if MANIFEST["differentiable"]:
    GRADIENTS = torch.library.custom_op(
        f"{NAME}_backward", _gradients, mutates_args=(), schema=MANIFEST["backward_schema"]
    )
    GRADIENTS.register_fake(_fake_gradients)
    torch.library.register_autograd(NAME, _backward, setup_context=_keep)
