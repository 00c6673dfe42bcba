"""Keeps `torch._dynamo`, which takes as long to import as half of torch, out of a process that compiles nothing.

Fake tensors and operations on the meta device import it for its configuration, and to call `disable`, which means
nothing there.
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


def install() -> None:
    """Where torch has not imported its own yet."""
    if _NAME not in sys.modules:
        package = _LightDynamo(_NAME)
        package.__path__ = [f"{torch.__path__[0]}/_dynamo"]
        sys.modules[_NAME] = torch._dynamo = package
        sys.meta_path.insert(0, _Submodules())
