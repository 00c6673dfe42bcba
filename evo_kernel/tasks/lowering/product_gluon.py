"""The text of a template in Gluon, of matrices or of windows: a warp that loads by TMA, warp groups with wgmma.

Lines end with the operands that they are for: MATRIX or WINDOWS; WHOLE ones, or PARTED, where each lies in two parts;
of whole matrices, TURNED or STRAIGHT, as the right one lies. SCALED: both were float32; HALVED: as one part, as exact
as TF32. A result is stored by TMA from BOXES, or, of windows of float32, by pointers as PLANES. Matrices of float32 are
LAYERED: several of a batch, or several parts of long sums, which a second kernel adds; others are FLAT.
"""

from __future__ import annotations

import re

from evo_kernel.errors import LoweringError

GLUON_NAMES = {
    *("load", "where", "maximum", "minimum", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf"),
    *("PropagateNan", "abs", "floor", "ceil", "float32", "float16", "bfloat16", "int1", "int32", "int64"),
}


def in_gluon(line: str) -> str:
    """A statement of Triton in Gluon's words. Raises LoweringError for functions that Gluon lacks."""
    line = line.replace("tl.sigmoid(", "sigmoid(")
    for name in re.findall(r"\btl\.(\w+)", line):
        if name not in GLUON_NAMES:
            raise LoweringError(f"Gluon has no {name}.")
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", line)


GLUON = '''

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Names of Triton 3.9, or of 3.6.
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

FORMS = (
    # rows of a warp group, groups, columns and depth of a tile, slots of the ring, parts of the result that are stored
    # one after the other, buffers for them, and the speed of such tiles on an H200
    (64, 2, 256, 64, 3, 2, 2, 1.0),  # TURNED STRAIGHT
    (64, 2, 128, 64, 6, 1, 1, 0.96),  # MATRIX
    (64, 1, 128, 64, 8, 1, 1, 0.8),  # MATRIX
    (64, 1, 64, 128, 6, 1, 1, 0.5),  # MATRIX
    (64, 2, 256, 64, 3, 2, 2, 0.91),  # WINDOWS+WHOLE
    (128, 2, 128, 64, 4, 2, 1, 0.92),  # WINDOWS+WHOLE
    (64, 2, 128, 64, 6, 1, 1, 1.0),  # WINDOWS
    (128, 2, 64, 64, 4, 1, 1, 0.75),  # WINDOWS
    (64, 2, 64, 64, 8, 1, 1, 0.65),  # WINDOWS
    (64, 1, 64, 64, 12, 1, 1, 0.5),  # WINDOWS
)
GROUP_M = 8


@gluon.jit
def approximate(x, INSTRUCTION: gl.constexpr):
    return gl.inline_asm_elementwise(
        INSTRUCTION + ".approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) in four instructions: tensor cores idle meanwhile."""
    return approximate(1.0 + approximate(x * -1.4426950408889634, "ex2"), "rcp")


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    """The slot after `slot`, and the parity of its barriers."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def place(tile, row_tiles, col_tiles, GROUP_M: gl.constexpr):
    """Row and column of a tile: GROUP_M rows of tiles at a time, column by column, so that they share b in L2."""
    group = tile // (GROUP_M * col_tiles)
    inner = tile - group * (GROUP_M * col_tiles)
    wide = gl.minimum(row_tiles - group * GROUP_M, GROUP_M)
    return group * GROUP_M + inner % wide, inner // wide


@gluon.jit
def produce(
    a_desc, PHASES, b_desc, a_smem, b_smem, full, empty, row_tiles, col_tiles, steps, layers, SIDES,
    ROWS: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr,
    GROUP_M: gl.constexpr, BOX: gl.constexpr, GEOMETRY: gl.constexpr
):
    """One warp: loads tiles of both matrices into the ring."""
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), row_tiles * col_tiles, gl.num_programs(0)):  # FLAT
        row, col = place(tile, row_tiles, col_tiles, GROUP_M)  # FLAT
    for tile in range(gl.program_id(0), layers * row_tiles * col_tiles, gl.num_programs(0)):  # LAYERED
        layer = tile // (row_tiles * col_tiles)  # LAYERED
        row, col = place(tile - layer * (row_tiles * col_tiles), row_tiles, col_tiles, GROUP_M)  # LAYERED
        above_a = layer * (a_desc.shape[0] // (2 * layers))  # LAYERED+PARTED
        above_b = layer * (b_desc.shape[0] // (2 * layers))  # LAYERED+PARTED
        above_a = layer * (a_desc.shape[0] // layers)  # LAYERED+HALVED
        above_b = layer * (b_desc.shape[0] // layers)  # LAYERED+HALVED
        turns = steps  # MATRIX
        row, down, right, top, left, taps = share_of(row, GEOMETRY)  # WINDOWS
        turns = taps * steps  # WINDOWS
        first = row * GROUPS  # WINDOWS
        ends = corner_of(first, SIDES, BOX, GEOMETRY), corner_of(first + GROUPS - 1, SIDES, BOX, GEOMETRY)  # WINDOWS
        tap_down, tap_right, channel = top, left, 0  # WINDOWS
        for j in range(turns):  # WHOLE
        for j in range(3 * turns):  # PARTED
            step = j % steps  # MATRIX+PARTED
            lower_a = gl.where(j // turns == 1, a_desc.shape[0] // 2, 0)  # PARTED
            lower_b = gl.where(j // turns == 0, b_desc.shape[0] // 2, 0)  # PARTED
            barrier, b = full.index(slot), b_smem.index(slot)
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(barrier, (GROUPS * ROWS + BLOCK_N) * BLOCK_K * 2)
            for g in gl.static_range(GROUPS):
                a = a_smem.index(slot * GROUPS + g)
                a_row = (row * GROUPS + g) * ROWS  # MATRIX
                a_row += above_a  # LAYERED
                load_tile(a_desc, [a_row, j * BLOCK_K], barrier, a)  # TURNED STRAIGHT
                load_tile(a_desc, [lower_a + a_row, step * BLOCK_K], barrier, a)  # MATRIX+PARTED
                picture, i, j_right = ends[g]  # WINDOWS
                picture += lower_a  # WINDOWS+PARTED
                at = picture, i, j_right, down + tap_down * STEP_DOWN, right + tap_right * STEP_RIGHT  # WINDOWS
                load_window((a_desc, PHASES), barrier, a, at, channel, BLOCK_K, BOX, GEOMETRY)  # WINDOWS
            load_tile(b_desc, [col * BLOCK_N, j * BLOCK_K], barrier, b)  # TURNED+FLAT
            load_tile(b_desc, [above_b + col * BLOCK_N, j * BLOCK_K], barrier, b)  # LAYERED+HALVED
            load_tile(b_desc, [lower_b + above_b + col * BLOCK_N, step * BLOCK_K], barrier, b)  # MATRIX+PARTED
            load_tile(b_desc, [j * BLOCK_K, col * BLOCK_N], barrier, b)  # STRAIGHT
            b_row = col * BLOCK_N  # WINDOWS
            b_row += lower_b  # WINDOWS+PARTED
            to = b.reshape([BLOCK_N, 1, 1, BLOCK_K])  # WINDOWS
            load_tile(b_desc, [b_row, tap_down, tap_right, channel], barrier, to)  # WINDOWS
            channel += BLOCK_K  # WINDOWS
            tap_right = gl.where(channel >= b_desc.shape[3], tap_right + EVERY_RIGHT, tap_right)  # WINDOWS
            channel = gl.where(channel >= b_desc.shape[3], 0, channel)  # WINDOWS
            tap_down = gl.where(tap_right >= WIDE, tap_down + EVERY_DOWN, tap_down)  # WINDOWS
            tap_right = gl.where(tap_right >= WIDE, left, tap_right)  # WINDOWS
            tap_down = gl.where(tap_down >= HIGH, top, tap_down)  # WINDOWS+PARTED
            slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def finish(
    acc, c_desc, POINTERS, c_smem, box, layer, residue, col, m, n, layers, SIDES, STRIDES,
    OUTS: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr, LATER: gl.constexpr, BOX: gl.constexpr,
    GEOMETRY: gl.constexpr
):
    """A part of the result: what follows the product, and its store."""
    rows = box * acc.shape[0] + gl.arange(0, acc.shape[0], gl.SliceLayout(1, LAYOUT))  # MATRIX
    rows = gl.where(rows < m // layers, layer * (m // layers) + rows, m)  # LAYERED
    place, i, j = corner_of(box, SIDES, BOX, GEOMETRY)  # WINDOWS
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, LAYOUT))  # WINDOWS
    rows = outputs(place, i, j, residue, rows, m, SIDES, BOX, GEOMETRY)  # WINDOWS
    cols = col + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    area = out_high * out_wide  # PLANES
    acc *= gl.load(a_inverse_ptr + rows, mask=rows < m, other=0.0)[:, None]  # MATRIX+SCALED
    acc *= gl.load(a_inverse_ptr + rows // area, mask=rows < m, other=0.0)[:, None]  # PLANES
    acc *= gl.load(b_inverse_ptr + cols, mask=cols < n, other=0.0)[None, :]  # SCALED+FLAT
    acc *= gl.load(b_inverse_ptr + layer * n + cols, mask=cols < n, other=0.0)[None, :]  # LAYERED
    place = (rows // area).to(gl.int64)  # PLANES
    offsets = rows % area + place // out_deep * picture_stride + place % out_deep * depth_stride  # PLANES
    inside = (rows < m)[:, None] & (cols < n)[None, :]  # PLANES
    EPILOGUE  # FLAT
    to = (c_ptr + offsets)[:, None] + (cols * channel_stride)[None, :]  # PLANES
    gl.store(to, RESULT.to(c_ptr.dtype.element_ty), mask=inside)  # PLANES
    tma.store_wait(OUTS - 1)  # BOXES+FLAT
    c_smem.store(RESULT.to(c_desc.dtype))  # BOXES+FLAT
    if LATER:  # LAYERED
        tma.store_wait(OUTS - 1)  # LAYERED
        c_smem.store(acc)  # LAYERED
    else:  # LAYERED
        EPILOGUE  # LAYERED
        tma.store_wait(OUTS - 1)  # LAYERED
        c_smem.store(RESULT.to(c_desc.dtype))  # LAYERED
    fence_async_shared()  # BOXES
    store_tile(c_desc, [box * acc.shape[0], col], c_smem)  # MATRIX+FLAT
    store_tile(c_desc, [layer, box * acc.shape[0], col], c_smem.reshape([1, acc.shape[0], WIDTH]))  # LAYERED
    store_tile(c_desc, [place, i, j, col], c_smem.reshape([BOX, WIDTH]))  # WINDOWS+BOXES


@gluon.jit
def consume(
    c_desc, POINTERS, a_smem, b_smem, c_smem, full, empty, row_tiles, col_tiles, steps, m, n, layers, SIDES, STRIDES,
    G: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr,
    GROUP_M: gl.constexpr, PARTS: gl.constexpr, OUTS: gl.constexpr, LATER: gl.constexpr, BOX: gl.constexpr,
    GEOMETRY: gl.constexpr
):
    """Warp group G: its rows of each tile. One product is in flight while the next one's tiles are awaited."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // PARTS, 16])
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), row_tiles * col_tiles, gl.num_programs(0)):  # FLAT
        row, col = place(tile, row_tiles, col_tiles, GROUP_M)  # FLAT
    for tile in range(gl.program_id(0), layers * row_tiles * col_tiles, gl.num_programs(0)):  # LAYERED
        layer = tile // (row_tiles * col_tiles)  # LAYERED
        row, col = place(tile - layer * (row_tiles * col_tiles), row_tiles, col_tiles, GROUP_M)  # LAYERED
        turns = steps  # MATRIX
        row, down, right, _, _, taps = share_of(row, GEOMETRY)  # WINDOWS
        residue = down, right  # WINDOWS
        turns = taps * steps  # WINDOWS
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, MMA)
        before = slot + 0
        for j in range(turns):  # WHOLE
        for j in range(2 * turns):  # PARTED
            mbarrier.wait(full.index(slot), phase)
            b = b_smem.index(slot).permute((1, 0))  # TURNED WINDOWS PARTED
            b = b_smem.index(slot)  # STRAIGHT
            acc = warpgroup_mma(a_smem.index(slot * GROUPS + G), b, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index(before), count=1, pred=j > 0)
            before = slot + 0
            slot, phase = following(slot, phase, SLOTS)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(before), count=1)
        acc *= 0.00048828125  # PARTED
        for j in range(turns):  # PARTED
            mbarrier.wait(full.index(slot), phase)  # PARTED
            b = b_smem.index(slot).permute((1, 0))  # PARTED
            # Tensor cores round sums toward zero: long sums of one sign would be too small.  # PARTED
            high = gl.zeros([ROWS, BLOCK_N], gl.float32, MMA)  # PARTED
            high = warpgroup_mma(a_smem.index(slot * GROUPS + G), b, high, use_acc=False)  # PARTED
            mbarrier.arrive(empty.index(slot), count=1)  # PARTED
            acc += high  # PARTED
            slot, phase = following(slot, phase, SLOTS)  # PARTED
        box = row * GROUPS + G
        stage = c_smem.index(G * OUTS)  # BOXES
        if PARTS == 1:
            col *= BLOCK_N
            finish(
                acc, c_desc, POINTERS, stage, box, layer, residue, col, m, n, layers, SIDES, STRIDES,
                OUTS, BLOCK_N, MMA, LATER, BOX, GEOMETRY
            )
        else:
            left, right = gl.split(acc.reshape([ROWS, 2, BLOCK_N // 2]).permute((0, 2, 1)))
            left, right = gl.convert_layout(left, PART), gl.convert_layout(right, PART)
            col *= BLOCK_N
            HALF: gl.constexpr = BLOCK_N // 2
            finish(
                left, c_desc, POINTERS, stage, box, layer, residue, col, m, n, layers, SIDES, STRIDES,
                OUTS, HALF, PART, LATER, BOX, GEOMETRY
            )
            col += HALF
            stage = c_smem.index(G * OUTS + OUTS - 1)  # BOXES
            finish(
                right, c_desc, POINTERS, stage, box, layer, residue, col, m, n, layers, SIDES, STRIDES,
                OUTS, HALF, PART, LATER, BOX, GEOMETRY
            )
    tma.store_wait(0)  # BOXES


@gluon.jit
def product_kernel(
    a_desc, PHASES, b_desc, c_desc, POINTERS, row_tiles, col_tiles, steps, m, n, layers, SIDES, STRIDES,
    ROWS: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr,
    GROUP_M: gl.constexpr, PARTS: gl.constexpr, OUTS: gl.constexpr, LATER: gl.constexpr, BOX: gl.constexpr,
    GEOMETRY: gl.constexpr
):
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    A: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_K], a_desc.dtype)
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_K], a_desc.dtype)  # TURNED WINDOWS PARTED
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_K, BLOCK_N], a_desc.dtype)  # STRAIGHT
    C: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_N // PARTS], c_desc.dtype)  # BOXES
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [SLOTS * GROUPS, ROWS, BLOCK_K], A)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [SLOTS, BLOCK_N, BLOCK_K], B)  # TURNED WINDOWS PARTED
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [SLOTS, BLOCK_K, BLOCK_N], B)  # STRAIGHT
    c_smem = gl.allocate_shared_memory(c_desc.dtype, [GROUPS * OUTS, ROWS, BLOCK_N // PARTS], C)  # BOXES
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    if GROUPS == 2:
        gl.warp_specialize([
            (consume, (
                c_desc, POINTERS, a_smem, b_smem, c_smem, full, empty, row_tiles, col_tiles, steps,
                m, n, layers, SIDES, STRIDES,
                0, ROWS, GROUPS, BLOCK_N, SLOTS, GROUP_M, PARTS, OUTS, LATER, BOX, GEOMETRY
            )),
            (consume, (
                c_desc, POINTERS, a_smem, b_smem, c_smem, full, empty, row_tiles, col_tiles, steps,
                m, n, layers, SIDES, STRIDES,
                1, ROWS, GROUPS, BLOCK_N, SLOTS, GROUP_M, PARTS, OUTS, LATER, BOX, GEOMETRY
            )),
            (produce, (
                a_desc, PHASES, b_desc, a_smem, b_smem, full, empty, row_tiles, col_tiles, steps, layers, SIDES,
                ROWS, GROUPS, BLOCK_N, BLOCK_K, SLOTS, GROUP_M, BOX, GEOMETRY
            )),
        ], [4, 1], [232, 24])
    else:
        gl.warp_specialize([
            (consume, (
                c_desc, POINTERS, a_smem, b_smem, c_smem, full, empty, row_tiles, col_tiles, steps,
                m, n, layers, SIDES, STRIDES,
                0, ROWS, GROUPS, BLOCK_N, SLOTS, GROUP_M, PARTS, OUTS, LATER, BOX, GEOMETRY
            )),
            (produce, (
                a_desc, PHASES, b_desc, a_smem, b_smem, full, empty, row_tiles, col_tiles, steps, layers, SIDES,
                ROWS, GROUPS, BLOCK_N, BLOCK_K, SLOTS, GROUP_M, BOX, GEOMETRY
            )),
        ], [1], [24])


def descriptor(x, block):
    dtype = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}[x.dtype]
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
'''

PARTED = '''

@triton.jit
def loaded(x_from, row, rows, first, wide, left, stride, BLOCK: tl.constexpr):
    """A piece of several rows' shares; how much is left of each row."""
    at = first + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (at < wide)[None, :] & (at[None, :] < left[:, None])
    return tl.load(x_from[:, None] + at.to(tl.int64)[None, :] * stride, mask=inside, other=0.0)


@triton.jit
def largest_of(x):
    x = tl.abs(x)
    return tl.max(tl.where(x < float("inf"), x, 0.0), axis=1)


@triton.jit
def store_parts(x, parts_ptr, row, rows, first, wide, BLOCK: tl.constexpr):
    at = first + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (at < wide)[None, :]
    high = x.to(tl.float16)
    low = tl.where(tl.abs(x) < float("inf"), (x - high.to(tl.float32)) * 2048.0, 0.0).to(tl.float16)  # PARTED
    tl.store(parts_ptr + row[:, None] * wide + at[None, :], high, mask=inside)
    tl.store(parts_ptr + (rows + row)[:, None] * wide + at[None, :], low, mask=inside)  # PARTED


@triton.jit
def parted_kernel(
    x_ptr, parts_ptr, inverse_ptr, rows, height, depth, wide, shares, batch_stride, row_stride, stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HELD: tl.constexpr
):
    """Each row's share times the power of two that brings it to at most 2^15, in parts, and the power's inverse.

    The first part is what it rounds to, the second one 2^11 times the rest.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    layer = row // height
    begin = layer % shares * wide
    x_from = x_ptr + layer // shares * batch_stride + row % height * row_stride + begin * stride
    left = depth - begin
    if HELD:
        x = loaded(x_from, row, rows, 0, wide, left, stride, BLOCK)
        largest = largest_of(x)
    else:
        largest = tl.zeros([ROWS], tl.float32)
        for first in range(0, wide, BLOCK):
            largest = tl.maximum(largest, largest_of(loaded(x_from, row, rows, first, wide, left, stride, BLOCK)))
    exponent = tl.minimum(268 - (largest.to(tl.int32, bitcast=True) >> 23), 253)
    power = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(inverse_ptr + row, ((254 - exponent) << 23).to(tl.float32, bitcast=True), mask=row < rows)
    if HELD:
        store_parts(x * power[:, None], parts_ptr, row, rows, 0, wide, BLOCK)
    else:
        for first in range(0, wide, BLOCK):
            x = loaded(x_from, row, rows, first, wide, left, stride, BLOCK) * power[:, None]
            store_parts(x, parts_ptr, row, rows, first, wide, BLOCK)


def parted(x, shares):
    """Float32 matrices as float16, the first parts of all rows before the second ones, and the powers' inverses.

    Of several shares of each row, the first ones of all rows of a matrix come before the second ones.
    """
    (height, depth), device = x.shape[-2:], x.device
    rows = x.numel() // depth * shares
    wide = triton.cdiv(triton.cdiv(depth, shares), 16) * 16  # whole vectors
    parts = torch.empty((2 * rows, wide), dtype=torch.float16, device=device)  # PARTED
    parts = torch.empty((rows, wide), dtype=torch.float16, device=device)  # HALVED
    inverse = torch.empty(rows, dtype=torch.float32, device=device)
    least, most, block = (1, 16384, 4096) if x.stride(-1) == 1 else (8, 2048, 1024)
    held = wide <= most
    block = max(64, triton.next_power_of_2(wide)) if held else block
    least = max(least, 4096 // block)
    parted_kernel[(triton.cdiv(rows, least),)](
        x, parts, inverse, rows, height, depth, wide, shares, x.stride(0) if x.dim() == 3 else 0, *x.stride()[-2:],
        ROWS=least, BLOCK=block, HELD=held, num_warps=8 if least * block <= 8192 else 16,
    )
    return parts, inverse
'''

SUMMED = '''

SHARE = 1024
ADDING = 512


@triton.jit
def sum_kernel(
    sums_ptr, c_ptr, BESIDE, m, n, height, wide, shares, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """The shares of each sum, in order, and what follows the product."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (cols < wide)[None, :]
    sums_from = sums_ptr + ((rows // height * shares * height + rows % height) * wide)[:, None] + cols[None, :]
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    for share in tl.range(0, shares, loop_unroll_factor=4):
        acc += tl.load(sums_from + share.to(tl.int64) * height * wide, mask=inside, other=0.0)
    EPILOGUE
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(c_ptr + (rows * n)[:, None] + cols[None, :], RESULT.to(c_ptr.dtype.element_ty), mask=inside)
'''

PRODUCT = '''

def product(a, b, EXTRAS, out):
    """Long sums are split, where that keeps more processors busy, into shares of SHARE products or more.  # LAYERED

    Adding up a share takes as long as ADDING products.  # LAYERED
    """  # LAYERED
    (m, k), n = a.shape, out.shape[1]  # FLAT
    (m, k), n, total = a.shape[-2:], out.shape[-1], out.numel()  # LAYERED
    processors = torch.cuda.get_device_properties(a.device).multi_processor_count

    def tiles(form):
        return triton.cdiv(m, form[0] * form[1]) * triton.cdiv(n, form[2])  # FLAT
        return total // (m * n) * triton.cdiv(m, form[0] * form[1]) * triton.cdiv(n, form[2])  # LAYERED

    def cycles(form):  # FLAT
        return triton.cdiv(tiles(form), processors) * form[0] * form[1] * form[2] / form[7]  # FLAT
    def cycles(way):  # LAYERED
        form, shares = way  # LAYERED
        steps = triton.cdiv(k, shares) + (ADDING if shares > 1 else 0)  # LAYERED
        return triton.cdiv(shares * tiles(form), processors) * steps * form[0] * form[1] * form[2] / form[7]  # LAYERED

    form = min(FORMS, key=cycles)  # FLAT
    most = max(1, min(k // SHARE, processors))  # LAYERED
    form, shares = min(((form, shares) for form in FORMS for shares in range(1, most + 1)), key=cycles)  # LAYERED
    rows, groups, block_n, block_k, slots, parts, outs, _ = form
    (a, a_inverse), (b, b_inverse) = parted(a, shares), parted(b, shares)  # LAYERED
    layers, later = total // (m * n) * shares, shares > 1 or n % 8 > 0  # rows of multiples of 16 bytes  # LAYERED
    sums = layers, m, triton.cdiv(n, 16) * 16  # LAYERED
    c = torch.empty(sums, dtype=torch.float32, device=out.device) if later else out.view(layers, m, n)  # LAYERED
    if c.dtype == torch.float32:  # LAYERED
    if out.dtype == torch.float32:  # FLAT
        outs = 1
        free = 226 * 1024 - groups * rows * block_n // parts * 4
        slots = min(slots, free // ((groups * rows + block_n) * block_k * 2))
    product_kernel[(min(processors, tiles(form)),)](  # FLAT
    product_kernel[(min(processors, shares * tiles(form)),)](  # LAYERED
        descriptor(a, [rows, block_k]),
        descriptor(b, [block_n, block_k]),  # TURNED PARTED
        descriptor(b, [block_k, block_n]),  # STRAIGHT
        descriptor(out, [rows, block_n // parts]),  # FLAT
        descriptor(c, [1, rows, block_n // parts]),  # LAYERED
        a_inverse, b_inverse,  # LAYERED
        EXTRAS, triton.cdiv(m, groups * rows), triton.cdiv(n, block_n), triton.cdiv(k, block_k), m, n,  # FLAT
        EXTRAS, triton.cdiv(m, groups * rows), triton.cdiv(n, block_n), triton.cdiv(a.shape[1], block_k),  # LAYERED
        layers * m, n, layers, LATER=later,  # LAYERED
        ROWS=rows, GROUPS=groups, BLOCK_N=block_n, BLOCK_K=block_k, SLOTS=slots, GROUP_M=GROUP_M, PARTS=parts,
        OUTS=outs, num_warps=4,
    )
    if later:  # LAYERED
        block = min(1024, triton.next_power_of_2(n))  # LAYERED
        grid = triton.cdiv(total // n, 1024 // block), triton.cdiv(n, block)  # LAYERED
        sum_kernel[grid](c, out, EXTRAS, total // n, n, m, sums[2], shares, ROWS=1024 // block, BLOCK=block)  # LAYERED
'''
