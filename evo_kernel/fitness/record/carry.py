"""A jitted kernel as self-contained text: the function, what it calls, and the constants it reads. Nothing else.

The text is what travels in a plan. It is compiled, interpreted and exported; the candidate's module is not. Runs in
the recorder's child.
"""

from __future__ import annotations

import ast
import importlib
import math
import types
from collections.abc import Iterator
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from evo_kernel.syntax import parse_module

PREAMBLE = "import triton\nimport triton.language as tl\n"
_BASIC = (bool, int, float, str, type(None))


class CannotCarry(Exception):
    """The kernel reads something that has no text of its own; the message names it."""


def kernel_text(kernel: JITFunction) -> str:
    """Module text that defines `kernel` under its own name. Raises CannotCarry."""
    carrier = _Carrier()
    carrier.function(kernel, kernel.__name__)
    return PREAMBLE + "".join(carrier.parts)


class _Carrier:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self._bound: dict[str, Any] = {"triton": _module("triton"), "tl": tl}

    def function(self, function: Any, name: str) -> None:
        """Add a jitted function and, before it, everything that it names."""
        if not self._claim(name, function):
            return
        source = function.src
        scope = _scope(function)
        for free in _free_names(source):
            if free in scope:
                self._value(free, scope[free], scope)
        own_name = function.__name__
        if own_name != name and not self._claim(own_name, function):
            raise CannotCarry(f"two functions are called {own_name}: give them different names")
        self.parts.append(f"\n\n{_decorator(function)}\n{source.rstrip()}\n")
        if own_name != name:
            self.parts.append(f"\n{name} = {own_name}\n")

    def _claim(self, name: str, value: Any) -> bool:
        if name in self._bound:
            if self._bound[name] is value or _same_constant(self._bound[name], value):
                return False
            raise CannotCarry(f"the name {name} stands for two things in one kernel: give them different names")
        self._bound[name] = value
        return True

    def _value(self, name: str, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(value, types.ModuleType):
            if self._claim(name, value):
                self.parts.append(_import_module(name, value))
        elif (origin := _library_origin(value)) is not None:
            if self._claim(name, value):
                self.parts.append(f"from {origin[0]} import {origin[1]} as {name}\n")
        elif hasattr(value, "src") and hasattr(value, "fn"):
            self.function(value, name)
        else:
            text = _constant_text(value)
            if text is None:
                raise CannotCarry(
                    f"the kernel reads the global {name} of type {type(value).__name__}: pass it as a parameter, "
                    "or make it a tl.constexpr of a number, a string or a dtype"
                )
            if self._claim(name, value):
                annotation = scope.get("__annotations__", {}).get(name)
                typed = ": tl.constexpr" if "constexpr" in str(annotation) else ""
                self.parts.append(f"{name}{typed} = {text}\n")


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(name)


def _scope(function: Any) -> dict[str, Any]:
    raw = function.fn
    closure = raw.__closure__ or ()
    captured = {
        name: cell.cell_contents for name, cell in zip(raw.__code__.co_freevars, closure, strict=True) if _filled(cell)
    }
    return raw.__globals__ | captured


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  an empty cell raises on access
    except ValueError:
        return False
    return True


def _free_names(source: str) -> Iterator[str]:
    """Names that a function's text reads and does not set itself, in order of first appearance."""
    nodes = list(ast.walk(parse_module(source)))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in own:
            own.add(node.id)
            yield node.id


def _decorator(function: Any) -> str:
    kind = type(function).__name__
    if kind == "GluonJITFunction":
        return "from triton.experimental import gluon as _gluon\n\n\n@_gluon.jit"
    if kind == "ConstexprFunction":
        return "@triton.constexpr_function"
    return "@triton.jit(noinline=True)" if getattr(function, "noinline", False) else "@triton.jit"


def _import_module(name: str, module: types.ModuleType) -> str:
    root = module.__name__.split(".")[0]
    if root not in ("triton", "math"):
        raise CannotCarry(f"the kernel names the module {module.__name__}: only triton and math exist on the GPU")
    return f"import {module.__name__} as {name}\n" if name != module.__name__ else f"import {name}\n"


def _library_origin(value: Any) -> tuple[str, str] | None:
    """(module, attribute) of an object that belongs to triton itself."""
    module = getattr(value, "__module__", None) or ""
    attribute = getattr(value, "__name__", None) or getattr(getattr(value, "fn", None), "__name__", None)
    if not module.startswith("triton.") or not attribute:
        return None
    for place in (module, "triton.language", "triton"):
        if getattr(_module(place), attribute, None) is value:
            return place, attribute
    return None


def _constant_text(value: Any) -> str | None:
    if isinstance(value, tl.constexpr):
        inner = _constant_text(value.value)
        return None if inner is None else f"tl.constexpr({inner})"
    if isinstance(value, tl.dtype):
        return f"tl.dtype({value.name!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, _BASIC):
        return repr(value)
    if type(value) in (tuple, list):
        parts = [_constant_text(item) for item in value]
        if any(part is None for part in parts):
            return None
        body = ", ".join(part for part in parts if part is not None)
        return f"[{body}]" if isinstance(value, list) else f"({body},)" if len(parts) == 1 else f"({body})"
    return None


def _same_constant(left: Any, right: Any) -> bool:
    text = _constant_text(left)
    return text is not None and text == _constant_text(right)
