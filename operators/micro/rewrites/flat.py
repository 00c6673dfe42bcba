"""Flat elementwise kernels ("maps"): out[i] = f(i) over one index, and their bodies as code to put elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from operators.micro.module import (
    Access,
    Kernel,
    called,
    copy_of,
    expression,
    names_read,
    names_written,
    spell,
    substitute,
)
from operators.micro.rewrites.rows import is_straight

OFFSETS = ("tl.program_id(0) * {b} + tl.arange(0, {b})", "tl.program_id(axis=0) * {b} + tl.arange(0, {b})")


@dataclass(frozen=True, eq=False)
class Map:
    """A kernel that stores f(i) at out[i] for every i < n."""

    kernel: Kernel
    offsets: str  # the name that holds i
    block: str  # the constexpr that i is tiled by
    mask: str | None  # how `i < n` is spelled where it is used
    store: Access


class _NoCasts(ast.NodeTransformer):
    """`x.to(tl.int64)` counts as `x` when shapes of index expressions are compared."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_cast = isinstance(node.func, ast.Attribute) and node.func.attr == "to" and len(node.args) == 1
        return node.func.value if is_cast and spell(node.args[0]) in ("tl.int64", "tl.int32") else node  # type: ignore[union-attr]


def inlined(kernel: Kernel, node: ast.expr, keep: frozenset[str] = frozenset()) -> ast.expr:
    """The expression with every name assigned once replaced by its value, except the names to keep."""
    for _ in range(20):
        values = {n: kernel.value_of(n) for n in names_read(node) - keep}
        known = {n: v for n, v in values.items() if v is not None}
        if not known:
            return node
        node = substitute(node, known)
    return node


def map_of(kernel: Kernel) -> Map | None:
    """The kernel as a map, or None when it is not one."""
    stores = [a for a in kernel.accesses if a.kind != "load"]
    if len(stores) != 1 or stores[0].kind != "store" or stores[0].base is None or not is_straight(kernel.body):
        return None
    store, found = stores[0], None
    for block in kernel.constexprs:
        wanted = {spell(expression(text.format(b=block))) for text in OFFSETS}
        names = (n for n in kernel.definitions if kernel.value_of(n) is not None)
        for name in names:
            if spell(_NoCasts().visit(copy_of(inlined(kernel, ast.Name(name, ast.Load()))))) in wanted:
                found = (name, block)
    if found is None:
        return None
    offsets, block = found
    if index_of(kernel, store, frozenset({offsets})) != offsets:
        return None
    masks = {spell(inlined(kernel, a.mask, frozenset({offsets}))) for a in kernel.accesses if a.mask is not None}
    scalars = [p.name for p in kernel.parameters if p.kind != "pointer"]
    if store.mask is None or len(masks) != 1 or masks.pop() not in {f"{offsets} < {n}" for n in scalars}:
        return None
    return Map(kernel, offsets, block, spell(store.mask), store) if _is_pure(kernel, offsets, block) else None


def _is_pure(kernel: Kernel, offsets: str, block: str) -> bool:
    """Whether nothing but the offsets depends on the tiling, and every name is assigned once."""
    if any(len(places) > 1 for places in kernel.definitions.values()):
        return False
    needed = _tiling(kernel, offsets)
    rest = [s for s in kernel.body if not (isinstance(s, ast.Assign) and names_written(s) <= needed)]
    words = " ".join(spell(s) for s in rest)
    return block not in names_read(*rest) and "program_id" not in words and "tl.arange" not in words


def _tiling(kernel: Kernel, offsets: str) -> set[str]:
    """The offsets' name and the names that only they are computed from."""
    found, todo = set(), [offsets]
    while todo:
        name = todo.pop()
        value = kernel.value_of(name)
        if value is not None and name not in found:
            found.add(name)
            todo += names_read(value)
    return found


def index_of(kernel: Kernel, access: Access, keep: frozenset[str] = frozenset()) -> str | None:
    """What is added to the pointer parameter to reach the address, as text valid at the access; None if unclear."""
    if access.base is None:
        return None
    pointer, first = access.pointer, True
    while True:
        terms, node = [], pointer
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            terms.append(node.right)
            node = node.left
        if not isinstance(node, ast.Name):
            return None
        if node.id == access.base:
            break
        value = kernel.value_of(node.id)
        if value is None or (not first and not _steady(kernel, value)):
            return None
        if not _steady(kernel, value):
            return None
        pointer, first = substitute(pointer, {node.id: value}), False
    if not terms:
        return "0"
    index = terms.pop()
    while terms:
        index = ast.BinOp(index, ast.Add(), terms.pop())
    return spell(index)


def _steady(kernel: Kernel, node: ast.expr) -> bool:
    """Whether every name in the expression is a parameter or assigned once: its value is the same later on."""
    return all(len(kernel.definitions.get(n, ())) <= 1 for n in names_read(node))


@dataclass(frozen=True)
class Place:
    """Where a map's body is put."""

    index: str  # a name, in place of the offsets
    mask: str | None  # in place of the mask
    given: dict[int, str]  # loads (by id of the call) that are known already, as what name
    renamed: dict[str, str]  # what the map's parameters are called there


def inlined_body(flat: Map, place: Place, taken: set[str]) -> tuple[list[str], str] | None:
    """The map's body as statements at another place, and the expression of the value it would store. `taken` (names
    that the place uses) grows by the names used."""
    kernel = flat.kernel
    tiling = _tiling(kernel, flat.offsets)
    masks = {n for n in kernel.definitions if _is_mask(kernel, flat, n)}
    names = dict(place.renamed)
    names[flat.offsets] = place.index
    for name in sorted(set(kernel.definitions) - tiling - masks):
        fresh, number = name, 1
        while fresh in taken:
            number += 1
            fresh = f"{name}_{number}"
        taken.add(fresh)
        names[name] = fresh
    edit = _Move(place, masks, names)
    lines = []
    for statement in kernel.body:
        if isinstance(statement, ast.Assign) and not names_written(statement) <= (tiling | masks):
            lines.append(spell(edit.visit(copy_of_ids(statement))))
    assert flat.store.value is not None
    value = spell(edit.visit(copy_of_ids(flat.store.value)))
    return None if edit.failed else (lines, value)


def _is_mask(kernel: Kernel, flat: Map, name: str) -> bool:
    value = kernel.value_of(name)
    if value is None or not isinstance(value, ast.Compare):
        return False
    return spell(inlined(kernel, value, frozenset({flat.offsets}))) == spell(
        inlined(kernel, expression(flat.mask or "None"), frozenset({flat.offsets}))
    )


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
        self.failed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        known = self.given.get(getattr(node, "origin", 0))
        if known is not None:
            return ast.Name(known, ast.Load())
        if called(node) == "tl.load":
            node = self._load(node)
        return self.generic_visit(node)

    def _load(self, node: ast.Call) -> ast.Call:
        had_mask = len(node.args) > 1 or any(k.arg == "mask" for k in node.keywords)
        args, keywords = node.args[:1], [k for k in node.keywords if k.arg not in ("mask", "other")]
        if had_mask and self.mask is not None:
            other = next(
                (k.value for k in node.keywords if k.arg == "other"), node.args[2] if len(node.args) > 2 else None
            )
            keywords.append(ast.keyword("mask", ast.Name(f"({self.mask})", ast.Load())))
            if other is not None:
                keywords.append(ast.keyword("other", other))
        return ast.Call(node.func, args, keywords)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.masks:
            if self.mask is None:
                self.failed = True
            return ast.Name(f"({self.mask})", ast.Load())
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def uses_of(kernel: Kernel, name: str) -> int:
    """How often a kernel's body reads a name."""
    parts = (part for statement in kernel.body for part in ast.walk(statement))
    return sum(isinstance(p, ast.Name) and p.id == name for p in parts)


def arguments_in_order(names: Sequence[str], values: dict[str, str], constexprs: set[str]) -> str:
    """Launch arguments: positional up to the first constexpr, keywords from there on."""
    parts, positional = [], True
    for name in names:
        positional = positional and name not in constexprs
        parts.append(values[name] if positional else f"{name}={values[name]}")
    return ", ".join(parts)
