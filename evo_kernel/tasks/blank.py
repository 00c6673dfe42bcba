"""Tensors without memory while a task's `inputs` runs; and a stand-in that keeps `torch._dynamo` from being imported.

Torch's FakeTensorMode does the same and more, but imports torch's compiler, which takes nearly as long as torch itself.
Fake tensors and operations on the meta device import `torch._dynamo` for its configuration, and to call `disable`,
which means nothing in a process that compiles nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class Blank(TorchDispatchMode):
    """What is drawn while it is on, and all that is computed from it, lives on the meta device.

    With `integers`, those are real. What reads values of a tensor without memory raises an error of torch's.
    """

    def __init__(self, integers: bool = False) -> None:
        keep_dynamo_out()
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


_NAME = "torch._dynamo"


class _LightDynamo(ModuleType):
    """`torch._dynamo` without its code; the real one takes its place when something else of it is asked for."""

    def disable(self, function: Any = None, *_: Any, **__: Any) -> Callable[..., Any]:
        return (lambda decorated: decorated) if function is None else function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(), name)


class _Submodules(MetaPathFinder):
    """Imports the real package before any of its modules but the configuration."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        light = isinstance(sys.modules.get(_NAME), _LightDynamo)
        if not light or not fullname.startswith(f"{_NAME}.") or fullname == f"{_NAME}.config":
            return None
        _real()
        loaded = sys.modules.get(fullname)
        return spec_from_loader(fullname, _Loaded(loaded)) if loaded is not None else None


class _Loaded(Loader):
    """Of a module that its package has imported meanwhile."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""


def _real() -> ModuleType:
    if isinstance(sys.modules.get(_NAME), _LightDynamo):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)


def keep_dynamo_out() -> None:
    """Where torch has not imported its own yet."""
    if _NAME not in sys.modules:
        package = _LightDynamo(_NAME)
        package.__path__ = [f"{torch.__path__[0]}/_dynamo"]
        sys.modules[_NAME] = torch._dynamo = package
        sys.meta_path.insert(0, _Submodules())
