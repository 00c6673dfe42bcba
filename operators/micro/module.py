"""A Triton source as a structure: constants, kernels, loops, memory accesses, launches and buffers, with exact edits.

The text is kept as it is. Analysis reads its syntax tree; an edit replaces a span of the text, so that whatever no edit
names (comments, blank lines, spelling) comes back byte for byte: `KernelModule.parse(text).text == text`.
Everything here is syntax and data flow; nothing is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from evo_kernel.syntax import parse_module
from operators.micro import kernels as parts
from operators.micro.edits import Edit, TextMap, splice
from operators.micro.kernels import ALLOCATIONS, VIEWS, SourceBuffer, SourceKernel, SourceLaunch
from operators.micro.syntax import called, fresh_name, names_read, names_written, self_root, statements


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
    launches: tuple[SourceLaunch, ...]
    buffers: Mapping[str, SourceBuffer]

    @staticmethod
    def parse(text: str) -> KernelModule:
        """Raises SourceError when the text does not parse or has no `run`."""
        try:
            tree = parse_module(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise SourceError(f"the source does not parse: {error}; mend its syntax first") from error
        run = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run"), None)
        if run is None:
            raise SourceError("the source has no top-level `def run(...)`; add one that launches the kernels")
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and parts.is_jit(n)]
        kernels = {node.name: parts.kernel_of(node) for node in functions}
        launches = tuple(parts.launches_of(run, kernels))
        return KernelModule(text, tree, parts.constants_of(tree), kernels, run, launches, parts.buffers_of(run))

    # -- reading ---------------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name at module level or in `run`: what a fresh constant or kernel must avoid."""
        parts = [part.id for part in ast.walk(self.tree) if isinstance(part, ast.Name)]
        return frozenset(parts) | set(self.kernels) | {a.arg for a in self.run.args.args}

    def fresh(self, wish: str) -> str:
        return fresh_name(wish, self.names)

    def launches_of(self, kernel: str) -> tuple[SourceLaunch, ...]:
        return tuple(launch for launch in self.launches if launch.kernel == kernel)

    def root_of(self, node: ast.expr) -> str | None:
        """The tensor (buffer or input of `run`) whose storage an argument is: looks through views and aliases."""
        if isinstance(node, ast.Name):
            alias = self._aliases.get(node.id)
            return self.root_of(alias) if alias is not None else node.id
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
            return self.root_of(node.func.value)
        if isinstance(node, ast.Attribute | ast.Subscript):
            return self.root_of(node.value)
        return None

    def is_whole(self, node: ast.expr) -> bool:
        """Whether an argument starts where its tensor's storage starts: no slice on the way."""
        cuts = [part.value for part in ast.walk(node) if isinstance(part, ast.Subscript)]
        if any(not (isinstance(cut, ast.Attribute) and cut.attr == "shape") for cut in cuts):
            return False
        aliases = [self._aliases[name] for name in names_read(node) if name in self._aliases]
        return all(self.is_whole(alias) for alias in aliases)

    def tensors(self, launch: SourceLaunch, kind: str) -> dict[str, str]:
        """Pointer parameter → tensor root, for parameters that the launch's kernel reads ("load") or writes
        ("store", atomics included). Roots that cannot be told come as "?"."""
        kernel = self.kernels[launch.kernel]
        kinds = ("load", "atomic") if kind == "load" else ("store", "atomic")
        bases = {a.base for a in kernel.accesses if a.kind in kinds}
        unknown = None in bases or parts.has_escapes(kernel)
        return {
            name: self.root_of(launch.arguments[name]) or "?"
            for name in kernel.pointers
            if name in launch.arguments and (unknown or name in bases)
        }

    @cached_property
    def _aliases(self) -> dict[str, ast.expr]:
        """Names of `run` that are made from another tensor by methods or slices, and how."""
        found: dict[str, ast.expr] = {}
        for statement in statements(self.run.body):
            if not isinstance(statement, ast.Assign):
                continue
            value, root = statement.value, self_root(statement.value)
            last = called(value).split(".")[-1]
            if root in (None, "torch", "triton", "tl") or isinstance(value, ast.Attribute) or last in ALLOCATIONS:
                continue
            while root in found:
                root = self_root(found[root])
            for name in names_written(*statement.targets) - {root}:
                found[name] = value
        return found

    # -- editing ---------------------------------------------------------------------------------------------------

    def edited(self, *edits: Edit | Iterable[Edit]) -> str:
        """The text with the edits made (they must not overlap)."""
        flat = [e for item in edits for e in ([item] if isinstance(item, Edit) else item)]
        return splice(self.text, flat)

    def set_constant(self, name: str, value: int) -> Edit:
        """Add a knob (after the last one, or before the first function) or change its value."""
        assigned = [s for s in self.tree.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)]
        knobs = [s for s in assigned if s.targets[0].id in self.constants]  # type: ignore[union-attr]
        same = next((s for s in knobs if s.targets[0].id == name), None)  # type: ignore[union-attr]
        if same is not None:
            return self.replace(same.value, str(value))
        if knobs:
            return self.insert_after(knobs[-1], f"{name} = {value}")
        function = next(s for s in self.tree.body if isinstance(s, ast.FunctionDef))
        return self.insert_before_function(function, f"{name} = {value}\n\n")

    def add_kernel(self, text: str) -> Edit:
        """A new `@triton.jit` function (decorator included), placed before `run`."""
        return self.insert_before_function(self.run, text.strip("\n") + "\n\n")
