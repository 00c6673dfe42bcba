"""Convolution in one to three dimensions, transposed or not: an implicit product over taps and channels.

An output at `o` meets tap `k` at input `o·stride + offset + k·step`: offset = -padding and step = dilation. A
transposed convolution of stride s is one of stride 1 for every phase of the output (its places o ≡ r mod s), each with
every s-th tap or so, in reverse; no program writes where another does, and no tap is tried that meets no input.

Weights are copied once, to (taps, channels in, groups, channels out), so that tiles of them are read in whole lines.
Large ones of float32 go to `cut` (windows.py) instead, if the module has it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from evo_kernel.tasks.lowering.contraction import LEAST, viewed
from evo_kernel.tasks.lowering.indexing import copy_into
from evo_kernel.tasks.lowering.layout import LoweredValue, product
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.trace import Expr
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten
FEW = 4  # channels: with fewer, a tile goes over taps and channels at once, for a tile of channels would be empty
UNROLLED = 64  # taps, at most, of which a loop is written out
PHASES = 64  # launches of one transposed convolution, at most
DENSE = 64  # channels of several groups, at most, for which filters are filled up with zeros
FAR = 1 << 20  # beyond any depth
MOST_PLANES = 65535  # a grid's second dimension

HEAD = """\
    pixels = {program} * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.program_id(2)
    rest = pixels
{places}    x_from = x_ptr + rest * x_stride_n + group * in_channels * x_stride_c{x_places}
    y_at = y_ptr + rest * y_stride_n{y_places}
    out = group * out_channels + channels
    n_out = tl.num_programs(2) * out_channels
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
"""

TAP_BY_TAP = """\
    blocks = tl.cdiv(in_channels, BLOCK_K)
    for step in range(0, window * blocks):
        taps = step // blocks
        inner = step % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
        x_at = x_from
        inside = pixels < n_pixels
{inputs}        x_at = x_at[:, None] + (inner * x_stride_c)[None, :]
        x = tl.load(x_at, mask=inside[:, None] & (inner < in_channels)[None, :], other=0.0)
        w_at = w_ptr + (taps * in_channels + inner)[:, None] * n_out + out[None, :]
        w = tl.load(w_at, mask=(inner < in_channels)[:, None] & (channels < out_channels)[None, :], other=0.0)
        acc = tl.dot(x, w, acc{precision})
"""

ALL_TAPS = """\
    depth = window * in_channels
    for start in range(0, depth, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x_at = x_from[:, None] + (inner % in_channels * x_stride_c)[None, :]
        inside = (pixels < n_pixels)[:, None] & (inner < depth)[None, :]
        taps = inner // in_channels
{inputs}        x = tl.load(x_at, mask=inside, other=0.0)
        w_at = w_ptr + inner[:, None] * n_out + out[None, :]
        w = tl.load(w_at, mask=(inner < depth)[:, None] & (channels < out_channels)[None, :], other=0.0)
        acc = tl.dot(x, w, acc{precision})
"""

STENCIL = """\
    rows = {program} * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    out_at_w = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    channel = tl.program_id(2)
    rest = rows
{places}    x_from = x_ptr + rest * x_stride_n + channel * x_stride_c{x_places}
    y_at = y_ptr + rest * y_stride_n + channel * y_stride_c{y_places}
    written = (rows < n_rows) & (out_at_w < out_w)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for taps in {taps}:
        x_at = x_from
        inside = written
{inputs}        x = tl.load(x_at, mask=inside, other=0.0)
        acc = acc + x.to(tl.float32) * tl.load(w_ptr + taps * tl.num_programs(2) + channel).to(tl.float32)
{bias}    tl.store(y_at, acc, mask=written)"""
STENCIL_BIAS = "    acc = acc + tl.load(bias_ptr + channel).to(tl.float32)\n"

BIAS = """\
    bias = tl.load(bias_ptr + out, mask=channels < out_channels, other=0.0)
    acc = acc + bias.to(tl.float32)[None, :]
"""

TAIL = """\
    y_at = y_at[:, None] + (out * y_stride_c)[None, :]
    tl.store(y_at, acc, mask=(pixels < n_pixels)[:, None] & (channels < out_channels)[None, :])"""


@dataclass(frozen=True)
class Along:
    """One dimension of a convolution or of a phase: where taps read, and which of the output and of the taps it is."""

    stride: int
    offset: int
    step: int
    outputs: tuple[int, int] = (0, 1)  # from which one on, every how many
    taps: tuple[int, int] | None = (0, 1)  # the same; None: no tap meets any input


@lowers(aten.convolution)
def convolution(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """One launch; of a transposed convolution, one for each phase."""
    x, w, bias = node.value(0), node.value(1), node.argument(2)
    transposed, groups = node.argument(6), node.argument(8)
    if not isinstance(groups, int):
        raise NotLowered("groups that vary with the case")
    rank = len(x.shape) - 2
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or rank not in (1, 2, 3):
        raise NotLowered("a convolution of this dtype or rank")
    stride, padding, dilation = (node.window(index, rank) for index in (3, 4, 5))
    y = module.empty(node.name, node.result)
    x, w = materialise(module, x), materialise(module, w)
    if _pays_in_parts(module, (x, w, y, *([bias] if bias else [])), groups):
        cut, beside = module.products["cut"](module, node)
        _cut(module, cut, (x, w, bias, y), beside, (stride, padding, dilation), groups, bool(transposed))
        return y
    if module.following:
        raise NotLowered("it is not computed with what follows")
    plain = [Along(s, -p, d) for s, p, d in zip(stride, padding, dilation, strict=True)]
    phases = _phases(stride, padding, dilation) if transposed else [plain]
    if len(phases) > PHASES:
        raise NotLowered(f"a transposed convolution of {len(phases)} phases")
    for phase in phases:
        _launch(module, x, w, bias, y, phase, groups, bool(transposed))
    return y


def _pays_in_parts(module: LoweredModule, tensors: Sequence[LoweredValue], groups: int) -> bool:
    """Whether to convolve as float16: as `product_template` does. `tensors`: x, w, the result and the bias."""
    x, _, y = tensors[:3]
    if "cut" not in module.products or any(one.dtype != torch.float32 or not one.contiguous for one in tensors):
        return False
    dense = groups == 1 or groups < module.largest(x.shape[1]) <= DENSE
    if not dense or module.largest(cast(Expr, y.shape[0] * product(y.shape[2:-2]))) > MOST_PLANES:
        return False
    return module.largest(cast(Expr, y.shape[0] * product(y.shape[2:]))) >= LEAST


def _cut(
    module: LoweredModule,
    cut: str,
    tensors: tuple[LoweredValue, LoweredValue, LoweredValue | None, LoweredValue],
    beside: Sequence[tuple[LoweredValue, bool]],
    places: tuple[Sequence[int], Sequence[int], Sequence[int]],
    groups: int,
    transposed: bool,
) -> None:
    """A launch for each phase of depth; those of rows and columns share one.

    `beside`: what follows takes these too; are they as large as the result? `places`: stride, padding, dilation.
    """
    x, w, bias, y = tensors
    missing = 5 - len(x.shape)
    stride, padding, dilation = ((*[least] * missing, *one) for least, one in zip((1, 0, 1), places, strict=True))
    numbers = dict[str, int]()
    for dim, (down, top) in enumerate((("DOWN", "TOP"), ("RIGHT", "LEFT")), start=1):
        s, p, d = stride[dim], padding[dim], dilation[dim]
        numbers |= {down: 1, top: -p, f"STEP_{down}": -d} if transposed else {down: s, top: p, f"STEP_{down}": d}
        apart, every = (s, s // math.gcd(s, d)) if transposed else (1, 1)
        numbers |= {f"APART_{down}": apart, f"EVERY_{down}": every}
    plain = [[Along(stride[0], -padding[0], dilation[0])]]
    pictures = _last(module, "x", x)
    for (along,) in _phases(stride[:1], padding[:1], dilation[:1]) if transposed else plain:
        rest = [(0, 1)] * (len(x.shape) - 3)
        results = _every(module, y, [along.outputs, *rest])
        taps = along.taps if along.taps and along.taps[0] < module.largest(_in_space(w).shape[2]) else None
        filters = _every(module, w, [taps or (0, FAR), *rest])
        if transposed:
            pair = cast(Expr, FloorDiv(w.shape[0], sympy.Integer(groups))), w.shape[1]
            filters = _copied(module, filters, groups, pair, (0, 2, 1, *range(3, len(x.shape) + 1)))
            shape = (filters.shape[0] * filters.shape[1], *filters.shape[2:])
            filters = replace(filters, shape=shape, strides=filters.strides[1:])
        deep = (along.stride, -(along.offset if taps else FAR), along.step)
        geometry = ", ".join(f"{name}={number}" for name, number in numbers.items())
        taken = [_every(module, one, [along.outputs, *rest]) if whole else one for one, whole in beside]
        operands = [pictures, _last(module, "filters", filters), bias.name if bias else "None"]
        operands += [*(one.name for one in taken), _last(module, "results", results)]
        module.line(f"{cut}({', '.join(operands)}, dict({geometry}, DEEP={deep}))")


def _in_space(value: LoweredValue) -> LoweredValue:
    """With depth and rows of one where it has none."""
    ones = (sympy.Integer(1),) * (5 - len(value.shape))
    shape, strides = ((*numbers[:2], *ones, *numbers[2:]) for numbers in (value.shape, value.strides))
    return replace(value, shape=shape, strides=strides)


def _last(module: LoweredModule, name: str, value: LoweredValue) -> str:
    """A variable with the tensor in space, channels last."""
    value = _in_space(value)
    shape, strides = (tuple(numbers[dim] for dim in (0, 2, 3, 4, 1)) for numbers in (value.shape, value.strides))
    return viewed(module, name, replace(value, shape=shape, strides=strides))


def _phases(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> list[list[Along]]:
    """Of a transposed convolution: all combinations of what there is along each dimension.

    Tap k meets output r + s·j where r + padding - k·dilation is a multiple of s, at input j + that multiple: every
    (s / g)-th tap does, from the first on, g being the greatest common divisor of s and the dilation; or none.
    """
    along = []
    for s, p, d in zip(stride, padding, dilation, strict=True):
        every = s // math.gcd(s, d)
        found = []
        for r in range(s):
            first = next((k for k in range(every) if (r + p - k * d) % s == 0), None)
            taps = None if first is None else (first, every)
            found.append(Along(1, (r + p - (first or 0) * d) // s, -(every * d // s), (r, s), taps))
        along.append(found)
    return [list(phase) for phase in itertools.product(*along)]


def _launch(
    module: LoweredModule,
    x: LoweredValue,
    w: LoweredValue,
    bias: LoweredValue | None,
    y: LoweredValue,
    phase: list[Along],
    groups: int,
    transposed: bool,
) -> None:
    usual_pixels, usual_window = y.shape[0] * product(y.shape[2:]), product(w.shape[2:])  # all phases have one kernel
    y = _every(module, y, [along.outputs for along in phase])
    pixels = cast(Expr, y.shape[0] * product(y.shape[2:]))
    w = _every(module, w, [along.taps for along in phase])
    windows, window = w.shape[2:], cast(Expr, product(w.shape[2:]))
    if module.largest(pixels) == 0:
        return
    per_group = cast(Expr, FloorDiv(w.shape[0], sympy.Integer(groups)))
    in_channels, out_channels = (per_group, w.shape[1]) if transposed else (w.shape[1], per_group)
    depthwise = groups > 1 and module.largest(in_channels) == module.largest(out_channels) == 1
    if module.largest(window):
        w = _by_taps(module, w, groups, in_channels, out_channels, transposed)
    rows = cast(Expr, y.shape[0] * product(y.shape[2:-1]))
    name = ("depthwise_" if depthwise else "") + ("transposed_" if transposed else "") + "convolution"
    kernel = LoweredKernel(name + ("_bias" if bias is not None else ""), module)
    for param, value in (("x", x), ("w", w), *((("bias", bias),) if bias is not None else ()), ("y", y)):
        kernel.pointer(param, value.name)
    letters = "dhw"[3 - len(phase) :]
    sizes: dict[str, Expr] = {"window": window}
    sizes |= {"n_rows": rows} if depthwise else {
        "n_pixels": pixels, "out_channels": out_channels, "in_channels": in_channels
    }  # fmt: skip
    for prefix, dims in (("in", x.shape[2:]), ("out", y.shape[2:]), ("window", windows)):
        sizes |= {f"{prefix}_{a}": size for a, size in zip(letters, dims, strict=True)}
    for param, size in sizes.items():
        kernel.size(param, size)
    for param, value in (("x", x), ("y", y)):
        for dim, letter in enumerate(f"nc{letters}"):
            kernel.scalar(f"{param}_stride_{letter}", f"{value.name}.stride({dim})")
    if transposed:
        for a, along in zip(letters, phase, strict=True):
            kernel.scalar(f"offset_{a}", str(along.offset))
    few = module.largest(in_channels) < FEW and not depthwise
    unrolled = depthwise and not transposed and isinstance(window, sympy.Integer) and window <= UNROLLED
    tile = (rows, y.shape[-1]) if depthwise else (cast(Expr, usual_pixels), out_channels)
    most = (4, 512) if depthwise else (64, 64)
    kernel.knobs |= {f"BLOCK_{b}": module.block(s, most=m) for b, s, m in zip("MN", tile, most, strict=True)}
    if not depthwise:
        kernel.knobs["BLOCK_K"] = module.block(cast(Expr, in_channels * usual_window) if few else in_channels, most=32)
    text = STENCIL if depthwise else HEAD + (ALL_TAPS if few else TAP_BY_TAP) + (BIAS if bias else "") + TAIL
    walked = letters[:-1] if depthwise else letters
    shown = [str(size) if unrolled else f"window_{a}" for a, size in zip(letters, windows, strict=True)]
    text = text.format(
        program=module.program(0),
        places="".join(
            [f"    out_at_{a} = rest % out_{a}\n    rest = rest // out_{a}\n" for a in reversed(walked)]
            + _first_lines(letters, phase, transposed)
        ),
        x_places="".join(f" + first_{a} * x_stride_{a}" for a in letters),
        y_places="".join(f" + out_at_{a} * y_stride_{a}" for a in letters),
        inputs="".join(_input_lines(letters, phase, shown, few, transposed)),
        precision=module.input_precision(x.dtype),
        taps=f"tl.static_range({window})" if unrolled else "range(0, window)",
        bias=STENCIL_BIAS if bias else "",
    )
    kernel.body += text.split("\n")
    grid = ", ".join(f"triton.cdiv({module.size(s)}, {{BLOCK_{b}}})" for b, s in zip("MN", tile, strict=True))
    module.launch(kernel, f"({grid}, {groups})")


def _first_lines(letters: str, phase: Sequence[Along], named: bool) -> list[str]:
    """Where the first tap reads. `named`: offsets are parameters."""
    lines = []
    for a, along in zip(letters, phase, strict=True):
        stride = f" * {along.stride}" if along.stride != 1 else ""
        offset = f" + offset_{a}" if named else f" + {along.offset}" if along.offset else ""
        lines.append(f"    first_{a} = out_at_{a}{stride}{offset}\n")
    return lines


def _input_lines(letters: str, phase: Sequence[Along], windows: Sequence[str], vector: bool, named: bool) -> list[str]:
    """Where a tap reads, outermost dimension first. `vector`: a tile of taps. `named`: offsets are parameters."""
    rows, cols = ("[:, None]", "[None, :]") if vector else ("", "")
    lines = []
    for dim, (a, along) in enumerate(zip(letters, phase, strict=True)):
        tap = " // ".join(["taps", *windows[dim + 1 :]]) + (f" % {windows[dim]}" if dim else "")
        lines.append(f"        tap_{a} = ({tap}){'' if along.step == 1 else f' * {along.step}'}\n")
        if named or along.offset:  # else all is inside
            at = f"first_{a}{rows} + tap_{a}{cols}"
            lines.append(f"        inside = inside & ({at} >= 0) & ({at} < in_{a})\n")
        lines.append(f"        x_at = x_at + tap_{a}{cols} * x_stride_{a}\n")
    return lines


def _every(module: LoweredModule, value: LoweredValue, taken: Sequence[tuple[int, int] | None]) -> LoweredValue:
    """A view of what is taken of the dimensions from the third on."""
    if all(one == (0, 1) for one in taken):
        return value
    shown = [":0" if one is None else f"{one[0] or ''}::{one[1]}" for one in taken]
    name = module.named(f"{value.name}_part", f"{value.name}[:, :, {', '.join(shown)}]")
    shape, strides = list(value.shape[:2]), list(value.strides[:2])
    for one, size, stride in zip(taken, value.shape[2:], value.strides[2:], strict=True):
        start, step = one or (0, 1)
        count = sympy.Integer(0) if one is None else FloorDiv(size - start + step - 1, sympy.Integer(step))
        shape.append(cast(Expr, count))
        strides.append(cast(Expr, stride * step))
    return LoweredValue(name, tuple(shape), tuple(strides), value.dtype)


def _by_taps(
    module: LoweredModule, w: LoweredValue, groups: int, inner: Expr, outer: Expr, transposed: bool
) -> LoweredValue:
    """A copy of the weights: (taps ..., channels in, groups, channels out)."""
    taps = range(3, len(w.shape) + 1)
    return _copied(
        module,
        w,
        groups,
        (inner, outer) if transposed else (outer, inner),
        (*taps, *((1, 0, 2) if transposed else (2, 0, 1))),
    )


def _copied(
    module: LoweredModule, w: LoweredValue, groups: int, pair: tuple[Expr, Expr], order: Sequence[int]
) -> LoweredValue:
    """A copy of the weights: their groups, the pair of channels in each and taps, in this order."""
    name = module.fresh("weights")
    split = f".unflatten(0, ({groups}, {module.size(pair[0])}))"
    module.line(f"{name}_from = {w.name}{split}.permute({', '.join(map(str, order))})")
    shape = (sympy.Integer(groups), *pair, *w.shape[2:])
    strides = (pair[0] * w.strides[0], w.strides[0], *w.strides[1:])
    source = LoweredValue(f"{name}_from", tuple(shape[d] for d in order), tuple(strides[d] for d in order), w.dtype)
    target = module.scratch(name, source.shape, w.dtype)
    copy_into(module, source, target)
    return target
