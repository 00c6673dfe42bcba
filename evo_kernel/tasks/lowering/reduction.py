"""Reductions over any dimensions, and operations on whole rows: softmax, layer norm, running sums, sorting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from evo_kernel.tasks.lowering.extremes import LARGER, SMALLER
from evo_kernel.tasks.lowering.frames import RowFrame, keep, kept_dims, lanes
from evo_kernel.tasks.lowering.layout import Group, LoweredValue, Operand, align, collapse
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule, tl_type
from evo_kernel.tasks.lowering.pointwise import compute_type
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten


@dataclass(frozen=True)
class Reduction:
    """How one kind of reduction accumulates: lanes of BLOCK first, across lanes at the end."""

    start: str  # what lanes start from, and what masked elements read as
    step: str  # new value of `total` from `total` and `x`
    across: str  # from the lanes {total} to one number
    last: str = "{total}"  # what is stored, from the one number {total} and the count {n}
    boolean: bool = False  # computes on `x != 0`
    functions: Mapping[str, str] = field(default_factory=dict)  # that `across` combines by


LAST_LANE = "tl.sum(tl.where(cols == BLOCK - 1, tl.cumprod({total}, axis=0), 0), axis=0)"


def _edge(dtype: torch.dtype, sign: int) -> str:
    """The neutral element of a maximum (sign -1) or minimum (+1)."""
    if dtype.is_floating_point:
        return 'float("-inf")' if sign < 0 else 'float("inf")'
    info = torch.iinfo(dtype)
    return str(info.min if sign < 0 else info.max)


def _reduction(kind: str, dtype: torch.dtype) -> Reduction:
    total, largest, smallest = (f"tl.{name}({{total}}, axis=0)" for name in ("sum", "max", "min"))
    if extreme := {"amax": LARGER, "amin": SMALLER}.get(kind):
        start, across = _edge(dtype, -1 if kind == "amax" else 1), extreme.across("{total}", 0, dtype)
        return Reduction(start, extreme.of("total", "x", dtype), across, functions=extreme.functions(dtype))
    table = {
        "sum": Reduction("0", "total + x", total),
        "mean": Reduction("0", "total + x", total, "{total} / {n}"),
        "prod": Reduction("1", "total * x", LAST_LANE),
        "any": Reduction("0", "tl.maximum(total, (x != 0).to(tl.int32))", largest, "{total} != 0", boolean=True),
        "all": Reduction("1", "tl.minimum(total, (x != 0).to(tl.int32))", smallest, "{total} != 0", boolean=True),
    }
    return table[kind]


def _dims(node: AtenNode, source: LoweredValue) -> list[int]:
    """The reduced dimensions, non-negative; none given means all."""
    dims = node.argument(1, "dim")
    if dims is None or dims == []:
        return list(range(len(source.shape)))
    dims = dims if isinstance(dims, list) else [dims]
    return sorted(int(dim) % max(len(source.shape), 1) for dim in dims)


def reduce(module: LoweredModule, node: AtenNode, kind: str) -> LoweredValue:
    """A reduction over any dimensions: by columns where those lie next to each other, by rows otherwise."""
    source = materialise(module, node.value(0))
    reduced = _dims(node, source)
    result = node.result if isinstance(node.result, torch.Tensor) else node.result[0]
    dtype = _accumulator(kind, source.dtype, result.dtype)
    how = _reduction(kind, dtype)
    out = module.empty(node.name, result)
    x, y = align("x", source, source.shape), keep("out", out, source.shape, reduced)
    kept = collapse(source.shape, kept_dims(source, reduced), (x, y))
    walked = collapse(source.shape, reduced, (x,))
    step = f"total = {how.step}"
    # Whether neighbours in memory belong to different results: then a program takes a block of columns.
    if (
        0 < len(kept) <= 2
        and len(walked) == 1
        and x.strides[kept[-1].dim] == y.strides[kept[-1].dim] == 1 != x.strides[walked[0].dim]
    ):
        kernel = LoweredKernel(f"col_{kind}", module)
        cast = f".to({tl_type(dtype)})" if dtype != source.dtype and not how.boolean else ""
        load = f"mask=mask, other={how.start}){cast}"
        _reduce_columns(kernel, (x, y), kept, walked[0], (lanes(dtype, how.start), load, step, how.last))
        return out
    rows = RowFrame(module, f"{'row' if kept else 'full'}_{kind}", source, reduced, (y,), dtype)
    rows.cast = "" if how.boolean else rows.cast
    rows.say(f"total = {lanes(dtype, how.start)}")
    rows.loop(step, other=how.start)
    rows.store(y, how.last.format(total=how.across.format(total="total"), n=rows.n))
    rows.launch()
    module.functions |= how.functions
    return out


def _accumulator(kind: str, source: torch.dtype, result: torch.dtype) -> torch.dtype:
    if kind in ("any", "all"):
        return torch.int32
    if kind in ("amax", "amin"):
        return torch.int32 if source == torch.bool else compute_type(source)
    return compute_type(result)


def _reduce_columns(
    kernel: LoweredKernel, operands: tuple[Operand, Operand], kept: Sequence[Group], walked: Group,
    texts: tuple[str, str, str, str],
) -> None:  # fmt: skip
    """One program per BLOCK of columns (and per outer index), a loop over the rows that are summed up."""
    (x, y), (start, load, step, last), module = operands, texts, kernel.module
    kernel.pointer("x", x.name)
    kernel.pointer("out", y.name)
    n_rows, n_cols = kernel.size("n_rows", walked.size), kernel.size("n_cols", kept[-1].size)
    kernel.knobs["BLOCK"] = module.block(kept[-1].size, most=256)
    axis = len(kept) - 1  # the outer index comes first: only the first grid axis goes beyond 65,535
    kernel.body += [
        f"    cols = {module.program(axis)} * BLOCK + tl.arange(0, BLOCK)",
        f"    mask = cols < {n_cols}",
    ]
    outer_x = outer_y = ""
    grid = f"triton.cdiv({module.size(kept[-1].size)}, {{BLOCK}})"
    if axis:
        kernel.body.append(f"    outer = {module.program(0)}")
        outer_x = kernel.term("outer", "x_outer_stride", x, kept[0].dim)
        outer_y = kernel.term("outer", "out_outer_stride", y, kept[0].dim)
        grid = f"{module.size(kept[0].size)}, {grid}"
    loop = f"range(0, {n_rows})"
    if module.largest(walked.size) >= UNROLLED:  # a row at a time, too few loads would be under way
        kernel.knobs["UNROLL"] = 8
        loop = f"tl.range(0, {n_rows}, loop_unroll_factor=UNROLL)"
    row = kernel.term("row", "x_row_stride", x, walked.dim)
    address = " + ".join(part for part in ("x_ptr", outer_x, row, "cols") if part)
    store = " + ".join(part for part in ("out_ptr", outer_y, "cols") if part)
    kernel.body += [
        f"    total = {start}",
        f"    for row in {loop}:",
        f"        x = tl.load({address}, {load}",
        f"        {step}",
        f"    tl.store({store}, {last.format(total='total', n=n_rows)}, mask=mask)",
    ]
    module.launch(kernel, f"({grid})" if axis else f"({grid},)")


UNROLLED = 64
"""Rows that are summed up by columns, from which loops over them are unrolled."""

for _kind, *_operations in (
    ("sum", aten.sum), ("mean", aten.mean), ("prod", aten.prod), ("any", aten.any), ("all", aten.all),
    ("amax", aten.amax, aten.max.default), ("amin", aten.amin, aten.min.default),
):  # fmt: skip
    lowers(*_operations)(lambda module, node, kind=_kind: reduce(module, node, kind))


@lowers(aten.argmax, aten.argmin)
def argmax(module: LoweredModule, node: AtenNode) -> LoweredValue:
    out = module.empty(node.name, node.result)
    _arg(module, node, {"index": out})
    return out


@lowers(aten.max.dim, aten.min.dim)
def max_dim(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue, LoweredValue | None]:
    if not any(user.args[1] == 1 for user in node.fx.users):  # nobody asks where
        return reduce(module, node, "amax" if "max" in node.operation else "amin"), None
    values, indices = node.result
    out, index = module.empty(f"{node.name}_values", values), module.empty(f"{node.name}_indices", indices)
    _arg(module, node, {"out": out, "index": index})
    return out, index


def _arg(module: LoweredModule, node: AtenNode, outs: dict[str, LoweredValue]) -> None:
    """Position of the first largest (smallest) element, and the element itself where `outs` asks for it."""
    source = materialise(module, node.value(0))
    reduced, largest = _dims(node, source), "max" in node.operation
    dtype = torch.int32 if source.dtype == torch.bool else compute_type(source.dtype)
    operands = {name: keep(name, value, source.shape, reduced) for name, value in outs.items()}
    rows = RowFrame(module, "row_argmax" if largest else "row_argmin", source, reduced, list(operands.values()), dtype)
    edge, extreme = _edge(dtype, -1 if largest else 1), LARGER if largest else SMALLER
    index = "tl.int64" if module.wide else "tl.int32"
    better, found = f"x {extreme.sign} best", "best == extreme"
    if dtype.is_floating_point:  # the first NaN is larger and smaller than all numbers
        better = f"(best == best) & ~(x {'<=' if largest else '>='} best)"
        found = "(best == extreme) | (best != best)"
    rows.say(f"best = {lanes(dtype, edge)}", f"where = tl.zeros([BLOCK], {index})")
    rows.loop(
        f"better = {better}",  # never where the mask is off: `edge` is no better than any
        "best = tl.where(better, x, best)",
        f"where = tl.where(better, (start + cols).to({index}), where)",
        other=edge,
    )
    rows.say(f"extreme = {extreme.across('best', 0, dtype)}")
    module.functions |= extreme.functions(dtype)
    for name, operand in operands.items():
        first = f"tl.min(tl.where({found}, where, {rows.n}), axis=0)"
        rows.store(operand, "extreme" if name == "out" else first)
    rows.launch()


def write_mean(rows: RowFrame) -> None:
    """Two passes over each row: `mean`, and the lanes of `squares` around it."""
    rows.say(f"total = {lanes(rows.dtype)}")
    rows.loop("total += x")
    rows.say(f"mean = tl.sum(total, axis=0) / {rows.n}", f"squares = {lanes(rows.dtype)}")
    rows.loop("centred = tl.where(mask, x - mean, 0)", "squares += centred * centred")


@lowers(aten.var)
def var(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source = materialise(module, node.value(0))
    reduced = _dims(node, source)
    correction = node.argument(2, "correction", 1)
    correction = 1 if correction is None else correction
    out = module.empty(node.name, node.result)
    y = keep("out", out, source.shape, reduced)
    rows = RowFrame(module, "row_var", source, reduced, (y,), compute_type(source.dtype))
    write_mean(rows)
    rows.store(y, f"tl.sum(squares, axis=0) / {rows.n if correction == 0 else f'({rows.n} - {correction})'}")
    rows.launch()
    return out


LEAST = 'float("-inf")'
LONGEST_HELD = 65_536
"""Elements of a row that a program can hold in registers."""


@lowers(aten._softmax, aten._log_softmax)
def softmax(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Three passes over each row: the largest, the sum of exponentials, the result; over one that no program can hold,
    the first two are one, whose sums are relative to the largest so far."""
    source = materialise(module, node.value(0))
    dim = node.integer(1) % max(len(source.shape), 1)
    name = node.operation.removeprefix("aten._")
    out = module.empty(node.name, node.result)
    y = align("y", out, source.shape)
    rows = RowFrame(module, name, source, [dim], (y,), compute_type(source.dtype))
    rows.say(f"largest = {lanes(rows.dtype, LEAST)}")
    if source.shape and module.largest(source.shape[dim]) > LONGEST_HELD:
        rows.say(f"total = {lanes(rows.dtype)}")
        rows.loop(
            "higher = tl.maximum(largest, x)",
            f"shift = tl.where(higher == {LEAST}, 0, higher)",  # -inf less -inf is NaN
            "total = total * tl.exp(largest - shift) + tl.exp(x - shift)",
            "largest = higher",
            other=LEAST,
        )
        rows.say("row_max = tl.max(largest, axis=0)", "total *= tl.exp(largest - row_max)")
    else:
        rows.loop("largest = tl.maximum(largest, x)", other=LEAST)
        rows.say("row_max = tl.max(largest, axis=0)", f"total = {lanes(rows.dtype)}")
        rows.loop("total += tl.exp(x - row_max)", other=LEAST)
    if name == "log_softmax":
        rows.say("row_log = tl.log(tl.sum(total, axis=0))")
        result = "y = x - row_max - row_log"
    else:
        rows.say("row_sum = tl.sum(total, axis=0)")
        result = "y = tl.exp(x - row_max) / row_sum"
    rows.loop(result, other=LEAST, put=y)
    rows.launch()
    return out


@lowers(aten.native_layer_norm)
def layer_norm(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue | None, ...]:
    """Three passes over each row: the mean, the squares around it, the result."""
    if any(user.args[1] != 0 and user.users for user in node.fx.users):
        raise NotLowered("its mean and rstd as outputs")
    source, weight, bias = materialise(module, node.value(0)), node.argument(2), node.argument(3)
    rank = len(source.shape)
    out = module.empty(node.name, node.result[0])
    y = align("y", out, source.shape)
    extra = [align(n, materialise(module, v), source.shape) for n, v in (("weight", weight), ("bias", bias)) if v]
    reduced = range(rank - len(node.argument(1)), rank)
    rows = RowFrame(module, "layer_norm", source, reduced, (*extra, y), compute_type(source.dtype))
    write_mean(rows)
    rows.say(f"scale = tl.rsqrt(tl.sum(squares, axis=0) / {rows.n} + {float(node.argument(4))!r})")
    result = "(x - mean) * scale" + (" * weight" if weight else "") + (" + bias" if bias else "")
    rows.loop(f"y = {result}", more=extra, put=y)
    rows.launch()
    return out, None, None


@lowers(aten.cumsum, aten.cumprod)
def cumsum(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """One program a row: each block is scanned, and carries its last element on to the next."""
    source = materialise(module, node.value(0))
    if not source.shape:
        raise NotLowered("a scan of a single number")
    dim = node.integer(1) % len(source.shape)
    out = module.empty(node.name, node.result)
    y = align("y", out, source.shape)
    name = node.operation.removeprefix("aten.")
    step, start = ("*", "1") if name == "cumprod" else ("+", "0")
    rows = RowFrame(module, f"row_{name}", source, [dim], (y,), compute_type(node.result.dtype))
    rows.say(f"carry = tl.max({lanes(rows.dtype, start)}, axis=0)")
    rows.loop(
        f"y = tl.{name}(x, axis=0) {step} carry",
        "carry = tl.sum(tl.where(cols == BLOCK - 1, y, 0), axis=0)",
        other=start,
        put=y,
    )
    rows.launch()
    return out


@lowers(aten.sort, aten.topk)
def sort(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue, LoweredValue]:
    """Values and positions in order; topk keeps the first k ranks."""
    source = materialise(module, node.value(0))
    rank = len(source.shape)
    if rank == 0:
        raise NotLowered("a single number")
    top = node.operation == "aten.topk"
    first = 2 if top or node.fx.target is aten.sort.stable else 1
    dim = node.integer(first, "dim", -1) % rank
    largest = bool(node.argument(first + 1, "largest" if top else "descending", top))
    values, indices = node.result
    outs = [module.empty(f"{node.name}_{tail}", fake) for tail, fake in (("values", values), ("indices", indices))]
    ys = [align(param, value, value.shape) for param, value in zip(("values", "indices"), outs, strict=True)]
    rows = RowFrame(module, "topk" if top else "sort", source, [dim], ys, source.dtype)
    kernel = rows.kernel
    kept = "mask"
    if top:
        kernel.size("k", outs[0].shape[dim])
        kept = "mask & (rank < k)"

    def at(operand: Operand, index: str) -> str:
        parts = (
            f"{operand.param}_ptr",
            rows.row(operand),
            kernel.term(index, f"{operand.param}_col_stride", operand, dim),
        )
        return " + ".join(part for part in parts if part)

    value, place, there = "x", "start + cols", "j"
    told, told_other = list[str](), list[str]()
    if source.dtype.is_floating_point:  # NaN is larger than infinity: beside it, on the other side
        aside = f"-{rows.n}" if largest else rows.n
        told = ['value = tl.where(x == x, x, float("inf"))', f"place = start + cols + tl.where(x == x, 0, {aside})"]
        told_other = [
            f"    there = j + tl.where(other == other, 0, {aside})",
            '    other = tl.where(other == other, other, float("inf"))',
        ]
        value, place, there = "value", "place", "there"
    before = f"(other {'>' if largest else '<'} {value}) | ((other == {value}) & ({there} < {place}))"
    rows.loop(
        "rank = tl.zeros([BLOCK], tl.int32)",
        *told,
        f"for j in range(0, {rows.n}):",
        f"    other = tl.load({at(rows.x, 'j')})",
        *told_other,
        f"    rank += ({before}).to(tl.int32)",
        f"tl.store({at(ys[0], 'rank')}, x, mask={kept})",
        f"tl.store({at(ys[1], 'rank')}, start + cols, mask={kept})",
    )
    rows.launch()
    return outs[0], outs[1]
