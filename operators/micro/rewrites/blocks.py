"""Blocked indices (which rows and columns of a matrix a tile covers), read off expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evo_kernel.syntax import parse_expression
from operators.micro.kernels import SourceKernel
from operators.micro.syntax import called, int_value, names_read, spell

ROW, COLUMN = 0, 1
_SUBSCRIPTS = {":, None": ROW, "(:, None)": ROW, "None, :": COLUMN, "(None, :)": COLUMN}


@dataclass(frozen=True)
class IndexBlock:
    """`offset + tl.arange(0, size)`, along the tile's rows, its columns, or neither yet (`axis` None)."""

    axis: int | None
    offset: tuple[str, ...]  # scalar terms, sorted
    size: str

    @property
    def start(self) -> str:
        return " + ".join(self.offset) or "0"


class Reader:
    """Reads expressions of one statement, following names to the definition that reaches it."""

    def __init__(self, kernel: SourceKernel, statement: ast.stmt) -> None:
        self.kernel = kernel
        self.suite = suite_of(kernel, statement)
        self.line = statement.lineno

    def value(self, name: str) -> ast.expr | None:
        """What a name holds: its only assignment, or the only one before this statement in the same suite."""
        value = self.kernel.value_of(name)
        if value is not None:
            return value
        places = self.kernel.definitions.get(name, ())
        here = [s for s in places if s in self.suite and s.lineno < self.line]
        others = [s for s in places if s in self.suite and s.lineno >= self.line]
        if len(here) != 1 or others or not isinstance(here[0], ast.Assign):
            return None
        return here[0].value if isinstance(here[0].targets[0], ast.Name) else None

    def terms(self, node: ast.expr) -> list[ast.expr]:
        """The terms of a sum; names of sums of tensors are opened."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.terms(node.left) + self.terms(node.right)
        if isinstance(node, ast.Name) and not self.is_scalar(node):
            value = self.value(node.id)
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                return self.terms(value)
        return [node]

    def is_scalar(self, node: ast.expr) -> bool:
        """Whether the value is surely one number: made of scalars, program indices and constants by arithmetic."""
        scalars = {p.name for p in self.kernel.parameters if p.kind != "pointer"}
        targets = {loop.target for loop in self.kernel.loops}
        if isinstance(node, ast.Name):
            if node.id in scalars | targets:
                return True
            value = self.value(node.id)
            return value is not None and self.is_scalar(value)
        if isinstance(node, ast.BinOp):
            return self.is_scalar(node.left) and self.is_scalar(node.right)
        if isinstance(node, ast.Call):
            name = called(node)
            if name in ("tl.program_id", "tl.num_programs"):
                return True
            return name in ("tl.minimum", "tl.maximum", "tl.cdiv") and all(self.is_scalar(a) for a in node.args)
        return int_value(node) is not None

    def block(self, node: ast.expr) -> IndexBlock | None:
        """The node as a blocked index, or None."""
        axis, size, offset = None, None, []
        for term in self.terms(node):
            if self.is_scalar(term):
                offset.append(spell(term))
                continue
            inner = self._leaf(term)
            if inner is None or size is not None:
                return None
            axis, size = inner.axis, inner.size
            offset += inner.offset
        return IndexBlock(axis, tuple(sorted(offset)), size) if size is not None else None

    def _leaf(self, term: ast.expr) -> IndexBlock | None:
        if called(term) == "tl.arange":
            assert isinstance(term, ast.Call)
            return IndexBlock(None, (), spell(term.args[1])) if int_value(term.args[0]) == 0 else None
        if isinstance(term, ast.Subscript):
            axis = _SUBSCRIPTS.get(spell(term.slice))
            inner = self.block(term.value)
            return (
                IndexBlock(axis, inner.offset, inner.size)
                if inner and inner.axis is None and axis is not None
                else None
            )
        if isinstance(term, ast.Name):
            value = self.value(term.id)
            return self.block(value) if value is not None else None
        return None

    def conjuncts(self, node: ast.expr | None) -> list[ast.expr]:
        """The conditions that `a & b & c` joins; names of conditions are opened."""
        if node is None:
            return []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return self.conjuncts(node.left) + self.conjuncts(node.right)
        if isinstance(node, ast.Name) and (value := self.value(node.id)) is not None:
            return self.conjuncts(value)
        return [node]


def suites(body: Sequence[ast.stmt]) -> Iterator[Sequence[ast.stmt]]:
    """A suite and all suites inside it."""
    yield body
    for statement in body:
        for name in ("body", "orelse"):
            inner = getattr(statement, name, None)
            if inner:
                yield from suites(inner)


def suite_of(kernel: SourceKernel, statement: ast.stmt) -> Sequence[ast.stmt]:
    return next((s for s in suites(kernel.body) if any(statement is other for other in s)), kernel.body)


def holder_of(kernel: SourceKernel, statement: ast.stmt) -> ast.stmt:
    """The top-level statement of the kernel that holds `statement`."""
    return next(top for top in kernel.body if any(statement is part for part in ast.walk(top)))


def defined_before(kernel: SourceKernel, names: set[str], statement: ast.stmt) -> bool:
    """Whether each name is a parameter or was assigned at the top level, once, before a top-level statement."""
    known = {p.name for p in kernel.parameters}
    for other in kernel.body:
        if other is statement:
            break
        if isinstance(other, ast.Assign) and isinstance(other.targets[0], ast.Name):
            known.add(other.targets[0].id)
    single = all(len(kernel.definitions.get(name, ())) <= 1 for name in names)
    return single and names - {"tl", "triton"} <= known


def read_names(text: str) -> set[str]:
    return names_read(parse_expression(text))
