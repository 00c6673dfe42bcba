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
from evo_kernel.syntax import parse_expression
from evo_kernel.tasks.task import positional_names

_HERE = "the inputs' device"
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
_TAKEN = {"torch", "triton", "tl", "math", "run"}


class _Word(str):
    """Text that is its own repr: a name among values."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Form:
    """How a function is called, but for its tensors: a tree of arguments with plain values at some leaves."""

    entry: str
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]  # None where `tensors` says so
    tensors: tuple[bool, ...]

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        args, kwargs = self._filled(values, values[0].device)
        return function(*args, **kwargs)

    def written(self, names: Sequence[str]) -> str:
        """The call as Python text, with these names for its tensors."""
        args, kwargs = self._filled([_Word(name) for name in names], _Word(f"{names[0]}.device"))
        told = [repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
        return f"{self.entry}({', '.join(told)})"

    def _filled(self, values: Sequence[Any], device: Any) -> tuple[Any, Any]:
        """Positional and named arguments, with these in place of tensors and of the inputs' device."""
        waiting = iter(values)
        leaves = [
            next(waiting) if tensor else device if leaf == _HERE else leaf
            for leaf, tensor in zip(self.leaves, self.tensors, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def told(self) -> tuple[str | None, ...]:
        """How a solution tells the leaves apart: None where a tensor is; a device is whichever the tensors are on."""
        pairs = zip(self.leaves, self.tensors, strict=True)
        return tuple(None if tensor else "device" if leaf == _HERE else repr(leaf) for leaf, tensor in pairs)

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


@dataclass(frozen=True)
class Returned:
    """What a function returns, as text over `made`, its outputs as one list, and `given`, its tensors; and which of
    `given` it writes to, with the output that holds the new values."""

    text: str
    writes: tuple[tuple[int, int], ...]


def returned(result: Any, given: Sequence[torch.Tensor], changed: Sequence[int]) -> Returned:
    """The outputs are in the order of a task's: every tensor returned, then what is written to and not among them."""
    leaves, spec = pytree.tree_flatten(result)
    made = [leaf for leaf in leaves if is_tensor(leaf)]
    words = []
    for leaf in leaves:
        own = [index for index in changed if leaf is given[index]]
        number = next((n for n, tensor in enumerate(made) if tensor is leaf), None)
        words.append(_Word(f"given[{own[0]}]") if own else leaf if number is None else _Word(f"made[{number}]"))
    written = [index for index in changed if not any(given[index] is tensor for tensor in made)]
    places = made + [given[index] for index in written]
    text = repr(pytree.tree_unflatten(words, spec))
    try:
        parse_expression(text)
    except SyntaxError as error:
        raise TaskError(f"it returns {type(result).__name__}, which is no plain data") from error
    return Returned(text, tuple((i, next(n for n, t in enumerate(places) if t is given[i])) for i in changed))


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


def parameters_of(function: Any) -> list[str]:
    owner: Any = getattr(function, "__self__", None)
    if is_differentiable(owner):
        return parameters_of(owner.forward)[1:]  # without its context
    return positional_names(function)


def free_name(wanted: str, taken: Sequence[str]) -> str:
    name = re.sub(r"\W", "_", wanted).replace("kernel", "window").strip("_") or "x"
    if not name.isidentifier() or keyword.iskeyword(name) or name in _TAKEN:
        name = f"w_{name}"
    while name in taken:
        name += "_"
    return name


def is_differentiable(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
