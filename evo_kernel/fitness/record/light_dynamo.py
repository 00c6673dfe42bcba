"""Keeps `torch._dynamo`, which takes as long to import as half of torch, out of the recorder.

Fake tensors import it for its configuration, and to call `disable`, which means nothing where nothing is compiled.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


class _LightDynamo(ModuleType):
    """`torch._dynamo` without its code; the real one takes its place when something else of it is asked for."""

    def disable(self, function: Any = None, *_: Any, **__: Any) -> Callable[..., Any]:
        return (lambda decorated: decorated) if function is None else function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def install() -> None:
    """Where torch has not imported its own yet."""
    if "torch._dynamo" not in sys.modules:
        package = _LightDynamo("torch._dynamo")
        package.__path__ = [f"{torch.__path__[0]}/_dynamo"]
        sys.modules[package.__name__] = torch._dynamo = package
