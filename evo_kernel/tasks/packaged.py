"""A function of an installed package as a kernel: `package.module:function`, or `package.module:Class.method`.

Nothing of the package is executed here. The kernel's source is the text of the module that defines the function, with a
line that names it `run`. Modules of the package with kernels, of which it uses names, stand before it, so that a search
can rewrite them; what has the name of something else there gets another. Other imports within the package are written
out in full, so that the recorder finds them where they are installed.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate, count
from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.syntax import parse_module
from evo_kernel.types import Source

_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*)")
_MOST_STEPS = 16
"""From one module to the next that a name is imported from."""
_ONCE = re.compile(r"torch\.library|custom_op|triton_op")
"""What may be done once only, and the package does too where it is imported for something else."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUTURE = "from __future__ import "
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
            return Source(f"{_Bundle(found, first).text}\n\nrun = {first}{rest}\n")
        module, first = origin
    raise UserError(f"{name}: {first} is imported from module to module: name the one that defines it.")


@dataclass(frozen=True, eq=False)
class _Module:
    """A module as it is installed. `package`: what its relative imports start from."""

    name: str
    package: str
    text: str
    tree: ast.Module

    @classmethod
    def find(cls, name: str) -> _Module:
        """Raises UserError."""
        return _module(name, tuple(sys.path))

    @classmethod
    def read(cls, name: str) -> _Module:
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
            source = self.absolute(statement)
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

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The full name of the module that a statement imports from."""
        parents = self.package.split(".")
        base = parents[: len(parents) - statement.level + 1] if statement.level else []
        return ".".join([*base, *([statement.module] if statement.module else [])])

    def defined_at(self, statement: ast.ImportFrom, name: str) -> tuple[_Module, str] | None:
        """The module of the same package, and its name there, of a name that a statement imports; None where it is
        another package's, a module, or not found."""
        return self._followed(self.absolute(statement), name)

    def _followed(self, module: str, name: str) -> tuple[_Module, str] | None:
        if module.partition(".")[0] != self.name.partition(".")[0]:
            return None
        with contextlib.suppress(UserError):
            for _ in range(_MOST_STEPS):
                found = _Module.find(module)
                origin = found.origin_of(name)
                if origin is None:
                    return found, name
                module, name = origin
        return None

    @cached_property
    def definitions(self) -> Mapping[str, Sequence[ast.stmt]]:
        """The statements that define each name of the module's own."""
        found = dict[str, list[ast.stmt]]()
        for statement in _statements(self.tree):
            for name in _defined(statement):
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def _imported(self) -> Mapping[str, tuple[ast.ImportFrom, str]]:
        """By the names that it has here: the statement that imports it, and its name there."""
        statements = [one for one in _statements(self.tree) if isinstance(one, ast.ImportFrom)]
        return {alias.asname or alias.name: (one, alias.name) for one in statements for alias in one.names}

    def place_of(self, name: str) -> tuple[_Module, str] | None:
        """The module of the package that defines what a name, or `module.name`, is here, and its name there."""
        if name in self.definitions:
            return self, name
        owner, _, inner = name.rpartition(".")
        if (owner or name) not in self._imported:
            return None
        statement, there = self._imported[owner or name]
        found = self.defined_at(statement, there)
        if not owner or found:  # what a package defines hides its module of that name
            return found if not owner else None
        return self._followed(f"{self.absolute(statement)}.{there}", inner)

    def reached(self, name: str) -> Iterator[ast.stmt]:
        """The definitions of its own that a name's definition needs, and that one."""
        todo, seen = [name], {name}
        while todo:
            for statement in self.definitions.get(todo.pop(), ()):
                yield statement
                new = _words(statement) - seen
                todo += new
                seen |= new

    @cached_property
    def bound_inside(self) -> Set[str]:
        """Names that mean something else in some function, class or comprehension, or may."""
        found, top = set[str](), set(map(id, _statements(self.tree)))
        for scope in ast.walk(self.tree):
            match scope:
                case ast.arg(arg=name) | ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
                    found.add(name)
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    found |= set(names)
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases) if id(scope) not in top:
                    found |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if id(scope) not in top:
                    found.add(name)
            inner = isinstance(
                scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension
            )
            if inner or isinstance(scope, ast.JoinedStr):  # places in these are unknown before Python 3.12
                parts = [part for part in ast.walk(scope) if isinstance(part, ast.Name)]
                found |= {part.id for part in parts if not inner or not isinstance(part.ctx, ast.Load)}
        return found

    @cached_property
    def renamable(self) -> Set[str]:
        return self.definitions.keys() - self._imported.keys() - self.bound_inside

    @cached_property
    def tuned_by(self) -> Set[str]:
        """Names of which its kernels' configurations and rules are made."""
        functions = [one for one in _statements(self.tree) if isinstance(one, ast.FunctionDef)]
        given = [value for one in functions for made in one.decorator_list if isinstance(made, ast.Call)
                 for value in (*made.args, *[keyword.value for keyword in made.keywords])]  # fmt: skip
        return set().union(*map(_words, given))

    def own_meaning(self, name: str) -> str:
        """Of a name that it defines: the text of a value, the place of a function or class."""
        statements = self.definitions[name]
        values = all(isinstance(one, (ast.Assign, ast.AnnAssign)) for one in statements)
        return "; ".join(map(ast.unparse, statements)) if values else f"{self.name}.{name}"

    @cached_property
    def meanings(self) -> Mapping[str, str]:
        """What each name at top level means: equal text means the same, in whatever module."""
        meant = dict[str, str]()
        for name, (statement, there) in self._imported.items():
            found = self.defined_at(statement, there)
            meant[name] = found[0].own_meaning(found[1]) if found else f"{self.absolute(statement)}.{there}"
        meant |= {name: self.own_meaning(name) for name in self.definitions}
        for statement in _statements(self.tree):
            for alias in statement.names if isinstance(statement, ast.Import) else ():
                meant[alias.asname or alias.name.partition(".")[0]] = f"import {alias.name if alias.asname else ''}"
        return meant

    def standalone(self, instead: Mapping[ast.AST, str], names: Mapping[str, str]) -> str:
        """The text without relative imports, with other text in place of some nodes, and other names for its own."""
        text = self.text.encode()
        starts = list(accumulate(map(len, text.splitlines(keepends=True)), initial=0))
        edits = list[tuple[int, int, str]]()
        for node in ast.walk(self.tree):
            start = starts[getattr(node, "lineno", 1) - 1] + getattr(node, "col_offset", 0)
            end = starts[(getattr(node, "end_lineno", 0) or 1) - 1] + (getattr(node, "end_col_offset", 0) or 0)
            match node:
                case _ if node in instead:
                    edits.append((start, end, instead[node]))
                case ast.ImportFrom(level=level) if level and (words := _FROM.match(text, start)):
                    edits.append((start, words.end(), f"from {self.absolute(node)} "))
                case ast.Name(id=name) if name in names:
                    edits.append((start, end, names[name]))
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in names:
                    start = text.index(name.encode(), start + len("class" if isinstance(node, ast.ClassDef) else "def"))
                    edits.append((start, start + len(name.encode()), names[name]))
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new.encode() + text[end:]
        return text.decode()


class _Bundle:
    """A module, behind those modules of its package from which it imports functions that lead to kernels."""

    def __init__(self, first: _Module, wanted: str) -> None:
        self._names, self._renamed = dict(first.meanings), dict[str, dict[str, str]]()
        self._texts, self._part, self._leading = dict[str, str](), {first.name: True}, dict[tuple[str, str], bool]()
        self._words = set(_WORD.findall(first.text))
        self._add(first, first.reached(wanted))

    @property
    def text(self) -> str:
        lines = "\n\n".join(self._texts.values()).splitlines(keepends=True)
        future = sorted({line for line in lines if line.startswith(_FUTURE)}) if len(self._texts) > 1 else []
        return "".join([*future, *[line for line in lines if line not in future]])

    def _add(self, module: _Module, used: Iterable[ast.stmt]) -> None:
        """A module's text. `used`: its statements in which names of imported modules are looked up."""
        instead = dict[ast.AST, str]()
        for statement in module.tree.body:
            if not isinstance(statement, ast.ImportFrom):
                continue
            left, lines = list[ast.alias](), list[str]()
            for alias in statement.names:
                found = module.defined_at(statement, alias.name)
                if found is None or not self._holds(*found, (alias.asname or alias.name) in module.tuned_by):
                    left.append(alias)
                elif (name := alias.asname or alias.name) != (here := self._here(*found)):
                    lines.append(f"{name} = {here}")
            if len(left) < len(statement.names):
                rest = [ast.unparse(ast.ImportFrom(module.absolute(statement), left, 0))] if left else []
                instead[statement] = "; ".join([*lines, *rest])
        for part in (part for statement in used for part in ast.walk(statement)):
            owner, _, name = (word := _word(part)).partition(".")
            found = module.place_of(word) if name and not {owner, name} & module.bound_inside else None
            if found and self._holds(*found, word in module.tuned_by):
                instead[part] = self._here(*found)
        self._texts[module.name] = module.standalone(instead, self._renamed.get(module.name, {}))

    def _here(self, module: _Module, name: str) -> str:
        return self._renamed.get(module.name, {}).get(name, name)

    def _holds(self, module: _Module, name: str, needed: bool) -> bool:
        """Whether a module is part of the text: from now on, if the name is `needed` or leads to a kernel, and names of
        it that mean something else here can have others."""
        if module.name not in self._part and (needed or self._leads(module, name)):
            apart = [own for own, meant in module.meanings.items() if self._names.get(own, meant) != meant]
            fits = all(own in module.renamable for own in apart)
            self._part[module.name] = fits and not _ONCE.search(module.text)
            self._words |= set(_WORD.findall(module.text))
            if self._part[module.name]:
                names = self._renamed[module.name] = dict[str, str]()
                for own in apart:
                    names[own] = next(new for n in count(2) if (new := f"{own}_{n}") not in self._words)
                    self._words.add(names[own])
                self._names |= {names.get(own, own): meant for own, meant in module.meanings.items()}
                self._add(module, module.tree.body)
        return self._part.get(module.name, False)

    def _leads(self, module: _Module, name: str) -> bool:
        """Whether a definition is a kernel's, or names one that is, directly or not."""
        if (module.name, name) not in self._leading:
            self._leading[module.name, name] = False  # while it is looked at: functions may call one another
            self._leading[module.name, name] = any(
                "tl.program_id" in ast.unparse(statement)
                or any(
                    self._leads(*found) for word in _words(statement) if (found := module.place_of(word)) is not None
                )
                for statement in module.definitions.get(name, ())
            )
        return self._leading[module.name, name]


def _words(statement: ast.AST) -> set[str]:
    """Names that a statement mentions, and what it takes of them (`module.name`)."""
    return {word for part in ast.walk(statement) if (word := _word(part))}


def _word(part: ast.AST) -> str:
    match part:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    return ""


@lru_cache(maxsize=1024)
def _module(name: str, path: tuple[str, ...]) -> _Module:
    """`path`: of the interpreter, which says where modules are found. Raises UserError."""
    return _Module.read(name)


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
