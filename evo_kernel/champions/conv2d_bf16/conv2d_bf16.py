"""Convolution, bfloat16, channels last: an implicit matrix product over windows that TMA cuts out, in Gluon (sm_90).

Bred on an H200 by an external agent (2026-11-29). `lineage.json` has the versions that led here, `conv2d_bf16.db.xz` is
the population. Confirmed on hidden cases by judge 25: 1.49 (1.01 to 3.74) of the fastest of cuDNN, torch.compile and
im2col.

Mechanism
---------
y is a product of windows (outputs by taps and channels) and filters; no window is written to memory. One program a
multiprocessor; one warp loads, two warp groups multiply.

* A tile is a box of outputs (pictures x rows x columns), so what it needs for one tap is a box of x, moved by the tap:
  one copy by TMA. A stride's phases are dimensions of the descriptor, so strided boxes are dense too. TMA leaves out
  what lies beyond y's borders. Where the stride does not divide the side, x is first copied into wider rows.
* A box takes all pictures at one place, which wastes nothing at any size. Where x is larger than L2, it takes few
  pictures and neighbouring places, whose windows overlap while L2 has them: conv4 0.80 to 1.25 of cuDNN.
* At most 64 filters of 576 taps and channels stay in shared memory, and each warp group takes boxes of its own.
* Tiles beyond the last full round of multiprocessors are summed in parts, which a second kernel adds (conv6, conv11).
  The host estimates rounds, steps and parts for five tile forms, and takes the cheapest.
* With fewer than 16 channels, programs gather rows of taps, which are contiguous, without shared memory.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 25, 2026-11-29; hidden cases are marked. Batches of 128, channels x side:

| case | us | TFLOP/s | fastest baseline us | |
| --- | --- | --- | --- | --- |
| conv1: 3 x 227, 96 filters of 11, stride 4, hidden | 330.9 | 82 | 738.3 im2col | 2.23x |
| conv2: 3 x 231, 96 filters of 11, stride 4, hidden | 333.1 | 84 | 757.3 im2col | 2.27x |
| conv3: 3 x 227, 64 filters of 7, stride 2 | 220.8 | 134 | 884.7 torch.compile | 4.01x |
| conv4: 64 x 224, 64 filters of 7, stride 2, hidden | 1269.4 | 481 | 1581.0 cuDNN | 1.25x |
| conv5: 96 x 24, 256 filters of 5, stride 1 | 91.0 | 692 | 95.1 cuDNN | 1.05x |
| conv6: 256 x 12, 512 filters of 3, stride 1, hidden | 48.1 | 628 | 54.8 torch.compile | 1.14x |
| conv7: 3 x 224, 64 filters of 3, stride 1, hidden | 273.4 | 80 | 1022.2 cuDNN | 3.74x |
| conv8: 64 x 112, 128 filters of 3, stride 1, hidden | 340.1 | 671 | 342.9 cuDNN | 1.01x |
| conv9: 64 x 56, 64 filters of 3, stride 1 | 54.6 | 504 | 65.6 torch.compile | 1.20x |
| conv10: 128 x 28, 128 filters of 3, stride 1, hidden | 44.3 | 576 | 46.3 torch.compile | 1.05x |
| conv11: 256 x 14, 256 filters of 3, stride 1, hidden | 38.9 | 559 | 43.7 cuDNN | 1.12x |
| conv12: 512 x 7, 512 filters of 3, stride 1, hidden | 29.0 | 521 | 32.9 cuDNN | 1.13x |

At 20 random sizes, 16 have at least 0.81 of cuDNN. The others have 0.70 (5 small pictures), 0.53 (408 channels, 40
filters), 0.40 and 0.18 (104 and 376 channels with a stride: 8 modulo 16 channels are gathered).

Dead ends
---------
* Storing a tile while the next one's first products run: 4 to 20 % slower.
* Tiles of their own for two warp groups of 128 x 128: 1 to 6 % slower but with few filters; a lead for one group: none.
* Filters as rows and outputs as columns of the product: 1 % for 64 filters.
* Tiles of 256 for few channels: 11 % faster on conv1 and conv2, 19 and 11 % slower on conv3 and conv7; not dispatched.
"""

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

FORMS = (
    # outputs of a warp group, filters of a tile, slots of a ring 64 deep, parts of a result as in `finish`, and the
    # speed of such tiles on an H200
    (64, 256, 3, 2, 0.91),
    (128, 128, 4, 3, 0.92),
    (64, 128, 6, 1, 1.0),
    (128, 64, 4, 1, 0.75),
    (64, 64, 8, 1, 0.65),
)
SLACK = 102  # % of the fewest boxes
LARGE = 100  # MB of x from which boxes are of few pictures
EXTRA_STEPS = 3  # what a tile takes beyond its products
SUM_ROWS = 4
FEW_M = 128
FEW_K = 32
FEW_WARPS = 4
SHARED = 231424  # bytes a block may have, less barriers


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    """The slot after `slot`, and the parity of its barriers."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def place(box, high, wide, BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr):
    """First picture, row and column of a box of outputs."""
    j = box % wide
    i = box // wide % high
    return box // (wide * high) * BOX_N, i * BOX_H, j * BOX_W


@gluon.jit
def piece(item, whole, steps, SPLITS: gl.constexpr):
    """Tile, first step and end of an item: tiles from `whole` on are summed in parts, an item each."""
    tile = item
    first = gl.to_tensor(0)
    end = steps
    if SPLITS > 1:
        rest = item - whole
        if rest >= 0:
            tile = whole + rest // SPLITS
            first = steps * (rest % SPLITS) // SPLITS
            end = steps * (rest % SPLITS + 1) // SPLITS
    return tile, first, end


@gluon.jit
def produce(
    x_desc, w_desc, x_smem, w_smem, full, empty, items, whole, steps, columns, high, wide, channels,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, SPLITS: gl.constexpr,
    F: gl.constexpr, STRIDE: gl.constexpr, BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """One warp: loads windows and filters into the ring."""
    slot = 0
    phase = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile, first, end = piece(item, whole, steps, SPLITS)
        pair = tile // columns
        col = tile % columns * BLOCK_N
        n0, i0, j0 = place(pair * 2, high, wide, BOX_N, BOX_H, BOX_W)
        n1, i1, j1 = place(pair * 2 + 1, high, wide, BOX_N, BOX_H, BOX_W)
        chunks = gl.cdiv(channels, BLOCK_K)
        tap = first // chunks
        c = first % chunks * BLOCK_K
        for _ in range(first, end):
            u = tap // F
            v = tap % F
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), (2 * BOX_N * BOX_H * BOX_W + BLOCK_N) * BLOCK_K * 2)
            inner = v % STRIDE * channels + c
            load_tile(
                x_desc, [n0, i0 + u // STRIDE, u % STRIDE, j0 + v // STRIDE, inner], full.index(slot),
                x_smem.index(slot * 2).reshape([BOX_N, BOX_H, 1, BOX_W, BLOCK_K]),
            )  # fmt: skip
            load_tile(
                x_desc, [n1, i1 + u // STRIDE, u % STRIDE, j1 + v // STRIDE, inner], full.index(slot),
                x_smem.index(slot * 2 + 1).reshape([BOX_N, BOX_H, 1, BOX_W, BLOCK_K]),
            )  # fmt: skip
            load_tile(w_desc, [col, tap, c], full.index(slot), w_smem.index(slot).reshape([BLOCK_N, 1, BLOCK_K]))
            slot, phase = following(slot, phase, SLOTS)
            c += BLOCK_K
            tap = gl.where(c >= channels, tap + 1, tap)
            c = gl.where(c >= channels, 0, c)


@gluon.jit
def store_part(
    acc, y_desc, y_smem, n, i, j, col, PENDING: gl.constexpr, WIDTH: gl.constexpr,
    BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """Stores columns of a result; TMA leaves out what is beyond y's borders."""
    tma.store_wait(PENDING)
    y_smem.store(acc.to(y_desc.dtype))
    fence_async_shared()
    store_tile(y_desc, [n, i, j, col], y_smem.reshape([BOX_N, BOX_H, BOX_W, WIDTH]))


@gluon.jit
def finish(
    acc, y_desc, y_smem, n, i, j, col, G: gl.constexpr, PARTS: gl.constexpr, BLOCK_N: gl.constexpr,
    BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """Stores a result, whole (PARTS 1), in halves with a buffer each (2), or in halves through one buffer (3)."""
    WIDTH: gl.constexpr = BLOCK_N if PARTS == 1 else BLOCK_N // 2
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    M: gl.constexpr = BOX_N * BOX_H * BOX_W
    if PARTS == 1:
        store_part(acc, y_desc, y_smem.index(G), n, i, j, col, 0, WIDTH, BOX_N, BOX_H, BOX_W)
    else:
        left, right = gl.split(acc.reshape([M, 2, WIDTH]).permute((0, 2, 1)))
        left, right = gl.convert_layout(left, PART), gl.convert_layout(right, PART)
        first: gl.constexpr = G * 2 if PARTS == 2 else G
        second: gl.constexpr = G * 2 + 1 if PARTS == 2 else G
        pending: gl.constexpr = 1 if PARTS == 2 else 0
        store_part(left, y_desc, y_smem.index(first), n, i, j, col, pending, WIDTH, BOX_N, BOX_H, BOX_W)
        store_part(right, y_desc, y_smem.index(second), n, i, j, col + WIDTH, pending, WIDTH, BOX_N, BOX_H, BOX_W)


@gluon.jit
def consume(
    y_desc, sums_ptr, x_smem, w_smem, y_smem, full, empty, items, whole, steps, columns, high, wide,
    G: gl.constexpr, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr, PARTS: gl.constexpr, SPLITS: gl.constexpr,
    BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """Warp group G: a box of each tile. One product is in flight while the next one's tiles are awaited."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    M: gl.constexpr = BOX_N * BOX_H * BOX_W
    slot = 0
    phase = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile, first, end = piece(item, whole, steps, SPLITS)
        acc = gl.zeros([M, BLOCK_N], gl.float32, MMA)
        before = slot + 0
        for step in range(first, end):
            mbarrier.wait(full.index(slot), phase)
            acc = warpgroup_mma(x_smem.index(slot * 2 + G), w_smem.index(slot).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index(before), count=1, pred=step > first)
            before = slot + 0
            slot, phase = following(slot, phase, SLOTS)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(before), count=1)
        n, i, j = place(tile // columns * 2 + G, high, wide, BOX_N, BOX_H, BOX_W)
        col = tile % columns * BLOCK_N
        if SPLITS > 1:
            if item >= whole:
                rows = ((item - whole) * 2 + G) * M + gl.arange(0, M, gl.SliceLayout(1, MMA))
                cols = gl.arange(0, BLOCK_N, gl.SliceLayout(0, MMA))
                gl.store(sums_ptr + rows[:, None] * BLOCK_N + cols[None, :], acc)
            else:
                finish(acc, y_desc, y_smem, n, i, j, col, G, PARTS, BLOCK_N, BOX_N, BOX_H, BOX_W)
        else:
            finish(acc, y_desc, y_smem, n, i, j, col, G, PARTS, BLOCK_N, BOX_N, BOX_H, BOX_W)
    tma.store_wait(0)


@gluon.jit
def windows_kernel(
    x_desc, w_desc, y_desc, sums_ptr, items, whole, steps, columns, high, wide, channels,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, PARTS: gl.constexpr, SPLITS: gl.constexpr,
    F: gl.constexpr, STRIDE: gl.constexpr, BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    M: gl.constexpr = BOX_N * BOX_H * BOX_W
    WIDTH: gl.constexpr = BLOCK_N if PARTS == 1 else BLOCK_N // 2
    BUFFERS: gl.constexpr = 4 if PARTS == 2 else 2
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    FLAT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, BLOCK_K], x_desc.dtype)
    FILTERS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_K], x_desc.dtype)
    OUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, WIDTH], x_desc.dtype)
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [SLOTS * 2, M, BLOCK_K], FLAT)
    w_smem = gl.allocate_shared_memory(w_desc.dtype, [SLOTS, BLOCK_N, BLOCK_K], FILTERS)
    y_smem = gl.allocate_shared_memory(y_desc.dtype, [BUFFERS, M, WIDTH], OUT)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (
            y_desc, sums_ptr, x_smem, w_smem, y_smem, full, empty, items, whole, steps, columns, high, wide,
            0, BLOCK_N, SLOTS, PARTS, SPLITS, BOX_N, BOX_H, BOX_W,
        )),
        (consume, (
            y_desc, sums_ptr, x_smem, w_smem, y_smem, full, empty, items, whole, steps, columns, high, wide,
            1, BLOCK_N, SLOTS, PARTS, SPLITS, BOX_N, BOX_H, BOX_W,
        )),
        (produce, (
            x_desc, w_desc, x_smem, w_smem, full, empty, items, whole, steps, columns, high, wide, channels,
            BLOCK_N, BLOCK_K, SLOTS, SPLITS, F, STRIDE, BOX_N, BOX_H, BOX_W,
        )),
    ], [4, 1], [232, 24])  # fmt: skip


@gluon.jit
def produce_own(
    x_desc, w_desc, x_smem, w_smem, full, empty, ready, boxes, high, wide, channels,
    G: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, STEPS: gl.constexpr,
    F: gl.constexpr, STRIDE: gl.constexpr, BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """One warp a group: loads windows into the group's ring; the first one loads all filters before."""
    M: gl.constexpr = BOX_N * BOX_H * BOX_W
    if G == 0:
        chunks = gl.cdiv(channels, BLOCK_K)
        mbarrier.expect(ready, STEPS * BLOCK_N * BLOCK_K * 2)
        for step in range(STEPS):
            load_tile(
                w_desc, [0, step // chunks, step % chunks * BLOCK_K], ready,
                w_smem.index(step).reshape([BLOCK_N, 1, BLOCK_K]),
            )  # fmt: skip
    slot = 0
    phase = 0
    for box in range(gl.program_id(0) + G * gl.num_programs(0), boxes, 2 * gl.num_programs(0)):
        n, i, j = place(box, high, wide, BOX_N, BOX_H, BOX_W)
        for u in range(F):
            for v in range(F):
                for c in range(0, channels, BLOCK_K):
                    at = G * SLOTS + slot
                    mbarrier.wait(empty.index(at), phase ^ 1)
                    mbarrier.expect(full.index(at), M * BLOCK_K * 2)
                    load_tile(
                        x_desc,
                        [n, i + u // STRIDE, u % STRIDE, j + v // STRIDE, v % STRIDE * channels + c], full.index(at),
                        x_smem.index(at).reshape([BOX_N, BOX_H, 1, BOX_W, BLOCK_K]),
                    )  # fmt: skip
                    slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def consume_own(
    y_desc, x_smem, w_smem, y_smem, full, empty, ready, boxes, high, wide,
    G: gl.constexpr, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr, STEPS: gl.constexpr,
    BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """Warp group G: boxes of its own, so that one group may multiply while the other stores."""
    M: gl.constexpr = BOX_N * BOX_H * BOX_W
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    slot = 0
    phase = 0
    mbarrier.wait(ready, 0)
    for box in range(gl.program_id(0) + G * gl.num_programs(0), boxes, 2 * gl.num_programs(0)):
        acc = gl.zeros([M, BLOCK_N], gl.float32, MMA)
        before = slot + 0
        for step in range(STEPS):
            at = G * SLOTS + slot
            mbarrier.wait(full.index(at), phase)
            acc = warpgroup_mma(x_smem.index(at), w_smem.index(step).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index(G * SLOTS + before), count=1, pred=step > 0)
            before = slot + 0
            slot, phase = following(slot, phase, SLOTS)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(G * SLOTS + before), count=1)
        n, i, j = place(box, high, wide, BOX_N, BOX_H, BOX_W)
        store_part(acc, y_desc, y_smem.index(G), n, i, j, 0, 0, BLOCK_N, BOX_N, BOX_H, BOX_W)
    tma.store_wait(0)


@gluon.jit
def resident_kernel(
    x_desc, w_desc, y_desc, boxes, high, wide, channels,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, STEPS: gl.constexpr,
    F: gl.constexpr, STRIDE: gl.constexpr, BOX_N: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """All filters stay in shared memory."""
    M: gl.constexpr = BOX_N * BOX_H * BOX_W
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    FLAT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, BLOCK_K], x_desc.dtype)
    FILTERS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_K], x_desc.dtype)
    OUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, BLOCK_N], x_desc.dtype)
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [2 * SLOTS, M, BLOCK_K], FLAT)
    w_smem = gl.allocate_shared_memory(w_desc.dtype, [STEPS, BLOCK_N, BLOCK_K], FILTERS)
    y_smem = gl.allocate_shared_memory(y_desc.dtype, [2, M, BLOCK_N], OUT)
    full = gl.allocate_shared_memory(gl.int64, [2 * SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [2 * SLOTS, 1], barriers)
    ready = gl.allocate_shared_memory(gl.int64, [1], barriers)
    mbarrier.init(ready, count=1)
    for i in gl.static_range(2 * SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize([
        (consume_own, (
            y_desc, x_smem, w_smem, y_smem, full, empty, ready, boxes, high, wide,
            0, BLOCK_N, SLOTS, STEPS, BOX_N, BOX_H, BOX_W,
        )),
        (consume_own, (
            y_desc, x_smem, w_smem, y_smem, full, empty, ready, boxes, high, wide,
            1, BLOCK_N, SLOTS, STEPS, BOX_N, BOX_H, BOX_W,
        )),
        (produce_own, (
            x_desc, w_desc, x_smem, w_smem, full, empty, ready, boxes, high, wide, channels,
            0, BLOCK_N, BLOCK_K, SLOTS, STEPS, F, STRIDE, BOX_N, BOX_H, BOX_W,
        )),
        (produce_own, (
            x_desc, w_desc, x_smem, w_smem, full, empty, ready, boxes, high, wide, channels,
            1, BLOCK_N, BLOCK_K, SLOTS, STEPS, F, STRIDE, BOX_N, BOX_H, BOX_W,
        )),
    ], [4, 1, 1], [216, 24, 24])  # fmt: skip


@triton.jit
def sums_kernel(
    sums_ptr, y_ptr, whole, splits, columns, high, wide, batch, out_side, filters,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
):  # fmt: skip
    """Adds the parts of sums: outputs of a box by filters."""
    rest = tl.program_id(0)
    box = (whole + rest // 2) // columns * 2 + rest % 2
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inner = tl.arange(0, BLOCK_N)
    first = (rest // 2 * splits * 2 + rest % 2) * BOX_N * BOX_H * BOX_W
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for part in range(splits):
        acc += tl.load(sums_ptr + (first + part * 2 * BOX_N * BOX_H * BOX_W + row)[:, None] * BLOCK_N + inner[None, :])
    n = box // (wide * high) * BOX_N + row // (BOX_H * BOX_W)
    i = box // wide % high * BOX_H + row // BOX_W % BOX_H
    j = box % wide * BOX_W + row % BOX_W
    col = (whole + rest // 2) % columns * BLOCK_N + inner
    seen = (n < batch) & (i < out_side) & (j < out_side)
    offsets = ((n * out_side + i) * out_side + j)[:, None] * filters + col[None, :]
    tl.store(y_ptr + offsets, acc.to(y_ptr.dtype.element_ty), mask=seen[:, None] & (col < filters)[None, :])


@triton.jit
def add_taps(
    acc, x_ptr, weight_ptr, pixel, pixels, first, col, filters, start, side,
    C: tl.constexpr, F: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Adds BLOCK_K products from the flat index `start` of taps and channels on."""
    inner = start + tl.arange(0, BLOCK_K)
    offsets = inner // (F * C) * side * C + inner % (F * C)
    x_mask = (pixel < pixels)[:, None] & (inner < F * F * C)[None, :]
    x = tl.load(x_ptr + first[:, None] + offsets[None, :], mask=x_mask, other=0.0)
    weight_mask = (col < filters)[None, :] & (inner < F * F * C)[:, None]
    weight = tl.load(weight_ptr + col[None, :] * (F * F * C) + inner[:, None], mask=weight_mask, other=0.0)
    return tl.dot(x, weight, acc)


@triton.jit
def few_channels_kernel(
    x_ptr, weight_ptr, y_ptr, pixels, side, out_side, filters,
    C: tl.constexpr, F: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Pixels by filters; a row of taps is contiguous in x and in weight, all channels of it."""
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n = pixel // (out_side * out_side)
    i = pixel % (out_side * out_side) // out_side
    j = pixel % out_side
    first = ((n * side + i * STRIDE) * side + j * STRIDE) * C
    LENGTH: tl.constexpr = F * F * C
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if LENGTH <= 512:
        for start in tl.static_range(0, LENGTH, BLOCK_K):
            acc = add_taps(acc, x_ptr, weight_ptr, pixel, pixels, first, col, filters, start, side, C, F, BLOCK_K)
    else:
        for start in range(0, LENGTH, BLOCK_K):
            acc = add_taps(acc, x_ptr, weight_ptr, pixel, pixels, first, col, filters, start, side, C, F, BLOCK_K)
    y_mask = (pixel < pixels)[:, None] & (col < filters)[None, :]
    tl.store(y_ptr + pixel.to(tl.int64)[:, None] * filters + col[None, :], acc.to(y_ptr.dtype.element_ty), mask=y_mask)


def box_of(rows, x, out):
    """Pictures, rows and columns of a box of so many outputs.

    Boxes that cover the outputs with little waste: of all pictures at one place, whose windows are few rows of shared
    memory apart; or where x is larger than L2, of few pictures, whose windows overlap while they are there.
    """
    boxes = [(rows // (h * w), h, w) for h in (1, 2, 4, 8) for w in (1, 2, 4, 8)]
    if 2 * x.numel() < LARGE * 1000000:
        return min(boxes, key=lambda box: (count(box, len(x), out), -box[0]))
    most = min(count(box, len(x), out) for box in boxes) * SLACK // 100
    return min((box for box in boxes if count(box, len(x), out) <= most), key=lambda box: (box[0], -box[2]))


def count(box, batch, out):
    return triton.cdiv(batch, box[0]) * triton.cdiv(out, box[1]) * triton.cdiv(out, box[2])


def descriptor(x, block):
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))


@triton.jit
def widen_kernel(x_ptr, y_ptr, side, wide, length, C: tl.constexpr, BLOCK: tl.constexpr):
    """Copies a row of a picture, `side` places long, into one of `wide`; what is beyond stays unwritten."""
    row = tl.program_id(0)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = (row // side * wide + row % side).to(tl.int64) * wide * C
    values = tl.load(x_ptr + row.to(tl.int64) * length + inner, mask=inner < length)
    tl.store(y_ptr + there + inner, values, mask=inner < length)


def depth_of(channels, stride):
    """Channels of a step; 0 where TMA cannot cut windows. Without a stride it fills up channels with zeros."""
    if channels % 8 or channels < 16:
        return 0
    depths = [depth for depth in (64, 32, 16) if channels % depth == 0]
    return depths[0] if depths else 0 if stride > 1 else 32


def run(x, weight, stride):
    batch, side, _, channels = x.shape
    filters, f = weight.shape[:2]
    out = (side - f) // stride + 1
    y = torch.empty((batch, out, out, filters), dtype=x.dtype, device=x.device)
    depth = depth_of(channels, stride) if filters % 8 == 0 else 0
    if depth == 0:
        block_n = min(128, max(16, triton.next_power_of_2(filters)))
        pixels = batch * out * out
        few_channels_kernel[(triton.cdiv(pixels, FEW_M), triton.cdiv(filters, block_n))](
            x, weight, y, pixels, side, out, filters, C=channels, F=f, STRIDE=stride,
            BLOCK_M=FEW_M, BLOCK_N=block_n, BLOCK_K=FEW_K, num_warps=FEW_WARPS,
        )  # fmt: skip
        return y
    if side % stride:
        wide = triton.cdiv(side, stride) * stride
        wider = torch.empty((batch, wide, wide, channels), dtype=x.dtype, device=x.device)
        length = side * channels
        widen_kernel[(batch * side, triton.cdiv(length, 2048))](
            x, wider, side, wide, length, C=channels, BLOCK=2048, num_warps=4
        )
        x, side = wider, wide
    windows = x.view(batch, side // stride, stride, side // stride, stride * channels)
    taps = weight.view(filters, f * f, channels)
    steps = f * f * triton.cdiv(channels, depth)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    if filters <= 64 and steps * depth <= 576:
        box = box_of(128, x, out)
        boxes = count(box, batch, out)
        slots = min(6, (SHARED - 128 * (steps * depth + 256)) // (512 * depth))
        resident_kernel[(min(processors, boxes),)](
            descriptor(windows, [box[0], box[1], 1, box[2], depth]), descriptor(taps, [64, 1, depth]),
            descriptor(y, [*box, 64]), boxes, triton.cdiv(out, box[1]), triton.cdiv(out, box[2]), channels,
            BLOCK_N=64, BLOCK_K=depth, SLOTS=slots, STEPS=steps, F=f, STRIDE=stride,
            BOX_N=box[0], BOX_H=box[1], BOX_W=box[2], num_warps=4,
        )  # fmt: skip
        return y
    best = None
    for rows, block_n, slots, parts, speed in FORMS:
        box = box_of(rows, x, out)
        tiles = triton.cdiv(count(box, batch, out), 2) * triton.cdiv(filters, block_n)
        rest = tiles % processors
        step = rows * block_n * depth / speed + 82000  # 1024 a cycle
        extra = EXTRA_STEPS * 64 / depth
        for splits in range(1, min(34, (steps + 1) // 2) if rest else 2):
            last = triton.cdiv(rest * splits, processors) * (triton.cdiv(steps, splits) + extra)
            cost = (tiles // processors * (steps + extra) + last) * step
            if splits > 1:  # the second launch, and what it reads
                cost += 8e6 + rest * splits * rows * block_n * 3
            if best is None or cost < best[0]:
                best = (cost, rows, block_n, slots, parts, box, tiles, rest if splits > 1 else 0, splits)
    _, rows, block_n, slots, parts, box, tiles, rest, splits = best
    columns, high, wide = triton.cdiv(filters, block_n), triton.cdiv(out, box[1]), triton.cdiv(out, box[2])
    sums = torch.empty((rest * splits, 2 * rows, block_n) if rest else (1,), dtype=torch.float32, device=x.device)
    items = tiles - rest + rest * splits
    windows_kernel[(min(processors, items),)](
        descriptor(windows, [box[0], box[1], 1, box[2], depth]), descriptor(taps, [block_n, 1, depth]),
        descriptor(y, [*box, block_n if parts == 1 else block_n // 2]),
        sums, items, tiles - rest, steps, columns, high, wide, channels,
        BLOCK_N=block_n, BLOCK_K=depth, SLOTS=slots * 64 // depth, PARTS=parts, SPLITS=splits, F=f, STRIDE=stride,
        BOX_N=box[0], BOX_H=box[1], BOX_W=box[2], num_warps=4,
    )  # fmt: skip
    if rest:
        sums_kernel[(rest * 2, rows // SUM_ROWS)](
            sums, y, tiles - rest, splits, columns, high, wide, batch, out, filters,
            BLOCK_N=block_n, BLOCK_M=SUM_ROWS, BOX_N=box[0], BOX_H=box[1], BOX_W=box[2], num_warps=4,
        )  # fmt: skip
    return y
