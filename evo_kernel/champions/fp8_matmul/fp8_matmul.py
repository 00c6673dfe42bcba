"""Matrix product of 8-bit floats (e4m3) with scales by row and by column, to bfloat16, in Gluon (sm_90).

For contiguous inputs: a (m, k) and b (n, k) float8_e4m3fn, scale_a (m, 1) and scale_b (1, n) float32, y (m, n). Sums
are the tensor cores' own, as cuBLASLt's with fast accumulation.

Bred on an H200 by an external agent (2026-11-29): `lineage.json` has the versions, `fp8_matmul.db.xz` is the
population.
Confirmed on hidden cases by judge 30: 1.03 of the fastest baseline (0.95 to 1.14).

Mechanism
---------
* More than 64 rows, `wide_kernel`: one program a multiprocessor, one warp loads by TMA, two warp groups have 64 rows
  each of tiles of 128 x 256.
* Between two tiles tensor cores would rest: sums are scaled and stored. So scales are loaded before a tile's
  products, half of the tile goes to shared memory and half stays in registers, as bfloat16; then the next tile's first
  products are issued, and stores run beside them. After the last tile these products are of whatever the slot holds,
  and nobody reads them: a condition about products in flight would serialise them.
* The second warp group begins when LEAD more slots are filled. From then on it is behind by as much, and one group
  scales while the other one multiplies: half a percent, of 0, 1, 2 and 3 slots.
* Tiles of the last round are cut into 2 or 4 parts by columns where that fills multiprocessors; tiles of 128 columns
  where rounds are fewer.
* Up to 64 rows, `skinny_kernel`: y^T = b a^T, so that 64 rows of b meet 16 to 64 rows of a, in one warp group with a
  long ring. With few columns, programs share k, and a second kernel adds.
* Where rows do not begin at multiples of 16 bytes: a plain kernel.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 30, 2026-11-29; hidden cases are marked. m x n x k:

| case | us | fastest baseline us | |
| --- | --- | --- | --- |
| 4096 x 4096 x 4096 | 94.6 | 92.7 fast sums | 0.98x |
| 64 x 8192 x 8192 | 27.4 | 32.3 fast sums | 1.18x |
| 8192 x 8192 x 2048, hidden | 189.6 | 180.3 fast sums | 0.95x |
| 2048 x 11008 x 4096, hidden | 124.2 | 125.8 fast sums | 1.01x |
| 16 x 14336 x 4096, hidden | 24.5 | 27.9 fast sums | 1.14x |

Dead ends
---------
* Everything of a tile stored before the next one's products: 97.4 us at 4096 x 4096 x 4096 and 201 us at 8192 x 8192 x
  2048, 1.5 us a tile. Buffers of 64 columns, or 3 slots and two buffers of 128, then change 1 % at most.
* Left halves of the last steps first, to store them beside the right halves: products of 256 columns, then of 128,
  want other registers, and ptxas serialises all of them (C7511).
* Both halves in registers while the next products begin: spills.
* Skinny tiles of 128 rows of b, or k in two parts: 32 us, not 27, at 64 x 8192 x 8192.
"""

import math

import torch
import triton
import triton.language as tl
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

SLOTS = 4  # of the ring, with 256 columns
OUTS = 1  # buffers of a warp group for results, with 256 columns
GROUP_M = 16
LEAD = 3  # 0: warp groups begin together; else the second one waits until so many slots and one are filled
ROWS = gl.constexpr(64)  # of a warp group


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
def located(item, whole, row_tiles, col_tiles, GROUP_M: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr):
    """First row and column of an item: tiles from `whole` on are cut into TAIL parts."""
    rest = gl.maximum(item - whole, 0)
    row, col = place(gl.minimum(item, whole) + rest // TAIL, row_tiles, col_tiles, GROUP_M)
    return row * (2 * ROWS), col * BLOCK_N + rest % TAIL * (BLOCK_N // TAIL)


@gluon.jit
def load_steps(
    a_desc, b_desc, a_smem, b_smem, full, empty, row, col, slot, phase, steps,
    WIDTH: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    for j in range(steps):
        barrier = full.index(slot)
        mbarrier.wait(empty.index(slot), phase ^ 1)
        mbarrier.expect(barrier, (2 * ROWS + WIDTH) * BLOCK_K)
        for g in gl.static_range(2):
            load_tile(a_desc, [row + g * ROWS, j * BLOCK_K], barrier, a_smem.index(slot * 2 + g))
        load_tile(b_desc, [col, j * BLOCK_K], barrier, b_smem.index(slot).slice(0, WIDTH, dim=0))
        slot, phase = following(slot, phase, SLOTS)
    return slot, phase


@gluon.jit
def produce(
    a_desc, b_desc, b_part_desc, a_smem, b_smem, full, empty, items, whole, row_tiles, col_tiles, steps,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, GROUP_M: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    """One warp: loads tiles of both matrices into the ring."""
    slot = 0
    phase = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        row, col = located(item, whole, row_tiles, col_tiles, GROUP_M, BLOCK_N, TAIL)
        if TAIL == 1:
            slot, phase = load_steps(
                a_desc, b_desc, a_smem, b_smem, full, empty, row, col, slot, phase, steps, BLOCK_N, BLOCK_K, SLOTS
            )
        else:
            if item < whole:
                slot, phase = load_steps(
                    a_desc, b_desc, a_smem, b_smem, full, empty, row, col, slot, phase, steps, BLOCK_N, BLOCK_K, SLOTS
                )
            else:
                slot, phase = load_steps(
                    a_desc, b_part_desc, a_smem, b_smem, full, empty, row, col, slot, phase, steps,
                    BLOCK_N // TAIL, BLOCK_K, SLOTS,
                )  # fmt: skip


@gluon.jit
def columns(scale_ptr, col, n, WIDTH: gl.constexpr):
    """Scales of columns: an element a thread, or less; loaded before products, so that nobody waits for them after."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    cols = col + gl.arange(0, WIDTH, LAYOUT)
    return gl.load(scale_ptr + cols, mask=cols < n, other=0.0)


@gluon.jit
def scaled(acc, scale_a, scale_b, LAYOUT: gl.constexpr):
    """A part of the result, bfloat16."""
    scale_a = gl.convert_layout(scale_a, gl.SliceLayout(1, LAYOUT))
    scale_b = gl.convert_layout(scale_b, gl.SliceLayout(0, LAYOUT))
    return (acc * scale_a[:, None] * scale_b[None, :]).to(gl.bfloat16)


@gluon.jit
def multiply(
    a_smem, b_smem, full, empty, slot, phase, steps,
    G: gl.constexpr, WIDTH: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    """A part of a tile, (64, WIDTH). One product is in flight while the next one's tiles are awaited."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    acc = gl.zeros([ROWS, WIDTH], gl.float32, MMA)
    before = slot + 0
    for j in range(steps):
        mbarrier.wait(full.index(slot), phase)
        b = b_smem.index(slot).slice(0, WIDTH, dim=0).permute((1, 0))
        acc = warpgroup_mma(a_smem.index(slot * 2 + G), b, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(empty.index(before), count=1, pred=j > 0)
        before = slot + 0
        slot, phase = following(slot, phase, SLOTS)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index(before), count=1)
    return acc, slot, phase


@gluon.jit
def halves(acc, WIDTH: gl.constexpr):
    """Left and right half, WIDTH columns each."""
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    left, right = gl.split(acc.reshape([ROWS, 2, WIDTH]).permute((0, 2, 1)))
    return gl.convert_layout(left, HALF), gl.convert_layout(right, HALF)


@gluon.jit
def first_step(a_smem, b_smem, full, slot, phase, some, G: gl.constexpr, BLOCK_N: gl.constexpr):
    """Issues a tile's first products. Without a tile (`some` is false), of whatever the slot holds: nobody reads them."""  # noqa: E501
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, MMA)
    mbarrier.wait(full.index(slot), phase, pred=some)
    b = b_smem.index(slot).permute((1, 0))
    return warpgroup_mma(a_smem.index(slot * 2 + G), b, zeros, use_acc=False, is_async=True)


@gluon.jit
def whole_tiles(
    y_desc, y_smem, scale_a_ptr, scale_b_ptr, a_smem, b_smem, full, empty, whole, row_tiles, col_tiles, steps, m, n,
    G: gl.constexpr, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr, GROUP_M: gl.constexpr, OUTS: gl.constexpr,
):  # fmt: skip
    """Tiles that are not cut: one's first products are in flight while the one before is stored."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    WIDTH: gl.constexpr = BLOCK_N // 2
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    slot = 0
    phase = 0
    acc = first_step(a_smem, b_smem, full, slot, phase, gl.program_id(0) < whole, G, BLOCK_N)
    acc = warpgroup_mma_wait(0, deps=[acc])
    for item in range(gl.program_id(0), whole, gl.num_programs(0)):
        row, col = place(item, row_tiles, col_tiles, GROUP_M)
        row = row * (2 * ROWS) + G * ROWS
        col *= BLOCK_N
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, MMA))
        scale_a = gl.load(scale_a_ptr + rows, mask=rows < m, other=0.0)
        s0 = columns(scale_b_ptr, col, n, WIDTH)
        s1 = columns(scale_b_ptr, col + WIDTH, n, WIDTH)
        before = slot + 0
        slot, phase = following(slot, phase, SLOTS)
        for j in range(1, steps):
            mbarrier.wait(full.index(slot), phase)
            b = b_smem.index(slot).permute((1, 0))
            acc = warpgroup_mma(a_smem.index(slot * 2 + G), b, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index(before), count=1)
            before = slot + 0
            slot, phase = following(slot, phase, SLOTS)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(before), count=1)
        left, right = halves(acc, WIDTH)
        tma.store_wait(OUTS - 1)
        y_smem.index(G * OUTS).store(scaled(left, scale_a, s0, LAYOUT))
        right = scaled(right, scale_a, s1, LAYOUT)
        acc = first_step(a_smem, b_smem, full, slot, phase, item + gl.num_programs(0) < whole, G, BLOCK_N)
        fence_async_shared()
        store_tile(y_desc, [row, col], y_smem.index(G * OUTS))
        tma.store_wait(OUTS - 1)
        y_smem.index(G * OUTS + OUTS - 1).store(right)
        fence_async_shared()
        store_tile(y_desc, [row, col + WIDTH], y_smem.index(G * OUTS + OUTS - 1))
        acc = warpgroup_mma_wait(0, deps=[acc])
    return slot, phase


@gluon.jit
def consume(
    y_desc, y_part_desc, scale_a_ptr, scale_b_ptr, a_smem, b_smem, y_smem, full, empty,
    items, whole, row_tiles, col_tiles, steps, m, n,
    G: gl.constexpr, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr, GROUP_M: gl.constexpr, TAIL: gl.constexpr,
    OUTS: gl.constexpr, LEAD: gl.constexpr,
):  # fmt: skip
    """Warp group G: 64 rows of each tile."""
    if G == 1 and LEAD > 0:
        mbarrier.wait(full.index(LEAD), 0)
    slot, phase = whole_tiles(
        y_desc, y_smem, scale_a_ptr, scale_b_ptr, a_smem, b_smem, full, empty,
        whole, row_tiles, col_tiles, steps, m, n, G, BLOCK_N, SLOTS, GROUP_M, OUTS,
    )  # fmt: skip
    if TAIL > 1:
        WIDTH: gl.constexpr = BLOCK_N // TAIL
        LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
        for item in range(whole + gl.program_id(0), items, gl.num_programs(0)):
            row, col = located(item, whole, row_tiles, col_tiles, GROUP_M, BLOCK_N, TAIL)
            row += G * ROWS
            rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
            scale_a = gl.load(scale_a_ptr + rows, mask=rows < m, other=0.0)
            scale_b = columns(scale_b_ptr, col, n, WIDTH)
            acc, slot, phase = multiply(a_smem, b_smem, full, empty, slot, phase, steps, G, WIDTH, SLOTS)
            tma.store_wait(0)
            part = y_smem.index(G * OUTS).slice(0, WIDTH, dim=1)
            part.store(scaled(acc, scale_a, scale_b, LAYOUT))
            fence_async_shared()
            store_tile(y_part_desc, [row, col], part)
    tma.store_wait(0)


@gluon.jit
def wide_kernel(
    a_desc, b_desc, b_part_desc, y_desc, y_part_desc, scale_a_ptr, scale_b_ptr,
    items, whole, row_tiles, col_tiles, steps, m, n,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, GROUP_M: gl.constexpr, TAIL: gl.constexpr,
    OUTS: gl.constexpr, LEAD: gl.constexpr,
):  # fmt: skip
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    A: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_K], gl.float8e4nv)
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_K], gl.float8e4nv)
    Y: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_N // 2], gl.bfloat16)
    a_smem = gl.allocate_shared_memory(gl.float8e4nv, [SLOTS * 2, ROWS, BLOCK_K], A)
    b_smem = gl.allocate_shared_memory(gl.float8e4nv, [SLOTS, BLOCK_N, BLOCK_K], B)
    y_smem = gl.allocate_shared_memory(gl.bfloat16, [2 * OUTS, ROWS, BLOCK_N // 2], Y)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (
            y_desc, y_part_desc, scale_a_ptr, scale_b_ptr, a_smem, b_smem, y_smem, full, empty,
            items, whole, row_tiles, col_tiles, steps, m, n, 0, BLOCK_N, SLOTS, GROUP_M, TAIL, OUTS, LEAD,
        )),
        (consume, (
            y_desc, y_part_desc, scale_a_ptr, scale_b_ptr, a_smem, b_smem, y_smem, full, empty,
            items, whole, row_tiles, col_tiles, steps, m, n, 1, BLOCK_N, SLOTS, GROUP_M, TAIL, OUTS, LEAD,
        )),
        (produce, (
            a_desc, b_desc, b_part_desc, a_smem, b_smem, full, empty, items, whole, row_tiles, col_tiles, steps,
            BLOCK_N, BLOCK_K, SLOTS, GROUP_M, TAIL,
        )),
    ], [4, 1], [232, 24])  # fmt: skip


@gluon.jit
def skinny_produce(
    a_desc, b_desc, a_smem, b_smem, full, empty, items, steps,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """One warp: loads 64 rows of b, and all rows of a."""
    slot = 0
    phase = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        first = item % PARTS * steps
        for j in range(first, first + steps):
            barrier = full.index(slot)
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(barrier, (ROWS + BLOCK_M) * BLOCK_K)
            load_tile(b_desc, [item // PARTS * ROWS, j * BLOCK_K], barrier, b_smem.index(slot))
            load_tile(a_desc, [0, j * BLOCK_K], barrier, a_smem.index(slot))
            slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def skinny_consume(
    out_ptr, scale_a_ptr, scale_b_ptr, a_smem, b_smem, full, empty, items, steps, m, n,
    BLOCK_M: gl.constexpr, SLOTS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """One warp group: y^T = b a^T, 64 columns of y at a time."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 32])
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    slot = 0
    phase = 0
    rows = gl.arange(0, BLOCK_M, gl.SliceLayout(1, OUT))
    scale_a = gl.load(scale_a_ptr + rows, mask=rows < m, other=0.0)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        cols = item // PARTS * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, OUT))
        scale_b = gl.load(scale_b_ptr + cols, mask=cols < n, other=0.0)
        acc = gl.zeros([ROWS, BLOCK_M], gl.float32, MMA)
        before = slot + 0
        for j in range(steps):
            mbarrier.wait(full.index(slot), phase)
            acc = warpgroup_mma(b_smem.index(slot), a_smem.index(slot).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index(before), count=1, pred=j > 0)
            before = slot + 0
            slot, phase = following(slot, phase, SLOTS)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(before), count=1)
        out = gl.convert_layout(acc.permute((1, 0)), OUT)
        if PARTS == 1:
            out = out * scale_a[:, None] * scale_b[None, :]
        offsets = (item % PARTS * m + rows)[:, None] * n + cols[None, :]
        mask = (rows < m)[:, None] & (cols < n)[None, :]
        gl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


@gluon.jit
def skinny_kernel(
    a_desc, b_desc, out_ptr, scale_a_ptr, scale_b_ptr, items, steps, m, n,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    A: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_K], gl.float8e4nv)
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_K], gl.float8e4nv)
    a_smem = gl.allocate_shared_memory(gl.float8e4nv, [SLOTS, BLOCK_M, BLOCK_K], A)
    b_smem = gl.allocate_shared_memory(gl.float8e4nv, [SLOTS, ROWS, BLOCK_K], B)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize([
        (skinny_consume, (
            out_ptr, scale_a_ptr, scale_b_ptr, a_smem, b_smem, full, empty, items, steps, m, n,
            BLOCK_M, SLOTS, PARTS,
        )),
        (skinny_produce, (
            a_desc, b_desc, a_smem, b_smem, full, empty, items, steps, BLOCK_M, BLOCK_K, SLOTS, PARTS,
        )),
    ], [1], [24])  # fmt: skip


@triton.jit
def sums_kernel(
    sums_ptr, y_ptr, scale_a_ptr, scale_b_ptr, size, n, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Adds the parts of sums, and scales."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    acc = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(sums_ptr + part * size + at, mask=mask, other=0.0)
    scale_a = tl.load(scale_a_ptr + at // n, mask=mask, other=0.0)
    scale_b = tl.load(scale_b_ptr + at % n, mask=mask, other=0.0)
    tl.store(y_ptr + at, (acc * scale_a * scale_b).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def plain_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, y_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Any sizes."""
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a_mask = (rows[:, None] < m) & (inner[None, :] < k)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=a_mask, other=0.0)
        b_mask = (inner[:, None] < k) & (cols[None, :] < n)
        b = tl.load(b_ptr + cols[None, :] * k + inner[:, None], mask=b_mask, other=0.0)
        acc += tl.dot(a, b)
    scale_a = tl.load(scale_a_ptr + rows, mask=rows < m, other=0.0)
    scale_b = tl.load(scale_b_ptr + cols, mask=cols < n, other=0.0)
    y = acc * scale_a[:, None] * scale_b[None, :]
    tl.store(
        y_ptr + rows[:, None] * n + cols[None, :], y.to(y_ptr.dtype.element_ty),
        mask=(rows[:, None] < m) & (cols[None, :] < n),
    )  # fmt: skip


def descriptor(x, block, dtype):
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


def run(a, b, scale_a, scale_b):
    m, k = a.shape
    n = b.shape[0]
    y = torch.empty((m, n), dtype=torch.bfloat16, device=a.device)
    processors = torch.cuda.get_device_properties(a.device).multi_processor_count
    fp8 = gl.float8e4nv
    if k % 16 or m > 64 and n % 8:  # tensor descriptors take rows that begin at multiples of 16 bytes
        plain_kernel[(triton.cdiv(n, 64), triton.cdiv(m, 64))](
            a, b, scale_a, scale_b, y, m, n, k, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, num_warps=4
        )
        return y
    if m <= 64:
        block_m = max(16, triton.next_power_of_2(m))
        col_tiles = triton.cdiv(n, 64)
        parts = max(1, min(4, processors // col_tiles))
        per_sm = 2 if col_tiles > processors else 1
        out = y if parts == 1 else torch.empty((parts, m, n), dtype=torch.float32, device=a.device)
        skinny_kernel[(min(processors * per_sm, col_tiles * parts),)](
            descriptor(a, [block_m, 128], fp8), descriptor(b, [64, 128], fp8), out, scale_a, scale_b,
            col_tiles * parts, triton.cdiv(k, 128 * parts), m, n, BLOCK_M=block_m, BLOCK_K=128,
            SLOTS=192 * 1024 // per_sm // (64 + block_m) // 128, PARTS=parts, num_warps=4, maxnreg=128,
        )  # fmt: skip
        if parts > 1:
            sums_kernel[(triton.cdiv(m * n, 1024),)](
                out, y, scale_a, scale_b, m * n, n, PARTS=parts, BLOCK=1024, num_warps=4
            )
        return y
    row_tiles = triton.cdiv(m, 128)

    def estimate(form):  # in columns of a full tile, one after the other
        block_n, tail = form
        tiles = row_tiles * triton.cdiv(n, block_n)
        rest = tiles % processors
        if tail > 1 and not 0 < rest * tail <= processors:
            return math.inf
        share = {1: 1.0, 2: 0.55, 4: 0.4}[tail] if rest else 0.0
        return (tiles // processors + share) * (256 if block_n == 256 else 139)

    block_n, tail = min(((256, 1), (256, 2), (256, 4), (128, 1), (128, 2)), key=estimate)
    col_tiles = triton.cdiv(n, block_n)
    tiles = row_tiles * col_tiles
    whole = tiles - tiles % processors if tail > 1 else tiles
    items = whole + (tiles - whole) * tail
    slots, outs = (SLOTS, OUTS) if block_n == 256 else (6, 2)
    steps = max(triton.cdiv(k, 128), slots)  # all slots are filled, at least once: beyond k with zeros
    wide_kernel[(min(processors, items),)](
        descriptor(a, [64, 128], fp8), descriptor(b, [block_n, 128], fp8), descriptor(b, [block_n // tail, 128], fp8),
        descriptor(y, [64, block_n // 2], gl.bfloat16),
        descriptor(y, [64, min(block_n // tail, block_n // 2)], gl.bfloat16),
        scale_a, scale_b, items, whole, row_tiles, col_tiles, steps, m, n,
        BLOCK_N=block_n, BLOCK_K=128, SLOTS=slots, GROUP_M=GROUP_M, TAIL=tail, OUTS=outs, LEAD=LEAD, num_warps=4,
    )  # fmt: skip
    return y
