"""A function of an installed package as a kernel: `package.module:function`, or `package.module:Class.method`.

Nothing of the package is executed here. The kernel's source is the text of the module that defines the function, with a
line that names it `run`; imports within the package are written out in full, so that the recorder finds them where they
are installed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.syntax import parse_module
from evo_kernel.types import Source

_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*)")
_MOST_STEPS = 16
"""From one module to the next that a name is imported from."""
_FROM = re.compile(rb"from\s+(\.+)\s*([\w.]*)\s*(?=import\b)")


def names_function(text: str) -> bool:
    """Whether a text has the form `package.module:function`."""
    return _NAME.fullmatch(text) is not None


def packaged_source(name: str) -> Source:
    """The kernel that `package.module:function` names. Raises UserError."""
    matched = _NAME.fullmatch(name)
    assert matched is not None, name
    module, first, rest = matched.groups()
    for _ in range(_MOST_STEPS):
        found = _Module.find(module)
        origin = found.origin_of(first)
        if origin is None:
            return Source(f"{found.standalone}\n\nrun = {first}{rest}\n")
        module, first = origin
    raise UserError(f"{name}: {first} is imported from module to module: name the one that defines it.")


@dataclass(frozen=True)
class _Module:
    """A module as it is installed. `package`: what its relative imports start from."""

    name: str
    package: str
    text: str
    tree: ast.Module

    @classmethod
    def find(cls, name: str) -> _Module:
        """Raises UserError."""
        spec = _spec(name)
        if spec is None or not (spec.origin or "").endswith(".py"):
            raise UserError(
                f"{name} is no module of an installed package. Install it beside evo-kernel, or give a file."
            )
        try:
            text = Path(str(spec.origin)).read_text(encoding="utf-8")
            tree = parse_module(text)
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{name} cannot be read ({spec.origin}): {error}") from error
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        return cls(name, package, text, tree)

    def origin_of(self, name: str) -> tuple[str, str] | None:
        """The module and name that a name is imported from; None if it is defined here. Raises UserError."""
        imported, starred = None, []
        for statement in _statements(self.tree):
            if name in _defined(statement):
                return None
            if not isinstance(statement, ast.ImportFrom):
                continue
            source = self._absolute(statement)
            for alias in statement.names:
                if alias.name == "*":
                    starred.append(source)
                elif (alias.asname or alias.name) == name:
                    imported = source, alias.name
        for module in starred if imported is None else ():
            if any(name in _defined(statement) for statement in _statements(_Module.find(module).tree)):
                return module, name
        if imported is None:
            raise UserError(f"{self.name} has no function or class {name} of its own, and imports none by that name.")
        return imported

    def _absolute(self, statement: ast.ImportFrom) -> str:
        """The full name of the module that a statement imports from."""
        parents = self.package.split(".")
        base = parents[: len(parents) - statement.level + 1] if statement.level else []
        return ".".join([*base, *([statement.module] if statement.module else [])])

    @property
    def standalone(self) -> str:
        """The text without relative imports."""
        lines = self.text.encode().splitlines(keepends=True)
        for node in (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom) and node.level):
            line, start = lines[node.lineno - 1], node.col_offset
            full = f"from {self._absolute(node)} ".encode()
            lines[node.lineno - 1] = line[:start] + _FROM.sub(full, line[start:], count=1)
        return b"".join(lines).decode()


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those that a module executes at its top level, also under `if` and `try`."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop(0)
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            handlers = [one for handler in getattr(statement, "handlers", ()) for one in handler.body]
            waiting += [*statement.body, *getattr(statement, "orelse", ()), *handlers]


def _defined(statement: ast.stmt) -> set[str]:
    """Names that a statement defines itself."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is installed. `importlib.util.find_spec` would execute its packages."""
    top, *inner = name.split(".")
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    spec = next((found for find in finders if find is not None and (found := find(top, None))), None)
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By the last part of its name: the whole one looks for its parent, which may be no imported package.
        spec = PathFinder.find_spec(part, spec.submodule_search_locations)
    return spec
