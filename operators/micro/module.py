"""A Triton source as a structure: constants, kernels, loops, memory accesses, launches and buffers, with exact edits.

The text is kept as it is. Analysis reads its syntax tree; an edit replaces a span of the text, so that whatever no edit
names (comments, blank lines, spelling) comes back byte for byte: `KernelModule.parse(text).text == text`.
Everything here is syntax and data flow; nothing is imported or run.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from evo_kernel.syntax import parse_module
from operators.micro import kernels as parts
from operators.micro.kernels import ALLOCATIONS, VIEWS, SourceBuffer, SourceKernel, SourceLaunch
from operators.micro.syntax import called, fresh_name, names_read, names_written, self_root, spell, statements

LINE_LENGTH = 110


@dataclass(frozen=True)
class Edit:
    """Characters `start` to `end` become `text`."""

    start: int
    end: int
    text: str


def splice(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made. Edits at one place are made in the order given; overlaps are an error."""
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < position:
            raise ValueError(f"two edits overlap at character {edit.start}: {edit.text[:60]!r}")
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*pieces, text[position:]])


def wrapped(items: Sequence[str], margin: int = 0) -> str:
    """Items of a list on lines of their own, indented by 4; `margin` is what the whole will be indented by."""
    return textwrap.fill(
        ", ".join(i.replace(" ", "\0") for i in items) + ",",
        LINE_LENGTH - 4 - margin,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\0", " ")


class TextMap:
    """Finds the characters of syntax-tree nodes (whose columns count UTF-8 bytes) and makes edits of them."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines(keepends=True)

    @cached_property
    def starts(self) -> list[int]:
        """The character that each line starts at, and where the text ends."""
        return list(accumulate(map(len, self.lines), initial=0))

    def offset(self, line: int, column: int) -> int:
        """Character offset of a 1-based line and a byte column."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        inside = column if text.isascii() else len(text.encode()[:column].decode())
        return self.starts[line - 1] + inside

    def span(self, node: ast.stmt | ast.expr | ast.arg) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def source_of(self, node: ast.stmt | ast.expr) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def indented(self, text: str, column: int) -> str:
        return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * column)

    def replace(self, node: ast.stmt | ast.expr | ast.arg, text: str) -> Edit:
        """A node's text by another (a statement's lines are given without indentation; they get the node's)."""
        start, end = self.span(node)
        if isinstance(node, ast.stmt):
            text = self.indented(text, node.col_offset).lstrip(" ")
        return Edit(start, end, text)

    def replace_range(self, first: ast.stmt, last: ast.stmt, text: str) -> Edit:
        """Statements of one suite by others, trailing comments included; empty text deletes them."""
        start = self.starts[first.lineno - 1]
        end = self.starts[last.end_lineno or last.lineno]
        return Edit(start, end, self.indented(text, first.col_offset) + "\n" if text.strip() else "")

    def delete(self, statement: ast.stmt) -> Edit:
        """Only where its suite keeps another statement."""
        return self.replace_range(statement, statement, "")

    def insert_before(self, statement: ast.stmt, text: str) -> Edit:
        start = self.starts[statement.lineno - 1]
        return Edit(start, start, self.indented(text, statement.col_offset) + "\n")

    def insert_after(self, statement: ast.stmt, text: str) -> Edit:
        assert statement.end_lineno is not None
        at = self.starts[statement.end_lineno]
        line = self.lines[statement.end_lineno - 1]
        return Edit(at, at, ("" if line.endswith("\n") else "\n") + self.indented(text, statement.col_offset) + "\n")

    def add_arguments(self, call: ast.Call, text: str) -> Edit:
        """Append `a=1, b=2` to a call's arguments."""
        last = max([*call.args, *[k.value for k in call.keywords]], key=lambda n: self.span(n)[1], default=None)
        if last is None:
            end = self.span(call)[1] - 1
            return Edit(end, end, text)
        at = self._past_parentheses(self.span(last)[1], self.span(call)[1] - 1)
        return Edit(at, at, f", {text}")

    def add_parameters(self, node: ast.FunctionDef, text: str) -> Edit:
        """Append `name, NAME: tl.constexpr` to a function's parameters."""
        given = [part for part in ast.walk(node.args) if isinstance(part, ast.arg | ast.expr)]
        spans = [(part.end_lineno or part.lineno, part.end_col_offset or 0) for part in given]
        if not spans:
            at = self.text.index("(", self.offset(node.lineno, node.col_offset)) + 1
            return Edit(at, at, text)
        at = self.offset(*max(spans))
        return Edit(at, at, f", {text}")

    def insert_before_function(self, node: ast.FunctionDef, text: str) -> Edit:
        at = self.starts[self._first_line(node) - 1]
        return Edit(at, at, text + "\n")

    def delete_function(self, node: ast.FunctionDef) -> Edit:
        """The function, its decorators, the comments right above it, and the blank lines after it."""
        first, last = self._first_line(node), node.end_lineno or node.lineno
        while last < len(self.lines) and not self.lines[last].strip():
            last += 1
        return Edit(self.starts[first - 1], self.starts[last], "")

    def _first_line(self, node: ast.FunctionDef) -> int:
        first = min([node.lineno, *[d.lineno for d in node.decorator_list]])
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
        return first

    def _past_parentheses(self, at: int, limit: int) -> int:
        """Past closing parentheses that belong to the argument itself: `f((a + b))`."""
        position = at
        while position < limit and self.text[position] in ") \n":
            position += 1
            if self.text[position - 1] == ")":
                at = position
        return at


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
        # Or it passes pointers to something that is not read here: a device function, a descriptor.
        unknown = any(a.base is None for a in kernel.accesses) or bool(kernel.calls("tl.make_block_ptr"))
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
