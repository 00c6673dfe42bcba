"""A call of a function as data: what it is called with, tensors apart from the rest."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from evo_kernel.errors import TaskError

_HERE = "the inputs' device"
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
_TAKEN = {"torch", "triton", "tl", "math", "run"}


@dataclass(frozen=True)
class Form:
    """How a function is called, but for its tensors: a tree of arguments with plain values at some leaves."""

    entry: str
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]  # None where `tensors` says so
    tensors: tuple[bool, ...]

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """The result, with these in place of tensors and of the inputs' device."""
        waiting, device = iter(values), values[0].device
        leaves = [
            next(waiting) if tensor else device if leaf == _HERE else leaf
            for leaf, tensor in zip(self.leaves, self.tensors, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return function(*args, **kwargs)

    @property
    def key(self) -> str:
        return repr((self.entry, str(self.spec), self.leaves, self.tensors))


@dataclass(frozen=True)
class CallForm:
    """One call that a script made: its form, and its tensors."""

    form: Form
    tensors: tuple[torch.Tensor, ...]

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)


def noted_call(entry: str, args: Any, kwargs: Any) -> CallForm:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = tuple(is_tensor(leaf) for leaf in leaves)
    plain = []
    for leaf, tensor in zip(leaves, tensors, strict=True):
        if not tensor and not isinstance(leaf, _PLAIN):
            raise TaskError(f"{entry} is called with a {type(leaf).__name__}: tensors and plain values can be inputs")
        device = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf in ("cpu", "cuda", "meta"))
        plain.append(None if tensor else _HERE if device else leaf)
    return CallForm(Form(entry, spec, tuple(plain), tensors), tuple(leaf for leaf in leaves if is_tensor(leaf)))


def with_defaults(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The same call with nothing left to defaults and nothing to write to, so that equal calls look equal."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):  # a wrong call: the function will say so
        return args, kwargs
    bound.apply_defaults()
    if "out" in bound.arguments and signature.parameters["out"].default is None:  # holds nothing yet: no input
        bound.arguments["out"] = None
    return bound.args, bound.kwargs


def free_name(wanted: str, taken: Sequence[str]) -> str:
    name = re.sub(r"\W", "_", wanted).replace("kernel", "window").strip("_") or "x"
    if not name.isidentifier() or keyword.iskeyword(name) or name in _TAKEN:
        name = f"w_{name}"
    while name in taken:
        name += "_"
    return name


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
