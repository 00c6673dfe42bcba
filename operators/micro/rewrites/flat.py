"""Elementwise kernels ("maps"), flat or by rows, and their bodies as code to put elsewhere.

A flat map stores f(i) at out[i] for i < n; a map by rows stores f(row, col) at out[row * stride + col], one program a
row and a loop over its columns.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set
from dataclasses import dataclass

from operators.micro.kernels import Access, SourceKernel
from operators.micro.rewrites.indices import ROW, bound_of, inlined, named, terms_of, whole_index_of
from operators.micro.rewrites.rows import is_straight, without_zeros
from operators.micro.syntax import (
    Node,
    argument,
    called,
    fresh_name,
    mapped,
    mapped_call,
    names_read,
    names_written,
    spell,
)

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
    masks = {spell(bound_of(inlined(kernel, a.mask, keep))) for a in kernel.accesses if a.mask is not None}
    scalars = [p.name for p in kernel.parameters if p.kind != "pointer"]
    return next((n for n in scalars if masks == {f"{index} < {n}"}), None)


def _masks(kernel: SourceKernel, keep: frozenset[str], check: str) -> frozenset[str]:
    values = {n: kernel.value_of(n) for n in kernel.definitions}
    written = {n: spell(bound_of(inlined(kernel, v, keep))) for n, v in values.items() if v is not None}
    return frozenset(n for n, text in written.items() if text == check)


def _is_pure(found: Map) -> bool:
    """Whether nothing but the index depends on the tiling, and every name is assigned once."""
    kernel = found.kernel
    if any(len(places) > 1 for places in kernel.definitions.values()):
        return False
    own = found.tiling | found.masks
    rest = [s for s in found.statements if not (isinstance(s, ast.Assign) and names_written(s) <= own)]
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
    assert flat.store.value is not None
    own = [s for s in flat.statements if isinstance(s, ast.Assign)]
    parts = [*[s for s in own if not names_written(s) <= (flat.tiling | flat.masks)], flat.store.value]
    try:
        *lines, value = [spell(without_zeros(_moved(part, place, flat.masks, names))) for part in parts]
    except _NoMask:
        return None
    return lines, value


def needed_by(flat: Map) -> set[str]:
    """Parameters that the map's body reads apart from its bounds check."""
    parameters = {p.name for p in flat.kernel.parameters}
    parts: list[ast.AST] = [flat.store.value] if flat.store.value is not None else []
    for statement in flat.statements:
        if isinstance(statement, ast.Assign) and not names_written(statement) <= (flat.tiling | flat.masks):
            parts.append(statement)

    def change(part: ast.AST) -> ast.Call | None:
        if called(part) != "tl.load":
            return None
        assert isinstance(part, ast.Call)
        kept = [keyword for keyword in part.keywords if keyword.arg != "mask"]
        return mapped_call(ast.Call(part.func, [part.args[0], *part.args[2:]], kept), change)

    return (names_read(*[mapped(part, change) for part in parts]) & parameters) - {flat.block}


class _NoMask(Exception):
    """The place has no mask to give to a map that needs one."""


def _moved(node: Node, place: Place, masks: Set[str], names: Mapping[str, str]) -> Node:
    """A copy with names renamed, index and mask exchanged, and known values for loads. Raises _NoMask."""

    def change(part: ast.AST) -> ast.AST | None:
        if isinstance(part, ast.Name):
            if part.id not in masks:
                name = names.get(part.id, part.id)
                return ast.Constant(0) if name == "0" else ast.Name(name, part.ctx)
            if place.mask is None:
                raise _NoMask
            return ast.Name(place.mask if place.mask.isidentifier() else f"({place.mask})", ast.Load())
        if not isinstance(part, ast.Call):
            return None
        if id(part) in place.given:
            return ast.Name(place.given[id(part)], ast.Load())
        return mapped_call(_load(part, place, names), change) if called(part) == "tl.load" else None

    return mapped(node, change)


def _load(node: ast.Call, place: Place, names: Mapping[str, str]) -> ast.Call:
    had_mask = argument(node, "mask", 1) is not None
    moves = any(isinstance(p, ast.Name) and names.get(p.id, p.id) != p.id for p in ast.walk(node.args[0]))
    keywords = [k for k in node.keywords if k.arg not in ("mask", "other")]
    if place.mask is not None and (had_mask or (place.block_row and moves and isinstance(node.args[0], ast.BinOp))):
        keywords.append(ast.keyword("mask", ast.Name(place.mask, ast.Load())))
        if (other := argument(node, "other", 2)) is not None:
            keywords.append(ast.keyword("other", other))
    return ast.Call(node.func, node.args[:1], keywords)
