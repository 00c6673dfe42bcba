"""Does kernel text mean the same to Triton's interpreter as to its compiler? Asked before the interpreter stands in.

Where the compiler reads a kernel as a language, the interpreter runs it as Python. A kernel that could tell the two
apart would be right in the one and idle in the other, so text may only use what both read alike: operators, what the
language exports, other kernels, and plain numbers. On a GPU none of this matters: there the compiled code is checked.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import types
from collections.abc import Iterator
from typing import Any

from triton.language.core import is_builtin

from evo_kernel.syntax import parse_module

_BUILTINS = {
    "range", "min", "max", "abs", "len", "float", "int", "bool", "print", "sum", "tuple", "list", "round", "str",
    "zip", "enumerate", "reversed", "sorted", "pow", "divmod", "any", "all", "ValueError", "AssertionError",
}  # fmt: skip
_PYTHON_HELPERS = {"cdiv", "next_power_of_2"}  # of triton, plain functions in some versions
_MODULES = ("triton.language", "triton.experimental.gluon.language")
_ROOTS = {"triton", "triton.experimental", "triton.experimental.gluon", "math"}
_INTERNAL = {"handle", "fn", "src", "format", "format_map", "with_traceback"}
_FRAMES = ("__", "gi_", "f_", "tb_", "co_", "cr_", "func_")


@functools.lru_cache(maxsize=4096)
def interpreter_gap(name: str, text: str) -> str:
    """What the interpreter may read otherwise than the compiler, in words; empty when there is nothing."""
    tree = parse_module(text)
    bound = _bound_modules(tree)
    for found, line in (*_faults_of_imports(tree), *_faults_of_bodies(tree, bound)):
        return f"kernel {name} {found} (line {line} of its text), which only the compiler reads as it is meant"
    return ""


def _bound_modules(tree: ast.Module) -> dict[str, Any]:
    """Names that the text's imports bind, and what they stand for."""
    bound: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                bound[alias.asname or root] = _module(alias.name if alias.asname else root)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                bound[alias.asname or alias.name] = getattr(_module(node.module), alias.name, None)
    return bound


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _faults_of_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                value = getattr(_module(node.module), alias.name, None)
                if isinstance(value, types.ModuleType) and not _is_language(value):
                    yield f"imports {value.__name__}", node.lineno
                elif not _is_of_the_language(value, alias.name):
                    yield f"imports {node.module}.{alias.name}", node.lineno


def _faults_of_bodies(tree: ast.Module, bound: dict[str, Any]) -> Iterator[tuple[str, int]]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    own = {function.name for function in functions}
    for function in functions:
        local = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        local |= {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
        bases = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Attribute)}
        for statement in function.body:
            for node in ast.walk(statement):
                found = _fault(node, bound, own, local, id(node) in bases)
                if found:
                    yield found, getattr(node, "lineno", function.lineno)


def _fault(node: ast.AST, bound: dict[str, Any], own: set[str], local: set[str], is_base: bool) -> str:
    """What one syntax node asks that the two may answer differently."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return "imports a module in its body"
    if isinstance(node, (ast.Try, ast.Global, ast.Nonlocal, ast.ClassDef, ast.Lambda, ast.Await, ast.Yield)):
        return f"holds Python's {type(node).__name__.lower()}"
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        if node.id in bound:
            return _fault_of_value(bound[node.id], node.id, is_base)
        if node.id in local or node.id in own or node.id in _BUILTINS:
            return ""
        return f"asks Python's {node.id}" if hasattr(builtins, node.id) else ""
    if isinstance(node, ast.Attribute):
        if node.attr in _INTERNAL or node.attr.startswith(_FRAMES):
            return f"looks at .{node.attr}"
        if isinstance(node.value, ast.Name) and node.value.id in own:
            return f"looks at .{node.attr} of a function"
        known, value = _resolved(node, bound)
        return _fault_of_value(value, ast.unparse(node), is_base) if known else ""
    return ""


def _resolved(node: ast.expr, bound: dict[str, Any]) -> tuple[bool, Any]:
    """(True, value) of an attribute chain that starts at an imported module."""
    if isinstance(node, ast.Name):
        return isinstance(bound.get(node.id), types.ModuleType), bound.get(node.id)
    if isinstance(node, ast.Attribute):
        known, owner = _resolved(node.value, bound)
        if known and isinstance(owner, types.ModuleType) and hasattr(owner, node.attr):
            return True, getattr(owner, node.attr)
    return False, None


def _fault_of_value(value: Any, spelled: str, is_base: bool) -> str:
    if isinstance(value, types.ModuleType):
        if not _is_language(value):
            return f"names the module {value.__name__}"
        return "" if is_base else f"hands the module {value.__name__} around"
    return "" if _is_of_the_language(value, spelled.rsplit(".", 1)[-1]) else f"calls {spelled}, a Python function"


def _is_language(module: types.ModuleType) -> bool:
    name = module.__name__
    return name in _ROOTS or name in _MODULES or name.startswith(tuple(f"{root}." for root in _MODULES))


def _is_of_the_language(value: Any, name: str) -> bool:
    """Everything but plain Python functions: those see what they are handed, and Triton itself."""
    if not isinstance(value, types.FunctionType) or is_builtin(value):
        return True
    return name in _PYTHON_HELPERS or value.__module__.startswith("triton.language.extra.")  # stubs of device libraries
