"""Tensors without memory while a task's `inputs` runs; and a stand-in that keeps `torch._dynamo` from being imported.

Torch's FakeTensorMode does the same and more, but imports torch's compiler, which takes nearly as long as torch itself.
Fake tensors and operations on the meta device import `torch._dynamo` for its configuration, and to call `disable`,
which means nothing in a process that compiles nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class Blank(TorchDispatchMode):
    """What is drawn while it is on, and all that is computed from it, lives on the meta device.

    With `integers`, those are real. What reads values of a tensor without memory, or would write them to a real one,
    raises an error.
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
            if self._integers and not all(tensor.is_meta for tensor in _written(func, args, kwargs)):
                raise RuntimeError(f"{func} writes values that are not there")  # a copy without memory would take them
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


def by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """An operation's arguments, as far as they are given, by their names in its schema."""
    return dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Tensors among the arguments that an operation changes."""
    named = by_name(func, args, kwargs)
    changed = [named.get(one.name) for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]
    return [leaf for leaf in tree_leaves(changed) if isinstance(leaf, torch.Tensor)]


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


class _Light(ModuleType):
    """A module of torch's without its code; the real one takes its place when something else of it is asked for."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        self.__path__ = [str(Path(torch.__path__[0], *name.split(".")[1:]))]
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for known in [known for known in vars(self) if not known.startswith("__")]:
            delattr(self, known)  # whoever holds this module gets all else from the real one too
        return getattr(_real(self.__name__), name)


class _Submodules(MetaPathFinder):
    """Imports the real package before any of its modules but the configuration."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.rpartition(".")[0]
        if not isinstance(sys.modules.get(package), _Light) or fullname == "torch._dynamo.config":
            return None
        _real(package)
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


def _real(name: str) -> ModuleType:
    loaded = sys.modules.copy()  # another thread may import
    for light in [n for n, module in loaded.items() if f"{n}.".startswith(f"{name}.") and type(module) is _Light]:
        del sys.modules[light]
    return importlib.import_module(name)


def _disable(function: Any = None, *_: Any, **__: Any) -> Callable[..., Any]:
    return (lambda decorated: decorated) if function is None else function


def keep_dynamo_out() -> None:
    """Where torch has not imported its own yet."""
    if "torch._dynamo" not in sys.modules:
        keep_out("torch._dynamo", disable=_disable)
        # What the fake of a real tensor stands for: its name, which nobody asks for, and no random value.
        keep_out("torch._dynamo.source", ConstantSource=str, RandomValueSource=type("RandomValueSource", (), {}))


def keep_out(name: str, **known: Any) -> None:
    """Put a module that has only what is `known`, until more of it is asked for, where torch would import its own."""
    package, _, own = name.rpartition(".")
    sys.modules[name] = _Light(name, **known)
    setattr(sys.modules[package], own, sys.modules[name])
    if not any(isinstance(finder, _Submodules) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Submodules())
