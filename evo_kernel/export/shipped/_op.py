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

TASK = _task.load(MANIFEST["ranges"][0]["task"])
_choices: dict[tuple[Any, ...], str | Callable[..., Any]] = {}
_warned: list[str] = []


def interpreting() -> bool:
    """Whether Triton executes kernels on the CPU, which TRITON_INTERPRET=1 asks for before Triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


@functools.cache
def kernel(name: str) -> Callable[..., Any]:
    """`run` of kernels/NAME.py. Raises ImportError where Triton is not installed."""
    private = f"{__package__}.kernels.{name}"
    spec = importlib.util.spec_from_file_location(private, HERE / "kernels" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    spec.loader.exec_module(module)
    return module.run


def chosen(*inputs: Any) -> str:
    """Name of the kernel that a call with these inputs goes to; `reference: WHY` where none does."""
    name, reason = _choose(inputs)
    return name or f"reference: {reason}"


def reference(*inputs: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """What the operator computes, by PyTorch."""
    made = _task.outputs(TASK, inputs)
    return made[0] if MANIFEST["outputs"] == 1 else made


def _choose(inputs: Sequence[Any]) -> tuple[str, str]:
    """(kernel, "") or ("", why none)."""
    reasons = []
    for span in MANIFEST["ranges"]:
        reason = _device(inputs, span) or _rules.outside(inputs, span)
        if not reason:
            return _rules.nearest(inputs, span["cases"])["kernel"], ""
        reasons.append(reason)
    return "", "; or ".join(dict.fromkeys(reasons))


def _device(inputs: Sequence[Any], span: _rules.Rule) -> str:
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


def _fallback(reason: str) -> None:
    if not _warned:
        _warned.append(reason)
        warnings.warn(f"{NAME}: computed by the reference, {reason}. Told once.", RuntimeWarning, stacklevel=4)


def _computed(inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    key = _rules.signature(inputs)
    found = _choices.get(key)
    if found is None:
        name, found = _choose(inputs)
        try:
            found = kernel(name) if name else found
        except ImportError as error:  # a package may be used, slowly, where Triton is not installed
            found = f"{name} needs {error.name}, which is not installed"
        if len(_choices) >= KEPT:
            _choices.clear()
        _choices[key] = found
    if isinstance(found, str):
        _fallback(found)
        return _task.outputs(TASK, inputs)
    device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        made = found(*inputs)
    else:
        with torch.cuda.device(device):  # Triton launches on the current device
            made = found(*inputs)
    return (made,) if isinstance(made, torch.Tensor) else tuple(made)


def _laid_out(made: torch.Tensor, order: Sequence[int], inputs: Sequence[Any]) -> torch.Tensor:
    """The tensor in the layout that fake tensors promise, and no view of an input: operators must not return any."""
    taken = {v.untyped_storage().data_ptr() for v in inputs if isinstance(v, torch.Tensor)}
    if _rules.lies_in(made, order) and made.untyped_storage().data_ptr() not in taken:
        return made
    return _empty(made.shape, order, made).copy_(made)


def _empty(shape: Sequence[int], order: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(shape), _rules.dense_strides(shape, order), dtype=like.dtype, device=like.device)


def _one_or_all(tensors: Sequence[torch.Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _implementation(*inputs: Any) -> Any:
    made = _computed(inputs)
    orders = MANIFEST["layouts"]
    return _one_or_all([_laid_out(tensor, order, inputs) for tensor, order in zip(made, orders, strict=True)])


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


def _gradients(*values: Any) -> Any:
    """Gradients of the floating-point inputs, by differentiating the reference at the saved inputs."""
    count = len(MANIFEST["names"])
    inputs, outer = values[:count], values[count:]
    places = MANIFEST["differentiable"]

    def differentiated(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full = list(inputs)
        for place, leaf in zip(places, leaves, strict=True):
            full[place] = leaf
        return tuple(one for one in _task.outputs(TASK, tuple(full)) if one.is_floating_point())

    pull = torch.func.vjp(differentiated, *(inputs[place] for place in places))[1]
    made = pull(tuple(outer))
    return _one_or_all([_like(inputs[place], grad) for place, grad in zip(places, made, strict=True)])


def _like(value: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
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


if MANIFEST["differentiable"]:
    GRADIENTS = torch.library.custom_op(
        f"{NAME}_backward", _gradients, mutates_args=(), schema=MANIFEST["backward_schema"]
    )
    GRADIENTS.register_fake(_fake_gradients)
    torch.library.register_autograd(NAME, _backward, setup_context=_keep)
