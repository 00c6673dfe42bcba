"""Elementwise kernels ("maps"), flat or by rows, and their bodies as code to put elsewhere.

A flat map stores f(i) at out[i] for i < n; a map by rows stores f(row, col) at out[row * stride + col], one program a
row and a loop over its columns.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from operators.micro.kernels import Access, SourceKernel
from operators.micro.rewrites.indices import ROW, inlined, named, terms_of, whole_index_of
from operators.micro.rewrites.rows import is_straight, without_zeros
from operators.micro.syntax import argument, called, copy_of, fresh_name, names_read, names_written, spell

OFFSETS = ("tl.program_id(0) * {b} + tl.arange(0, {b})", "tl.program_id(axis=0) * {b} + tl.arange(0, {b})")


@dataclass(frozen=True, eq=False)
class Map:
    """An elementwise kernel."""

    kernel: SourceKernel
    statements: tuple[ast.stmt, ...]  # all of them, the loop's in the loop's place
    tiling: frozenset[str]  # names that only say which elements a program handles
    masks: frozenset[str]  # names of the bounds check
    block: str  # the constexpr that the elements are tiled by
    size: str  # the parameter of the bounds check
    store: Access
    offsets: str = ""  # flat: the name of i
    row: str = ""  # by rows: the name of the row,
    column: tuple[str, str] = ("", "")  # of the loop variable and of `tl.arange(0, BLOCK)`: their sum is the column

    @property
    def identity(self) -> str:
        """The index of an element at its own place, by canonical spelling; rows have `{stride}` in it."""
        return self.offsets or f"{self.row} * {{stride}} + {self.column[0]} + {self.column[1]}"

    def stride_in(self, index: str | None) -> str | None:
        """The parameter that an index by rows multiplies the row with ("" for a flat map); None: another index."""
        if index is None:
            return None
        if self.offsets:
            return "" if index == self.offsets else None
        scalars = [p.name for p in self.kernel.parameters if p.kind != "pointer"]
        return next((s for s in scalars if index == self.identity.format(stride=s)), None)


def map_of(kernel: SourceKernel) -> Map | None:
    """The kernel as a map, or None when it is not one."""
    stores = [a for a in kernel.accesses if a.kind != "load"]
    if len(stores) != 1 or stores[0].kind != "store" or stores[0].base is None or stores[0].mask is None:
        return None
    found = _flat(kernel, stores[0]) if not kernel.loops else _by_rows(kernel, stores[0])
    return found if found is not None and _is_pure(found) else None


def _flat(kernel: SourceKernel, store: Access) -> Map | None:
    if not is_straight(kernel.body):
        return None
    for block in kernel.constexprs:
        for offsets in named(kernel, [text.format(b=block) for text in OFFSETS]):
            keep = frozenset({offsets})
            size = _size(kernel, keep, offsets)
            if size is not None and whole_index_of(kernel, store, keep) == offsets:
                masks = _masks(kernel, keep, f"{offsets} < {size}")
                tiling = _tiling(kernel, {offsets})
                return Map(kernel, tuple(kernel.body), tiling, masks, block, size, store, offsets)
    return None


def _by_rows(kernel: SourceKernel, store: Access) -> Map | None:
    loop = kernel.loops[0]
    rest = [s for s in kernel.body if s is not loop.node]
    block, size = spell(loop.step), spell(loop.stop)
    rows, columns = named(kernel, ROW), named(kernel, [f"tl.arange(0, {block})"])
    if len(kernel.loops) != 1 or len(rest) != len(kernel.body) - 1 or not rows or not columns:
        return None
    if not is_straight([*rest, *loop.node.body]) or spell(loop.start) != "0" or block not in kernel.constexprs:
        return None
    column = (loop.target, columns[0])
    keep = frozenset({rows[0], *column})
    check = f"{column[0]} + {column[1]}"
    position = kernel.body.index(loop.node)
    statements = (*kernel.body[:position], *loop.node.body, *kernel.body[position + 1 :])
    masks = _masks(kernel, keep, f"{check} < {size}")
    tiling = _tiling(kernel, {rows[0], column[1]}) | {loop.target}
    found = Map(kernel, statements, tiling, masks, block, size, store, row=rows[0], column=column)
    fits = _size(kernel, keep, check) == size and found.stride_in(whole_index_of(kernel, store, keep)) is not None
    return found if fits else None


def _size(kernel: SourceKernel, keep: frozenset[str], index: str) -> str | None:
    """n, where every mask of the kernel is `index < n`."""
    masks = {spell(inlined(kernel, a.mask, keep)) for a in kernel.accesses if a.mask is not None}
    scalars = [p.name for p in kernel.parameters if p.kind != "pointer"]
    return next((n for n in scalars if masks == {f"{index} < {n}"}), None)


def _masks(kernel: SourceKernel, keep: frozenset[str], check: str) -> frozenset[str]:
    values = {n: kernel.value_of(n) for n in kernel.definitions}
    return frozenset(n for n, v in values.items() if v is not None and spell(inlined(kernel, v, keep)) == check)


def _is_pure(found: Map) -> bool:
    """Whether nothing but the index depends on the tiling, and every name is assigned once."""
    kernel = found.kernel
    if any(len(places) > 1 for places in kernel.definitions.values()):
        return False
    rest = [s for s in found.statements if not (isinstance(s, ast.Assign) and names_written(s) <= found.tiling)]
    if found.row and any(name in found.column for s in rest for name in _alone(s, found.column)):
        return False
    words = " ".join(spell(s) for s in rest)
    return found.block not in names_read(*rest) and "program_id" not in words and "tl.arange" not in words


def _alone(statement: ast.stmt, column: tuple[str, str]) -> set[str]:
    """Names of the column's two parts, where they do not stand together in one sum."""
    found: set[str] = set()
    inside: set[int] = set()
    for part in ast.walk(statement):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add) and id(part) not in inside:
            names = [spell(t) for t in terms_of(part)]
            if all(names.count(c) == 1 for c in column):
                inside |= {id(p) for p in ast.walk(part)}
    for part in ast.walk(statement):
        if isinstance(part, ast.Name) and part.id in column and id(part) not in inside:
            found.add(part.id)
    return found


def _tiling(kernel: SourceKernel, names: set[str]) -> frozenset[str]:
    """The names and what they are computed from."""
    found, todo = set(), list(names)
    while todo:
        name = todo.pop()
        value = kernel.value_of(name)
        if value is not None and name not in found:
            found.add(name)
            todo += names_read(value)
    return frozenset(found)


@dataclass(frozen=True)
class Place:
    """Where a map's body is put."""

    index: str  # a name: the flat index, or the column
    mask: str | None  # in place of the mask
    given: dict[int, str]  # loads (by id of the call) that are known already, as what name
    renamed: dict[str, str]  # what the map's parameters are called there
    row: str = ""  # a name: the row
    block_row: bool = False  # whether the row is a block (its loads need the mask), not a number


def inlined_body(flat: Map, place: Place, taken: set[str]) -> tuple[list[str], str] | None:
    """The map's body as statements at another place, and the expression of the value it would store. `taken` (names
    that the place uses) grows by the names used."""
    kernel = flat.kernel
    names = dict(place.renamed)
    if flat.offsets:
        names[flat.offsets] = place.index
    else:
        names |= {flat.row: place.row, flat.column[0]: place.index, flat.column[1]: "0"}
    for name in sorted(set(kernel.definitions) - flat.tiling - flat.masks):
        names[name] = fresh_name(name, taken)
        taken.add(names[name])
    edit = _Move(place, set(flat.masks), names)
    lines = []
    for statement in flat.statements:
        if isinstance(statement, ast.Assign) and not names_written(statement) <= (flat.tiling | flat.masks):
            lines.append(spell(without_zeros(edit.visit(copy_of_ids(statement)))))
    assert flat.store.value is not None
    value = spell(without_zeros(edit.visit(copy_of_ids(flat.store.value))))
    return None if edit.failed else (lines, value)


def needed_by(flat: Map) -> set[str]:
    """Parameters that the map's body reads apart from its bounds check."""
    parameters = {p.name for p in flat.kernel.parameters}
    parts: list[ast.AST] = [flat.store.value] if flat.store.value is not None else []
    for statement in flat.statements:
        if isinstance(statement, ast.Assign) and not names_written(statement) <= (flat.tiling | flat.masks):
            parts.append(statement)
    bare = [_NoMasks().visit(copy_of(part)) for part in parts]
    return (names_read(*bare) & parameters) - {flat.block}


class _NoMasks(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if called(node) == "tl.load":
            return ast.Call(node.func, [node.args[0], *node.args[2:]], [k for k in node.keywords if k.arg != "mask"])
        return node


def copy_of_ids(node: ast.AST) -> ast.AST:
    """A copy whose calls remember which call they were copied from."""
    copied = copy_of(node)
    for old, new in zip(ast.walk(node), ast.walk(copied), strict=True):
        new.origin = id(old)  # type: ignore[attr-defined]
    return copied


class _Move(ast.NodeTransformer):
    """Renames, exchanges index and mask, and puts known values for loads."""

    def __init__(self, place: Place, masks: set[str], names: dict[str, str]) -> None:
        self.mask, self.given, self.masks, self.names = place.mask, place.given, masks, names
        self.always, self.failed = place.block_row, False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        known = self.given.get(getattr(node, "origin", 0))
        if known is not None:
            return ast.Name(known, ast.Load())
        if called(node) == "tl.load":
            node = self._load(node)
        return self.generic_visit(node)

    def _load(self, node: ast.Call) -> ast.Call:
        had_mask = argument(node, "mask", 1) is not None
        moves = any(isinstance(p, ast.Name) and self.names.get(p.id, p.id) != p.id for p in ast.walk(node.args[0]))
        keywords = [k for k in node.keywords if k.arg not in ("mask", "other")]
        if (had_mask or (self.always and moves and isinstance(node.args[0], ast.BinOp))) and self.mask is not None:
            other = argument(node, "other", 2)
            keywords.append(ast.keyword("mask", ast.Name(self.mask, ast.Load())))
            if other is not None:
                keywords.append(ast.keyword("other", other))
        return ast.Call(node.func, node.args[:1], keywords)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.masks:
            if self.mask is None:
                self.failed = True
            text = self.mask or ""
            return ast.Name(text if text.isidentifier() else f"({text})", ast.Load())
        name = self.names.get(node.id, node.id)
        return ast.Constant(0) if name == "0" else ast.Name(name, node.ctx)


def arguments_in_order(names: Sequence[str], values: dict[str, str], constexprs: set[str]) -> str:
    """Launch arguments: positional up to the first constexpr, keywords from there on."""
    parts, positional = [], True
    for name in names:
        positional = positional and name not in constexprs
        parts.append(values[name] if positional else f"{name}={values[name]}")
    return ", ".join(parts)
