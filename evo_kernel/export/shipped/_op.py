"""The operator: `torch.ops.NAMESPACE.NAME`, with an implementation for fake tensors and, where there is one, autograd.

A call goes to a kernel where manifest.json says that it was verified, and to the task's reference anywhere else; the
first time that this happens, a warning says why.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import _rules, _task

HERE = Path(__file__).parent
MANIFEST: dict[str, Any] = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
NAME = f"{MANIFEST['namespace']}::{MANIFEST['op']}"
KEPT = 1024
"""Choices that are remembered: a model calls with few shapes."""

TASK = _task.load(MANIFEST["task"])


def interpreting() -> bool:
    """Whether Triton executes kernels on the CPU, which TRITON_INTERPRET=1 asks for before Triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def _no_gpu(device: object = None) -> types.SimpleNamespace:
    """What host code is told of a GPU where the interpreter stands for one: few programs, so that each has to loop."""
    del device
    return types.SimpleNamespace(multi_processor_count=4)


@functools.cache
def kernel(name: str) -> Callable[..., Any]:
    """`run` of kernels/NAME.py. Raises ImportError where Triton is not installed."""
    if interpreting() and not torch.cuda.is_available():
        torch.cuda.get_device_properties = _no_gpu  # host code sizes its grid by it
    private = f"{__package__}.kernels.{name}"
    spec = importlib.util.spec_from_file_location(private, HERE / "kernels" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    spec.loader.exec_module(module)
    return module.run


def reference(*inputs: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """What the operator computes, by PyTorch."""
    made = _task.outputs(TASK, inputs)
    return made[0] if MANIFEST["outputs"] == 1 else made


def unfit(inputs: Sequence[Any], span: _rules.Rule) -> str:
    """Why a range is not for the device that inputs lie on; empty where it is."""
    devices = {value.device for value in inputs if isinstance(value, torch.Tensor)}
    if len(devices) > 1:
        return f"inputs lie on {', '.join(sorted(map(str, devices)))}"
    (device,) = devices
    if device.type == "cpu":
        return "" if interpreting() else "inputs lie on the CPU"
    if device.type != "cuda" or torch.version.cuda is None:
        return f"inputs lie on {device}, which is no NVIDIA GPU"
    capability = list(torch.cuda.get_device_capability(device))
    wanted = span["capability"]
    return "" if capability == wanted else f"compute capability {capability}; verified for {wanted}"


class Dispatcher:
    """Hands calls to the kernels that were verified for them, all others to `fallback`, with one warning."""

    def __init__(
        self, name: str, ranges: Sequence[_rules.Rule], fallback: Callable[[Sequence[Any]], tuple[torch.Tensor, ...]]
    ) -> None:
        self.ranges = ranges
        self.warned = False
        self._name, self._fallback = name, fallback
        self._choices: dict[tuple[Any, ...], str | Callable[..., Any]] = {}

    def choose(self, inputs: Sequence[Any]) -> tuple[str, str]:
        """(kernel, "") or ("", why none)."""
        reasons = []
        for span in self.ranges:
            reason = unfit(inputs, span) or _rules.outside(inputs, span)
            if not reason:
                return _rules.nearest(inputs, span["cases"])["kernel"], ""
            reasons.append(reason)
        return "", "; or ".join(dict.fromkeys(reasons))

    def __call__(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        found = self._known(inputs)
        if isinstance(found, str):
            if not self.warned:
                self.warned = True
                told = f"{self._name}: computed by the reference, {found}. Told once."
                warnings.warn(told, RuntimeWarning, stacklevel=4)
            return self._fallback(inputs)
        device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            made = found(*inputs)
        else:
            with torch.cuda.device(device):  # Triton launches on the current device
                made = found(*inputs)
        return (made,) if isinstance(made, torch.Tensor) else tuple(made)

    def _known(self, inputs: Sequence[Any]) -> str | Callable[..., Any]:
        key = _rules.signature(inputs)
        found = self._choices.get(key)
        if found is None:
            name, found = self.choose(inputs)
            try:
                found = kernel(name) if name else found
            except ImportError as error:  # a package may be used, slowly, where Triton is not installed
                found = f"{name} needs {error.name}, which is not installed"
            if len(self._choices) >= KEPT:
                self._choices.clear()
            self._choices[key] = found
        return found


FORWARD = Dispatcher(NAME, MANIFEST["ranges"], lambda inputs: _task.outputs(TASK, tuple(inputs)))


def chosen(*inputs: Any) -> str:
    """Name of the kernel that a call with these inputs goes to; `reference: WHY` where none does."""
    name, reason = FORWARD.choose(inputs)
    return name or f"reference: {reason}"


def _laid_out(made: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Outputs in the layouts that fake tensors promise, no view of an input or of another: operators return none."""
    taken = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)}
    found = []
    for tensor, order in zip(made, MANIFEST["layouts"], strict=True):
        storage = tensor.untyped_storage().data_ptr()
        whole = _rules.lies_in(tensor, order) and storage not in taken
        found.append(tensor if whole else _empty(tensor.shape, order, tensor).copy_(tensor))
        taken.add(storage)
    return found


def _empty(shape: Sequence[int], order: Sequence[int] | None, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(shape), _rules.dense_strides(shape, order), dtype=like.dtype, device=like.device)


def _one_or_all(tensors: Sequence[torch.Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _implementation(*inputs: Any) -> Any:
    return _one_or_all(_laid_out(FORWARD(inputs), inputs))


def _fake(*inputs: Any) -> Any:
    table = MANIFEST["output_shapes"]
    if table is None:
        promised = _task.outputs(TASK, inputs)
        made = [_empty(one.shape, order, one) for one, order in zip(promised, MANIFEST["layouts"], strict=True)]
        return _one_or_all(made)
    device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
    made = []
    for (dtype, shape), order in zip(table, MANIFEST["layouts"], strict=True):
        sizes = [part if isinstance(part, int) else inputs[part[0]].shape[part[1]] for part in shape]
        strides = _rules.dense_strides(sizes, order)
        made.append(torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype), device=device))
    return _one_or_all(made)


OP = torch.library.custom_op(NAME, _implementation, mutates_args=(), schema=MANIFEST["schema"])
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
    """By the champions of the task's backward where the package has some, and they were verified for it."""
    backward = MANIFEST["backward"]
    if backward is None:
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
if MANIFEST["backward"] is not None:
    _arguments = MANIFEST["backward"]["arguments"]

    def _by_reference(inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The arguments of the backward task, put back in the order of inputs and gradients of outputs."""
        return _differentiated([inputs[_arguments.index(place)] for place in range(len(_arguments))])

    BACKWARD = Dispatcher(f"{NAME}_backward", MANIFEST["backward"]["ranges"], _by_reference)
RANGES = [*MANIFEST["ranges"], *(MANIFEST["backward"]["ranges"] if MANIFEST["backward"] is not None else [])]

if MANIFEST["differentiable"]:
    GRADIENTS = torch.library.custom_op(
        f"{NAME}_backward", _gradients, mutates_args=(), schema=MANIFEST["backward_schema"]
    )
    GRADIENTS.register_fake(_fake_gradients)
    torch.library.register_autograd(NAME, _backward, setup_context=_keep)
