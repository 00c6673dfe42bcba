"""Tensor descriptors: tiles of matrices fetched by the tensor memory accelerator (TMA) instead of by every thread.

TMA wants unit inner strides and 16-byte alignment, so `run` tests for them and keeps the old kernel for the rest.
A descriptor made on the device needs global scratch: whoever launches outside a plan sets `triton.set_allocator`, as
exported kernels do.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from textwrap import indent

from operators.micro.kernels import Access, SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import GridRewrite, contracts, grid_launches, statement_text
from operators.micro.rewrites.indices import (
    COLUMN_AXIS,
    ROW_AXIS,
    IndexBlock,
    Reader,
    defined_before,
    holder_of,
    read_names,
)
from operators.micro.syntax import called, int_value, spell
from operators.micro.text import Edit

ALIGNMENT_BYTES = 16
MOST_BOX = 256  # elements along one side of what one TMA instruction fetches; of a larger tile Triton makes several
LEAST_BOX = 16  # elements: 16 bytes even of the narrowest dtype


@dataclass(frozen=True)
class _Side:
    block: IndexBlock
    stride: str | None  # a scalar parameter; None: neighbouring elements
    bound: str


@dataclass(frozen=True)
class _Tile:
    """A load that reads a tile of a matrix."""

    access: Access
    base: str
    offset: str | None  # of the matrix from the base pointer
    offset_stride: str | None  # the parameter that the offset is a multiple of
    outer: _Side
    inner: _Side

    @property
    def is_transposed(self) -> bool:
        return self.inner.block.axis == ROW_AXIS

    @property
    def descriptor(self) -> str:
        base = self.base if self.offset is None else f"{self.base} + {self.offset}"
        shape, sizes = [f"{self.outer.bound}, {self.inner.bound}", f"{self.outer.block.size}, {self.inner.block.size}"]
        return f"tl.make_tensor_descriptor({base}, [{shape}], [{self.outer.stride}, 1], [{sizes}])"


class TensorDescriptor(GridRewrite):
    """Offered for contraction kernels with at least one load that is plainly a tile of a matrix."""

    name, family, lacks = "tensor-descriptor", "memory", "has no load that is plainly a tile of a matrix"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[_Tile]:
        launches = grid_launches(module, kernel)
        if len(launches) != 1 or not contracts(kernel) or kernel.calls("tl.make_tensor_descriptor"):
            return []
        if any("_tma_kernel" in spell(guard) for guard in launches[0].guards):
            return []
        tiles = [_tile(kernel, access, launches[0]) for access in kernel.accesses if access.kind == "load"]
        # all that the descriptor is made of must be known before the top-level statement that loads through it
        return [
            tile
            for tile in tiles
            if tile is not None
            and defined_before(kernel, read_names(tile.descriptor), holder_of(kernel, tile.access.statement))
        ]

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: list[_Tile]) -> str:
        launch = module.launches_of(kernel.name)[0]
        name = module.fresh(f"{kernel.name.removesuffix('_kernel')}_tma_kernel")
        old = statement_text(module, launch.statement)
        new = re.sub(rf"^{kernel.name}\b", name, old)
        guard = "\n    and ".join(_guards(launch, found))
        choice = f"if (\n    {guard}\n):\n{indent(new, '    ')}\nelse:\n{indent(old, '    ')}"
        tiled = module.add_kernel(_with_descriptors(module, kernel, found, name))
        return module.edited(module.replace(launch.statement, choice), tiled)


def _tile(kernel: SourceKernel, access: Access, launch: SourceLaunch) -> _Tile | None:
    """The load as a tile, or None. Anything but zeros outside the matrix is refused."""
    if access.base is None or not isinstance(launch.arguments.get(access.base), ast.Name):
        return None
    if access.other is not None and spell(access.other) not in ("0", "0.0"):
        return None
    reader = Reader(kernel, access.statement)
    bounds, offsets, sides, seen_base = _bounds(reader, access), [], {}, False
    for term in reader.terms(access.pointer):
        if isinstance(term, ast.Name) and term.id == access.base:
            seen_base = True
        elif reader.is_scalar(term):
            offsets.append(term)
        else:
            side = _side(reader, term, bounds)
            if side is None or side.block.axis in sides:
                return None
            sides[side.block.axis] = side
    if not seen_base or bounds is None or set(sides) != {ROW_AXIS, COLUMN_AXIS} or len(offsets) > 1:
        return None
    ordered = _ordered(sides[ROW_AXIS], sides[COLUMN_AXIS], launch)
    step = _multiple_of(kernel, reader, offsets[0]) if offsets else None
    sizes = {side.block.size for side in ordered or ()}  # to be tested by `run`
    if ordered is None or (offsets and step is None) or not sizes <= set(kernel.constexprs) & set(launch.arguments):
        return None
    return _Tile(access, access.base, spell(offsets[0]) if offsets else None, step, *ordered)


def _bounds(reader: Reader, access: Access) -> dict[IndexBlock, str] | None:
    """Blocked index → what the mask holds it below; None when the mask says something else."""
    found: dict[IndexBlock, str] = {}
    for condition in reader.conjuncts(access.mask):
        if not isinstance(condition, ast.Compare) or not isinstance(condition.ops[0], ast.Lt):
            return None
        block, bound = reader.block(condition.left), condition.comparators[0]
        if block is None or len(condition.ops) != 1 or not reader.is_scalar(bound):
            return None
        found[block] = spell(bound)
    return found


def _side(reader: Reader, term: ast.expr, bounds: dict[IndexBlock, str] | None) -> _Side | None:
    """`index * stride`, or `index` alone, with the bound that the mask gives (none: the block is the whole side)."""
    index, stride = term, None
    scalars = {p.name for p in reader.kernel.parameters if p.kind == "scalar"}
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        for one, other in ((term.left, term.right), (term.right, term.left)):
            if isinstance(other, ast.Name) and other.id in scalars:
                index, stride = one, other.id
    block = reader.block(index)
    if block is None or bounds is None:
        return None
    bound = bounds.get(block) or (block.size if not block.offset else None)
    return _Side(block, stride, bound) if bound is not None else None


def _ordered(row: _Side, column: _Side, launch: SourceLaunch) -> tuple[_Side, _Side] | None:
    """(outer, inner): the inner side has no stride, or the later dimension's stride."""
    if (row.stride is None) != (column.stride is None):
        return (column, row) if row.stride is None else (row, column)
    if row.stride is None or column.stride is None:
        return None
    strides = [launch.arguments.get(side.stride or "") for side in (row, column)]  # `x.stride(i)`: the dimension is i
    known = [n for n in strides if isinstance(n, ast.Call) and called(n).endswith(".stride") and n.args]
    places = [i for n in known if (i := int_value(n.args[0])) is not None]
    if len(places) < 2 or places[0] == places[1]:
        return None
    return (row, column) if places[0] < places[1] else (column, row)


def _multiple_of(kernel: SourceKernel, reader: Reader, node: ast.expr) -> str | None:
    """The scalar parameter that an offset is a product of."""
    value = reader.value(node.id) if isinstance(node, ast.Name) else node
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        scalars = {p.name for p in kernel.parameters if p.kind == "scalar"}
        return next((spell(side) for side in (value.right, value.left) if spell(side) in scalars), None)
    return None


def _guards(launch: SourceLaunch, tiles: list[_Tile]) -> list[str]:
    """What must hold on the host for every descriptor."""
    found: dict[str, None] = {}
    for tile in tiles:
        tensor = spell(launch.arguments[tile.base])
        if tile.inner.stride is not None:
            found[f"{spell(launch.arguments[tile.inner.stride])} == 1"] = None
        strides = [s for s in (tile.outer.stride, tile.offset_stride) if s is not None]
        for step in [*[spell(launch.arguments[s]) for s in strides], f"{tensor}.storage_offset()"]:
            found[f"{step} * {tensor}.element_size() % {ALIGNMENT_BYTES} == 0"] = None
        for side in (tile.outer, tile.inner):
            size = launch.arguments[side.block.size]
            found[f"{LEAST_BOX} <= {spell(size)} <= {MOST_BOX}"] = None
    return list(found)


def _with_descriptors(module: KernelModule, kernel: SourceKernel, tiles: list[_Tile], name: str) -> str:
    """The kernel under a new name, with its tiles fetched through descriptors."""
    names: dict[str, str] = {}
    edits: list[Edit] = []
    for tile in tiles:
        if tile.descriptor not in names:
            wish = kernel.fresh(f"{tile.base.removesuffix('_ptr')}_desc", *names.values())
            names[tile.descriptor] = wish
            holder = holder_of(kernel, tile.access.statement)
            edits.append(module.insert_before(holder, f"{wish} = {tile.descriptor}"))
        load = f"{names[tile.descriptor]}.load([{tile.outer.block.start}, {tile.inner.block.start}])"
        edits.append(module.replace(tile.access.call, f"tl.trans({load})" if tile.is_transposed else load))
    module = KernelModule.parse(module.edited(edits))
    kernel = module.kernels[kernel.name]
    lines = module.lines[kernel.node.decorator_list[0].lineno - 1 : kernel.node.end_lineno]
    return re.sub(rf"\bdef {kernel.name}\b", f"def {name}", "".join(lines), count=1)
