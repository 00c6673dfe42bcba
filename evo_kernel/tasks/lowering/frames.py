"""Frames: the loops and address arithmetic that kernels of a family share, in the shape that rewrites know.

`write_map` walks an output element by element (flat, by rows, or through general strides). `RowFrame` walks the rows
of a reduction: one program a row, `for start in range(0, n_cols, BLOCK)` inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
import torch

from evo_kernel.tasks.lowering.layout import Group, LoweredValue, Operand, align, collapse, product, same, storage_order
from evo_kernel.tasks.lowering.module import PARAM_NAMES, LoweredKernel, LoweredModule, tl_type
from evo_kernel.tasks.lowering.trace import Expr

Compute = Callable[[list[str]], tuple[list[str], str]]
"""Names of the loaded operands → (statements, expression of the result)."""


@dataclass(frozen=True)
class FrameRead:
    """An operand of a map kernel: loaded and cast, or (`load=False`) handed to the expression as an address."""

    value: LoweredValue
    as_type: torch.dtype | None = None
    along: Sequence[int | None] | None = None  # output dimension → the value's (None: stays); broadcasting if absent
    load: bool = True

    def cast(self) -> str:
        if self.as_type is None or self.as_type == self.value.dtype:
            return ""
        return f".to({tl_type(self.as_type)})"

    def operand(self, param: str, shape: Sequence[Expr]) -> Operand:
        if self.along is None:
            return align(param, self.value, shape)
        strides = tuple(sympy.Integer(0) if dim is None else self.value.strides[dim] for dim in self.along)
        return Operand(param, self.value.name, self.value.dtype, strides, tuple(self.along))


@dataclass(frozen=True)
class Index:
    """The position along one output dimension, as an operand of a map kernel."""

    dim: int
    load: bool = False

    def operand(self, param: str, shape: Sequence[Expr]) -> Operand:
        strides = tuple(sympy.Integer(int(dim == self.dim)) for dim in range(len(shape)))
        return Operand("", "", torch.int64, strides, tuple(range(len(shape))))


@dataclass(frozen=True)
class _Work:
    """What a frame computes for each element."""

    reads: Sequence[tuple[Operand, FrameRead | Index]]
    scalars: Sequence[str]
    compute: Compute

    def expressions(self, kernel: LoweredKernel, offsets: Sequence[str]) -> tuple[list[str], str]:
        """Statements and result, given each operand's offset."""
        texts = []
        for (operand, read), offset in zip(self.reads, offsets, strict=True):
            if isinstance(read, Index):
                texts.append(f"({offset})" if offset else "tl.where(mask, 0, 0)")
            elif read.load:
                texts.append(operand.param)
            else:
                texts.append(f"{operand.param}_ptr" + (f" + {offset}" if offset else ""))
        for index, text in enumerate(self.scalars):
            kernel.scalar(f"c{index}", text)
        return self.compute([*texts, *(f"c{index}" for index in range(len(self.scalars)))])


def write_map(
    module: LoweredModule,
    base: str,
    reads: Sequence[FrameRead | Index],
    scalars: Sequence[str],
    compute: Compute,
    out: LoweredValue,
    like: torch.Tensor | None = None,
) -> LoweredValue:
    """`out`, after a kernel that computes every element of it from what `reads` holds for it.

    `scalars` are Python expressions over sizes that the kernel takes as numbers `c0`, `c1`, ...; `like` is the fake
    result, whose memory order the kernel follows.
    """
    order = tuple(range(len(out.shape))) if like is None else storage_order(like)
    operands: list[Operand] = []
    free = iter(PARAM_NAMES)
    for position, read in enumerate(reads):
        twin = next((operands[i] for i in range(position) if reads[i] == read), None)
        operands.append(twin or read.operand(next(free), out.shape))
    target = align("out", out, out.shape)
    groups = collapse(out.shape, order, [*operands, target])
    inner = [o.strides[groups[-1].dim] for o in (*operands, target)] if groups else []
    # An address that does not move along the row would be one number where its loads are masked blocks.
    fixed = any(isinstance(r, FrameRead) and not r.load and s == 0 for r, s in zip(reads, inner, strict=False))
    simple = all(stride in (0, 1) for stride in inner) and not fixed
    suffix = "" if len(groups) <= 1 and simple else "_rows" if len(groups) == 2 and simple else "_strided"
    kernel = LoweredKernel(base + suffix, module)
    for operand in operands:
        if operand.param:
            kernel.pointer(operand.param, operand.name)
    kernel.pointer("out", out.name)
    work = _Work(list(zip(operands, reads, strict=True)), scalars, compute)
    frame = _by_rows if suffix == "_rows" else _flat
    frame(kernel, groups, work, target, out)
    return out


def _flat(kernel: LoweredKernel, groups: list[Group], work: _Work, target: Operand, out: LoweredValue) -> None:
    """One program per BLOCK consecutive elements; several groups take the index apart."""
    numel = product([group.size for group in groups])
    n = kernel.size("n_elements", numel)
    kernel.knobs["BLOCK"] = kernel.module.block(numel)
    kernel.body += [
        f"    pid = {kernel.module.program(0)}",
        "    offsets = pid * BLOCK + tl.arange(0, BLOCK)",
        f"    mask = offsets < {n}",
    ]
    indices = kernel.split("offsets", groups, "index")
    offsets = [kernel.offset(operand, groups, indices) for operand, _ in work.reads]
    loads = []
    for (operand, read), offset in zip(work.reads, offsets, strict=True):
        if isinstance(read, FrameRead) and read.load:
            loads.append(f"    {operand.param} = {_load(operand, offset, 'mask')}{read.cast()}")
    kernel.body += dict.fromkeys(loads)
    statements, result = work.expressions(kernel, offsets)
    kernel.body += [f"    {line}" for line in statements]
    dense = out.contiguous and len(groups) > 1
    offset = "offsets" if dense else (kernel.offset(target, groups, indices) or "offsets")
    kernel.body.append(f"    tl.store(out_ptr + {offset}, {result}, mask=mask)")
    kernel.module.launch(kernel, f"(triton.cdiv({kernel.module.size(numel)}, {{BLOCK}}),)")


def _by_rows(kernel: LoweredKernel, groups: list[Group], work: _Work, target: Operand, out: LoweredValue) -> None:
    """One program a row, a loop over its columns; operands that stay put along a row are read once."""
    rows, cols = groups
    n = kernel.size("n_cols", cols.size)
    kernel.knobs["BLOCK"] = kernel.module.block(cols.size)
    kernel.body += [f"    row = {kernel.module.program(0)}", "    cols = tl.arange(0, BLOCK)"]
    loop: list[str] = []
    offsets: list[str] = []
    for operand, read in work.reads:
        row_part = kernel.term("row", f"{operand.param}_stride", operand, rows.dim)
        moving = operand.strides[cols.dim] != 0
        offsets.append(" + ".join(part for part in (row_part, "start + cols" if moving else "") if part))
        if isinstance(read, Index) or not read.load:
            continue
        load = f"{operand.param} = {_load(operand, offsets[-1], 'mask' if moving else '')}{read.cast()}"
        place, indent = (loop, "        ") if moving else (kernel.body, "    ")
        if indent + load not in place:
            place.append(indent + load)
    statements, result = work.expressions(kernel, offsets)
    row_part = kernel.term("row", "out_stride", target, rows.dim)
    offset = " + ".join(part for part in (row_part, "start + cols") if part)
    kernel.body += [f"    for start in range(0, {n}, BLOCK):", f"        mask = start + cols < {n}", *loop]
    kernel.body += [f"        {line}" for line in statements]
    kernel.body.append(f"        tl.store(out_ptr + {offset}, {result}, mask=mask)")
    kernel.module.launch(kernel, f"({kernel.module.size(rows.size)},)")


def _load(operand: Operand, offset: str, mask: str) -> str:
    if not offset:
        return f"tl.load({operand.param}_ptr)"
    return f"tl.load({operand.param}_ptr + {offset}" + (f", mask={mask})" if mask else ")")


PROCESSORS = 132
"""Of an H200. Fewer rows leave some idle: each has more warps then, so that more of it is on its way."""


class RowFrame:
    """A kernel with one program a row of `source`, whose dimensions in `reduced` are walked inside; the others number
    the rows.

    Its first parameter is `x`, the source; `operands` follow, aligned by `align` or, results of a reduction, by `keep`.
    Rows are computed in `dtype`. Addresses read `x_ptr + row * x_stride + start + cols`.
    """

    def __init__(
        self,
        module: LoweredModule,
        name: str,
        source: LoweredValue,
        reduced: Sequence[int],
        operands: Sequence[Operand],
        dtype: torch.dtype,
    ) -> None:
        self.x, self.dtype = align("x", source, source.shape), dtype
        self.cast = f".to({tl_type(dtype)})" if dtype != source.dtype else ""
        kernel = self.kernel = LoweredKernel(name, module)
        for operand in (self.x, *operands):
            kernel.pointer(operand.param, operand.name)
        self.kept = collapse(source.shape, kept_dims(source, reduced), (self.x, *operands))
        self.reduced = collapse(source.shape, reduced, (self.x, *operands))
        size = product([group.size for group in self.reduced])
        self.n = kernel.size("n_cols", size)
        few = module.largest(product([group.size for group in self.kept])) < PROCESSORS
        kernel.knobs["BLOCK"] = module.block(size, most=8192 if few else 1024)
        self.warps = max(4, kernel.knobs["BLOCK"] // 256)
        if self.kept:
            kernel.body.append(f"    row = {module.program(0)}")
        kernel.body.append("    cols = tl.arange(0, BLOCK)")
        self._row_indices = kernel.split("row", self.kept, "row")

    def say(self, *lines: str) -> None:
        """Lines outside of loops."""
        self.kernel.body += [f"    {line}" for line in lines]

    def row(self, operand: Operand) -> str:
        """Offset of an operand's row, or ""."""
        return self.kernel.offset(operand, self.kept, self._row_indices)

    def address(self, operand: Operand) -> str:
        """Address of an element of the current block (`start + cols`) of the current row."""
        if len(self.reduced) > 1:
            names = [f"col_{index}" for index in range(len(self.reduced))]
            inner = self.kernel.offset(operand, self.reduced, names, "_col")
        else:
            place, param = "(start + cols)", f"{operand.param}_col_stride"
            inner = self.kernel.term(place, param, operand, self.reduced[0].dim) if self.reduced else place
            inner = "start + cols" if inner == place else inner
        return " + ".join(part for part in (f"{operand.param}_ptr", self.row(operand), inner) if part)

    def loop(self, *lines: str, other: str = "0", more: Sequence[Operand] = (), put: Operand | None = None) -> None:
        """`for start ...`: loads `x` and `more` by their names, then lines, then stores `y` to `put`.

        `mask` is the block's mask; what lies outside reads as `other`.
        """
        body = self.kernel.body
        body += [f"    for start in range(0, {self.n}, BLOCK):", f"        mask = start + cols < {self.n}"]
        if len(self.reduced) > 1:
            body.append("        index = start + cols")
            self.kernel.split("index", self.reduced, "col", indent="        ")
        for one in (self.x, *more):
            body.append(f"        {one.param} = tl.load({self.address(one)}, mask=mask, other={other}){self.cast}")
        body += [f"        {line}" for line in lines]
        if put is not None:
            body.append(f"        tl.store({self.address(put)}, y, mask=mask)")

    def store(self, operand: Operand, value: str) -> None:
        """One number a row."""
        offset = self.row(operand)
        self.say(f"tl.store({operand.param}_ptr{' + ' + offset if offset else ''}, {value})")

    def launch(self) -> None:
        size = product([group.size for group in self.kept])
        self.kernel.module.launch(self.kernel, f"({self.kernel.module.size(size)},)", warps=self.warps)


def tile_address(kernel: LoweredKernel, operand: Operand, *axes: tuple[int, str, str]) -> str:
    """Address of a tile of a matrix, or of one of a batch: dimension, index and letter of its rows and its columns.

    Where a matrix has one row or column, the index still gives the tile its shape.
    """
    param = operand.param
    batch = kernel.term("batch", f"{param}_batch_stride", operand, 0) if len(operand.strides) == 3 else ""
    terms = [
        kernel.term(index, f"{param}_stride_{letter}", operand, len(operand.strides) + dim) or f"{index} * 0"
        for dim, index, letter in axes
    ]
    return " + ".join(part for part in (f"{param}_ptr", batch, *terms) if part)


def kept_dims(source: LoweredValue, reduced: Sequence[int]) -> list[int]:
    return [dim for dim in range(len(source.shape)) if dim not in reduced]


def lanes(dtype: torch.dtype, start: str = "0") -> str:
    """A value of BLOCK lanes that all start from one number."""
    if start == "0":
        return f"tl.zeros([BLOCK], {tl_type(dtype)})"
    return f"tl.full([BLOCK], {start}, {tl_type(dtype)})"


def keep(param: str, value: LoweredValue, shape: Sequence[Expr], reduced: Sequence[int]) -> Operand:
    """Align the result of a reduction (with or without kept dimensions of size one) to the reduced value's shape."""
    squeezed, left = len(value.shape) != len(shape), itertools.count()
    dims = [None if dim in reduced else next(left) if squeezed else dim for dim in range(len(shape))]
    strides = tuple(sympy.Integer(0) if dim is None else value.strides[dim] for dim in dims)
    return Operand(param, value.name, value.dtype, strides, tuple(dims))


def covers_storage(value: LoweredValue) -> bool:
    """Whether a value is one dense block: no gaps, no repeats, in whatever order of dimensions."""
    pairs = [(stride, size) for stride, size in zip(value.strides, value.shape, strict=True) if size != 1]
    expected: Expr = product([])
    while pairs:
        found = next((pair for pair in pairs if same(pair[0], expected)), None)
        if found is None:
            return False
        pairs.remove(found)
        expected = expected * found[1]
    return True
