"""Tensors without memory while a task's `inputs` runs: shapes, dtypes and strides alone.

Torch's FakeTensorMode does the same and more, but imports torch's compiler, which takes nearly as long as torch itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from evo_kernel.tasks import light_dynamo


class Blank(TorchDispatchMode):
    """What is drawn while it is on, and all that is computed from it, lives on the meta device.

    With `integers`, those are real. What reads values of a tensor without memory raises an error of torch's.
    """

    def __init__(self, integers: bool = False) -> None:
        light_dynamo.install()
        super().__init__()
        self._integers = integers

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while it is on; to say so would import the compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            return _on_meta(func, args, kwargs)
        if tensors and not ({"device", "dtype"} & kwargs.keys()):
            return func(*args, **kwargs)
        try:
            made = _on_meta(func, args, kwargs)
        # Whatever has no meta kernel is made for real: the cost is memory, never a wrong value.
        except (RuntimeError, NotImplementedError):
            return func(*args, **kwargs)
        is_real = self._integers and not (isinstance(made, torch.Tensor) and not is_integer(made.dtype))
        return func(*args, **kwargs) if is_real else made


def is_integer(dtype: torch.dtype) -> bool:
    """Booleans count as integers."""
    return not (dtype.is_floating_point or dtype.is_complex)


_RANDOM = {"rand": None, "randn": None, "randint": torch.int64, "randperm": torch.int64}
"""Draws, with the dtype that they have where none is said; None: torch's default. Their own kernels without memory are
written in Python, and import the compiler."""
_REDRAWN = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_"}


def _on_meta(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.partition("::")[2]
    if name in _RANDOM:
        sizes = [one for one in args if isinstance(one, (list, tuple))]
        shape = sizes[-1] if sizes else args[:1]
        return torch.empty(shape, dtype=kwargs.get("dtype") or _RANDOM[name], device="meta")
    if name in _REDRAWN and args[0].is_meta:
        return args[0]

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        if isinstance(value, torch.Generator):
            return None
        return torch.device("meta") if isinstance(value, torch.device) else value

    arguments = {name: moved(value) if name == "device" else tree_map(moved, value) for name, value in kwargs.items()}
    if "device" in {argument.name for argument in func._schema.arguments}:
        arguments["device"] = torch.device("meta")
    return func(*tree_map(moved, args), **arguments)
