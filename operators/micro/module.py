"""A Triton source as a structure: constants, kernels, loops, memory accesses, launches and buffers, with exact edits.

The text is kept as it is. Analysis reads its syntax tree; an edit replaces a span of the text, so that whatever no edit
names (comments, blank lines, spelling) comes back byte for byte: `KernelModule.parse(text).text == text`.
Everything here is syntax and data flow; nothing is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from operators.micro import kernels as parts
from operators.micro.canonical import canonical
from operators.micro.kernels import VIEWS, HostFunction, SourceKernel, SourceLaunch
from operators.micro.syntax import fresh_name, names_read, names_written, spell
from operators.micro.text import Edit, TextMap, splice


def _is_named(host: HostFunction, words: set[str]) -> bool:
    """Whether code with these words may call a function; of a class, also what Python or PyTorch calls by itself."""
    own = host.node.name in words
    if host.kind is None:
        return own
    return host.kind.name in words and (own or host.node.name in ("__init__", "__call__", "forward"))


class SourceError(ValueError):
    """The text is no kernel module: says what is missing and where."""


@dataclass(frozen=True, eq=False)
class KernelModule(TextMap):
    """A parsed source. Make one with `parse`; make changed texts with `edited`."""

    text: str
    tree: ast.Module
    constants: Mapping[str, int]  # module-level UPPERCASE integers: knobs
    kernels: Mapping[str, SourceKernel]
    run: ast.FunctionDef
    hosts: tuple[HostFunction, ...]
    launches: tuple[SourceLaunch, ...]  # of all hosts

    @staticmethod
    @lru_cache(maxsize=512)  # parents return, and a few kilobytes each is cheap
    def parse(text: str) -> KernelModule:
        """The text, in the canonical form that rewrites read, as a structure. One text gives one module.

        Raises SourceError when the text does not parse or has no `run`.
        """
        try:
            source = canonical(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise SourceError(f"the source does not parse: {error}; mend its syntax first") from error
        tree = source.tree
        run = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run"), None)
        if run is None:
            raise SourceError("the source has no top-level `def run(...)`; add one that launches the kernels")
        hosts = tuple(host for host, _ in source.functions)
        launches = tuple(launch for _, launches in source.functions for launch in launches)
        return KernelModule(source.text, tree, parts.constants_of(tree), source.kernels, run, hosts, launches)

    # -- reading ---------------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name at module level or in the host's code: what a fresh constant or kernel must avoid."""
        read = {part.id for part in ast.walk(self.tree) if isinstance(part, ast.Name)}
        defined = {s.name for s in self.tree.body if isinstance(s, ast.FunctionDef | ast.ClassDef)}
        return frozenset(read | defined | set(self.kernels) | {name for host in self.hosts for name in host.arguments})

    def fresh(self, wish: str) -> str:
        return fresh_name(wish, self.names)

    def launches_of(self, kernel: str) -> tuple[SourceLaunch, ...]:
        return tuple(launch for launch in self.launches if launch.kernel == kernel)

    def host_of(self, node: ast.AST) -> HostFunction:
        """The function of the host that a node of the text stands in."""
        return next((host for host in self.hosts if host.holds(node)), HostFunction(self.run))

    @cached_property
    def reached(self) -> tuple[SourceLaunch, ...]:
        """The launches in functions that `run` may reach: whatever it and they name."""
        todo, words, found = list[ast.AST]([self.run]), set[str](), list[ast.AST]()
        assigned = [s for s in self.tree.body if isinstance(s, ast.Assign)]  # `layer_norm = LayerNorm.apply`
        while todo:
            node = todo.pop()
            found.append(node)
            parts = list(ast.walk(node))
            words |= {part.id for part in parts if isinstance(part, ast.Name)}
            words |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
            named: list[ast.AST] = [host.node for host in self.hosts if _is_named(host, words)]
            named += [statement for statement in assigned if names_written(statement) & words]
            todo += [one for one in named if one not in found and one not in todo]
        return tuple(launch for launch in self.launches if self.host_of(launch.call).node in found)

    def root_of(self, node: ast.expr) -> str | None:
        """The tensor (buffer or argument of the function) whose storage an argument is: looks through views and
        aliases."""
        for name in self._chain(node):
            if name not in self.host_of(node).aliases:
                return name
        return None

    def _chain(self, node: ast.expr) -> Iterator[str]:
        """The names that an argument is a view of, one after another; none twice."""
        aliases, seen = self.host_of(node).aliases, set[str]()
        while True:
            match node:
                case ast.Name(id=name) if name not in seen:
                    yield name
                    seen.add(name)
                    if name not in aliases:
                        return
                    node = aliases[name]
                case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in VIEWS:
                    node = owner
                case ast.Attribute(value=owner) | ast.Subscript(value=owner):
                    node = owner
                case _:
                    return

    def is_whole(self, node: ast.expr) -> bool:
        """Whether an argument starts where its tensor's storage starts: no slice on the way."""
        aliases, todo, seen = self.host_of(node).aliases, [node], set[str]()
        while todo:
            part = todo.pop()
            cuts = [cut.value for cut in ast.walk(part) if isinstance(cut, ast.Subscript)]
            if any(not (isinstance(cut, ast.Attribute) and cut.attr == "shape") for cut in cuts):
                return False
            todo += [aliases[name] for name in names_read(part) - seen if name in aliases]
            seen |= names_read(part)
        return True

    @lru_cache(maxsize=4096)  # noqa: B019  fusions ask for every pair of launches
    def tensors(self, launch: SourceLaunch, kind: str) -> Mapping[str, str]:
        """Pointer parameter → tensor root, for parameters that the launch's kernel reads ("load") or writes
        ("store", atomics included). Roots that cannot be told come as "?"."""
        kernel = self.kernels[launch.kernel]
        kinds = ("load", "atomic") if kind == "load" else ("store", "atomic")
        bases = {a.base for a in kernel.accesses if a.kind in kinds}
        # Or it passes pointers to something that is not read here: a device function, a descriptor.
        unknown = any(a.base is None for a in kernel.accesses) or bool(kernel.calls("tl.make_block_ptr"))
        return {
            name: self.root_of(launch.arguments[name]) or "?"
            for name in kernel.pointers
            if name in launch.arguments and (unknown or name in bases)
        }

    # -- editing ---------------------------------------------------------------------------------------------------

    def edited(self, *edits: Edit | Iterable[Edit]) -> str:
        """The text with the edits made (they must not overlap)."""
        flat = [e for item in edits for e in ([item] if isinstance(item, Edit) else item)]
        return splice(self.text, flat)

    def set_constant(self, name: str, value: int) -> Edit:
        """Add a knob (after the last one, or before the first function) or change its value."""
        assigned = {spell(s.targets[0]): s for s in self.tree.body if isinstance(s, ast.Assign)}
        knobs = {knob: statement for knob, statement in assigned.items() if knob in self.constants}
        if name in knobs:
            return self.replace(knobs[name].value, str(value))
        if knobs:
            last = max(knobs.values(), key=lambda statement: statement.lineno)
            return self.insert_after(last, f"{name} = {value}")
        function = next(s for s in self.tree.body if isinstance(s, ast.FunctionDef))
        return self.insert_before_function(function, f"{name} = {value}\n\n")

    def add_kernel(self, text: str) -> Edit:
        """A new `@triton.jit` function (decorator included), placed before `run`."""
        return self.insert_before_function(self.run, text.strip("\n") + "\n\n")
