"""`tile-2d`: a flat index over a matrix becomes a row and a column, each with an axis of the grid.

torch.compile's kernels number all elements in one index, and find row and column by division and remainder. These cost
tens of instructions an element, hide from the compiler that neighbours lie side by side, and read anew for each row
what depends on the column alone. An elementwise kernel becomes a tile [ROWS, XBLOCK] that loads each such vector once;
a reduction along the other axis takes one row a program, and a block of columns.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evo_kernel.syntax import parse_expression
from operators.micro.kernels import SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.indices import bound_of
from operators.micro.syntax import argument, called, int_value, mapped, mapped_call, names_read, names_written, spell
from operators.micro.text import Edit

ROWS, COLUMNS, STEPS = 4, 64, 16
"""Where the search for tiles starts: rows of an elementwise tile; columns and rows that a reduction takes at once."""
ROW, COLUMN = "row", "column"


@dataclass(frozen=True, eq=False)
class FlatIndex:
    """`offset = tl.program_id(0) * block`; `index = offset + tl.arange(0, block)`; `mask = index < total`."""

    kernel: SourceKernel
    statements: tuple[ast.stmt, ast.stmt, ast.stmt]
    index: str
    mask: str
    block: str  # a constexpr parameter
    width: ast.expr  # columns, a parameter or a number
    counts: tuple[tuple[str, str], ...]  # by launch: rows and columns, as text
    reduces: bool  # whether the index is a column `[:, None]` of a tile


class Tile2D(Rewrite):
    name, family = "tile-2d", "tiling"
    lacks = "has no flat index of which row and column are found by division and remainder"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> FlatIndex | None:
        return _flat_index(module, kernel)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: FlatIndex) -> str:
        tile = _Tile(found)
        offset, index, mask = found.statements
        edits = [module.delete(offset), module.delete(mask), module.replace(index, tile.head())]
        for statement in kernel.body:
            if statement not in found.statements and (text := spell(tile.changed(statement))) != spell(statement):
                edits.append(module.replace(statement, text))
        rows = "" if found.reduces else f", {tile.rows}: tl.constexpr"
        edits.append(module.add_parameters(kernel.node, f"{tile.height}, {tile.width}{rows}"))
        stem = kernel.name.removesuffix("_kernel").upper()
        for number, (launch, counts) in enumerate(zip(module.launches_of(kernel.name), found.counts, strict=True)):
            edits += _launch_edits(module, launch, found, tile, stem, counts, set_knobs=number == 0)
        return module.edited(edits)


def _launch_edits(
    module: KernelModule,
    launch: SourceLaunch,
    found: FlatIndex,
    tile: _Tile,
    stem: str,
    counts: tuple[str, str],
    set_knobs: bool,
) -> list[Edit]:
    (height, width), edits = counts, []
    if found.reduces:
        knobs = {found.block: (module.fresh(f"{stem}_COLUMNS"), COLUMNS)}
        for steps in {spell(loop.step) for loop in found.kernel.loops} & {*launch.arguments} - {found.block}:
            knobs[steps] = (module.fresh(f"{stem}_STEPS"), STEPS)
        for name, (knob, _) in knobs.items():
            edits.append(module.replace(launch.arguments[name], knob))
        more, grid = "", f"{height}, triton.cdiv({width}, {knobs[found.block][0]})"
    else:
        knobs = {tile.rows: (module.fresh(f"{stem}_ROWS"), ROWS)}
        more, rows = f", {tile.rows}={knobs[tile.rows][0]}", knobs[tile.rows][0]
        grid = f"triton.cdiv({height}, {rows}), triton.cdiv({width}, {spell(launch.arguments[found.block])})"
    if set_knobs:
        edits += [module.set_constant(knob, value) for knob, value in knobs.values()]
    edits.append(module.replace(launch.grid[0], grid))
    edits.append(module.add_arguments(launch.call, f"{tile.height}={height}, {tile.width}={width}{more}"))
    return edits


def _flat_index(module: KernelModule, kernel: SourceKernel) -> FlatIndex | None:
    programs = kernel.calls("tl.program_id", "tl.num_programs")
    launches = module.launches_of(kernel.name)
    if len(programs) != 1 or not launches or any(len(launch.grid) != 1 for launch in launches):
        return None
    for number, offset in enumerate(kernel.body[:-2]):
        index, mask = kernel.body[number + 1 : number + 3]
        match (offset, index, mask):
            case (
                ast.Assign(targets=[ast.Name(id=start)], value=ast.BinOp(op=ast.Mult(), right=ast.Name(id=block))),
                ast.Assign(targets=[ast.Name(id=flat)], value=covered),
                ast.Assign(targets=[ast.Name(id=inside)], value=check),
            ) if spell(offset.value) == f"tl.program_id(0) * {block}":  # type: ignore[attr-defined]
                bounded, _, total = spell(bound_of(check)).partition(" < ")
                if bounded != flat:
                    return None
                if (column := f"{start} + tl.arange(0, {block})") not in (text := spell(covered)):
                    return None
                reduces = text == f"{start} + tl.arange(0, {block})[:, None]"
                if text != column and not reduces:
                    return None
                return _of(module, kernel, (offset, index, mask), (start, flat, inside), block, total, reduces)
    return None


def _of(
    module: KernelModule,
    kernel: SourceKernel,
    statements: tuple[ast.stmt, ast.stmt, ast.stmt],
    names: tuple[str, str, str],
    block: str,
    total: str,
    reduces: bool,
) -> FlatIndex | None:
    start, flat, inside = names
    rest = [statement for statement in kernel.body if statement not in statements]
    parts = [part for statement in rest for part in ast.walk(statement)]
    widths = {spell(d.right): d.right for d in parts if isinstance(d, ast.BinOp) and _divides(d, flat)}
    once = all(len(kernel.definitions.get(name, ())) == 1 for name in names)
    known = {p.name for p in kernel.parameters} - set(kernel.definitions)
    if len(widths) != 1 or not once or start in names_read(*rest) or not {block, total} <= known:
        return None
    ((text, width),) = widths.items()
    if (text not in known and int_value(width) is None) or (not reduces and kernel.calls("tl.broadcast_to")):
        return None
    if not reduces and (kernel.loops or any(part.id == block for part in parts if isinstance(part, ast.Name))):
        return None
    counts = []
    for launch in module.launches_of(kernel.name):
        if not {block, total} <= set(launch.arguments) or (text in known and text not in launch.arguments):
            return None
        columns = launch.arguments[text] if text in known else width
        rows = _without(launch.arguments[total], spell(columns))
        if rows is None:
            return None
        counts.append((rows, spell(columns)))
    return FlatIndex(kernel, statements, flat, inside, block, width, tuple(counts), reduces)


def _divides(part: ast.AST, flat: str) -> bool:
    return (
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod | ast.FloorDiv)
        and isinstance(part.left, ast.Name) and part.left.id == flat
    )  # fmt: skip


def _without(product: ast.expr, factor: str) -> str | None:
    """A product's other factors, as text; None where this is none of its factors."""
    factors, todo = list[str](), [product]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            todo += [node.right, node.left]
        else:
            factors.append(f"({spell(node)})" if isinstance(node, ast.BinOp) else spell(node))
    if factor not in factors:
        return None
    factors.remove(factor)
    return " * ".join(factors) or "1"


class _Tile:
    """A kernel's statements with the flat index as a row and a column."""

    def __init__(self, flat: FlatIndex) -> None:
        self.flat, kernel = flat, flat.kernel
        self.row, self.column = kernel.fresh("row"), kernel.fresh("column")
        self.row_mask, self.column_mask = kernel.fresh("row_mask"), kernel.fresh("column_mask")
        self.height, self.width, self.rows = kernel.fresh("n_rows"), kernel.fresh("n_columns"), kernel.fresh("ROWS")

    def head(self) -> str:
        """What stands in place of the index."""
        block, index = self.flat.block, f"{self.flat.index} = {self.row} * {spell(self.flat.width)} + {self.column}"
        columns = f"tl.program_id(1) * {block} + tl.arange(0, {block})"
        if self.flat.reduces:
            return f"""{self.row} = tl.program_id(0)
{self.column} = ({columns})[:, None]
{self.flat.mask} = {self.column} < {self.width}
{index}"""
        return f"""{self.row} = (tl.program_id(0) * {self.rows} + tl.arange(0, {self.rows}))[:, None]
{self.column} = ({columns})[None, :]
{self.row_mask} = {self.row} < {self.height}
{self.column_mask} = {self.column} < {self.width}
{index}"""

    def changed(self, statement: ast.stmt) -> ast.stmt:
        return mapped(statement, self._change)

    def _change(self, part: ast.AST) -> ast.expr | None:
        if _divides(part, self.flat.index):
            is_column = isinstance(part.op, ast.Mod)  # type: ignore[attr-defined]
            return ast.Name(self.column if is_column else self.row, ast.Load())
        if isinstance(part, ast.Name) and part.id == self.flat.mask and not self.flat.reduces:
            return self._mask({ROW, COLUMN})
        if called(part) == "tl.load" and not self.flat.reduces:
            assert isinstance(part, ast.Call)
            return self._load(part)
        return None

    def _mask(self, axes: set[str]) -> ast.expr:
        names = [self.row_mask] * (ROW in axes) + [self.column_mask] * (COLUMN in axes)
        return parse_expression(" & ".join(names) if len(names) < 2 else f"({' & '.join(names)})")

    def _load(self, load: ast.Call) -> ast.Call:
        """A load whose mask is no larger than its address."""
        axes = self._axes(load.args[0], set())
        mask = argument(load, "mask", 1)
        if mask is None or not axes or spell(mask) != self.flat.mask:
            return mapped_call(load, self._change)
        return mapped_call(load, lambda part: self._mask(axes) if part is mask else self._change(part))

    def _axes(self, node: ast.AST, seen: set[str]) -> set[str]:
        """Of row and column, those that a value depends on."""
        if _divides(node, self.flat.index):
            return {COLUMN if isinstance(node.op, ast.Mod) else ROW}  # type: ignore[attr-defined]
        if isinstance(node, ast.Name):
            if node.id == self.flat.index:
                return {ROW, COLUMN}
            places = () if node.id in seen else self.flat.kernel.definitions.get(node.id, ())
            found = (self._axes(place, seen | names_written(place)) for place in places)
            return set().union(*found)
        return set().union(*(self._axes(child, seen) for child in ast.iter_child_nodes(node)))
