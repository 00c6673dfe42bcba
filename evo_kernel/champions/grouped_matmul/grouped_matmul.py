"""Grouped matrix product (mixture of experts), bfloat16: persistent, warp-specialised, in Gluon (sm_90).

Bred on an H200 by an external agent (2026-11-28), from the template of products. `lineage.json` has all versions,
`grouped_matmul.db.xz` is the population. Confirmed on hidden cases by judge 23: 1.14 (0.96 to 1.42) of PyTorch's
`grouped_mm`, the only baseline.

Mechanism
---------
One program a multiprocessor. One warp loads 128 tokens and 256 columns of weights by TMA, 64 deep, into a ring of
three; two warp groups of 64 rows multiply. k and n must be multiples of 8.

* The host, which knows the offsets, lists groups of at most 16 tiles of rows that end with their expert (first tile,
  expert, first row, tiles, end of the rows); the kernel goes through that list as it takes tiles. Tiles of a group
  share columns of weights, which are read from device memory once. Groups that ignored experts: 2 and 5 % slower.
* A warp group whose 64 rows lie beyond its expert's end neither loads nor multiplies: with 64 experts and 8192 tokens,
  many tiles of 128 rows are half empty.
* Full tiles are stored by TMA, in halves with a buffer each; the last rows of an expert by masked stores, since the
  next rows are another's. Weights have three dimensions, so that k's end is zeros and not the next expert's first rows.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 23, 2026-11-28; hidden cases are marked. tokens x experts x n x k:

| case | us | TFLOP/s | grouped_mm us | |
| --- | --- | --- | --- | --- |
| 16384 x 8 x 14336 x 4096 | 2557.0 | 753 | 2601.9 | 1.02x |
| 8192 x 64 x 2816 x 2048 | 228.2 | 414 | 329.5 | 1.44x |
| 32768 x 128 x 1536 x 4096, hidden | 728.9 | 566 | 800.2 | 1.10x |
| 16383 x 8 x 4096 x 14336, hidden | 2652.4 | 725 | 2546.5 | 0.96x |
| 512 x 64 x 2048 x 1408, hidden | 103.5 | 29 | 147.1 | 1.42x |

Dead ends
---------
* Four slots with one buffer for results: 4 % slower with 8 experts, 2 % faster with 64.
* Tiles of 128 columns: 13 and 6 % slower; groups of 8, 24 or 32 tiles: 1 %.
* The second warp group one to three steps behind the first, to overlap what follows products: no gain.
* 16383 x 8 x 4096 x 14336 stays 4 % behind grouped_mm, for an unknown reason.
"""

import torch
import triton
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

BLOCK_N = 256
BLOCK_K = 64
SLOTS = 3
OUTS = 2
GROUP_M = 16
ROWS = gl.constexpr(64)  # of a warp group


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    """The slot after `slot`, and the parity of its barriers."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def place(tile, group, groups_ptr):
    """Group, expert, first row, the end of the expert's rows, and column of a tile; groups are passed in order."""
    while tile >= gl.load(groups_ptr + (group + 1) * 5):
        group += 1
    entry = groups_ptr + group * 5
    inner = tile - gl.load(entry)
    tall = gl.load(entry + 3)
    return group, gl.load(entry + 1), gl.load(entry + 2) + inner % tall * (2 * ROWS), gl.load(entry + 4), inner // tall


@gluon.jit
def produce(
    x_desc, w_desc, groups_ptr, x_smem, w_smem, full, empty, tiles, steps,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    """One warp: loads tiles of tokens and of weights into the ring; tokens only for groups that have rows."""
    slot = 0
    phase = 0
    group = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        group, expert, row, end, col = place(tile, group, groups_ptr)
        second = row + ROWS < end
        for j in range(steps):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), (2 * ROWS + BLOCK_N) * BLOCK_K * 2, pred=second)
            mbarrier.expect(full.index(slot), (ROWS + BLOCK_N) * BLOCK_K * 2, pred=second == 0)
            load_tile(x_desc, [row, j * BLOCK_K], full.index(slot), x_smem.index(slot * 2))
            load_tile(x_desc, [row + ROWS, j * BLOCK_K], full.index(slot), x_smem.index(slot * 2 + 1), pred=second)
            load_tile(
                w_desc, [expert, j * BLOCK_K, col * BLOCK_N], full.index(slot),
                w_smem.index(slot).reshape([1, BLOCK_K, BLOCK_N]),
            )  # fmt: skip
            slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def finish(
    acc, y_desc, y_ptr, y_smem, row, end, col, n, OUTS: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """Stores a part of the result: by TMA where all rows are the expert's, else those that are."""
    if row + ROWS <= end:
        tma.store_wait(OUTS - 1)
        y_smem.store(acc.to(y_desc.dtype))
        fence_async_shared()
        store_tile(y_desc, [row, col], y_smem)
    else:
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        cols = col + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
        offsets = rows.to(gl.int64)[:, None] * n + cols[None, :]
        gl.store(y_ptr + offsets, acc.to(y_desc.dtype), mask=(rows < end)[:, None] & (cols < n)[None, :])


@gluon.jit
def consume(
    y_desc, y_ptr, groups_ptr, x_smem, w_smem, y_smem, full, empty, tiles, steps, n,
    G: gl.constexpr, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr, OUTS: gl.constexpr,
):  # fmt: skip
    """Warp group G: 64 rows of each tile. One product is in flight while the next one's tiles are awaited."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // 2, 16])
    slot = 0
    phase = 0
    group = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        group, _, row, end, col = place(tile, group, groups_ptr)
        first_row = row + G * ROWS
        if first_row < end:
            acc = gl.zeros([ROWS, BLOCK_N], gl.float32, MMA)
            before = slot + 0
            for j in range(steps):
                mbarrier.wait(full.index(slot), phase)
                acc = warpgroup_mma(x_smem.index(slot * 2 + G), w_smem.index(slot), acc, is_async=True)
                acc = warpgroup_mma_wait(1, deps=[acc])
                mbarrier.arrive(empty.index(before), count=1, pred=j > 0)
                before = slot + 0
                slot, phase = following(slot, phase, SLOTS)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(before), count=1)
            first_col = col * BLOCK_N
            out = y_smem.index(G * OUTS)
            left, right = gl.split(acc.reshape([ROWS, 2, BLOCK_N // 2]).permute((0, 2, 1)))
            left, right = gl.convert_layout(left, HALF), gl.convert_layout(right, HALF)
            finish(left, y_desc, y_ptr, out, first_row, end, first_col, n, OUTS, BLOCK_N // 2, HALF)
            out = y_smem.index(G * OUTS + OUTS - 1)
            finish(right, y_desc, y_ptr, out, first_row, end, first_col + BLOCK_N // 2, n, OUTS, BLOCK_N // 2, HALF)
        else:
            for _ in range(steps):
                mbarrier.wait(full.index(slot), phase)
                mbarrier.arrive(empty.index(slot), count=1)
                slot, phase = following(slot, phase, SLOTS)
    tma.store_wait(0)


@gluon.jit
def grouped_kernel(
    x_desc, w_desc, y_desc, y_ptr, groups_ptr, tiles, steps, n,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, OUTS: gl.constexpr,
):  # fmt: skip
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_K, BLOCK_N], w_desc.dtype)
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [SLOTS * 2, ROWS, BLOCK_K], x_desc.layout)
    w_smem = gl.allocate_shared_memory(w_desc.dtype, [SLOTS, BLOCK_K, BLOCK_N], WIDE)
    y_smem = gl.allocate_shared_memory(y_desc.dtype, [2 * OUTS, ROWS, BLOCK_N // 2], y_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (
            y_desc, y_ptr, groups_ptr, x_smem, w_smem, y_smem, full, empty, tiles, steps, n,
            0, BLOCK_N, SLOTS, OUTS,
        )),
        (consume, (
            y_desc, y_ptr, groups_ptr, x_smem, w_smem, y_smem, full, empty, tiles, steps, n,
            1, BLOCK_N, SLOTS, OUTS,
        )),
        (produce, (
            x_desc, w_desc, groups_ptr, x_smem, w_smem, full, empty, tiles, steps,
            BLOCK_N, BLOCK_K, SLOTS,
        )),
    ], [4, 1], [232, 24])  # fmt: skip


def run(x, weights, offsets):
    k, n = weights.shape[1:]
    if k % 8 or n % 8:
        raise ValueError("k and n must be multiples of 8: tensor descriptors take rows that begin at 16 bytes")
    y = torch.empty((len(x), n), dtype=x.dtype, device=x.device)
    starts = offsets.tolist()
    columns = triton.cdiv(n, BLOCK_N)
    groups, tiles = [], 0
    for expert in range(len(starts) - 1):
        first, end = starts[expert], starts[expert + 1]
        rows = triton.cdiv(end - first, 128)
        parts = triton.cdiv(rows, GROUP_M)
        for part in range(parts):
            begin, stop = rows * part // parts, rows * (part + 1) // parts
            groups += [tiles, expert, first + begin * 128, stop - begin, end]
            tiles += (stop - begin) * columns
    table = torch.tensor([*groups, tiles], dtype=torch.int32, device=x.device)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    flat = gl.NVMMASharedLayout.get_default_for([64, BLOCK_K], gl.bfloat16)
    deep = gl.NVMMASharedLayout.get_default_for([1, BLOCK_K, BLOCK_N], gl.bfloat16)
    out = gl.NVMMASharedLayout.get_default_for([64, BLOCK_N // 2], gl.bfloat16)
    grouped_kernel[(min(processors, tiles),)](
        TensorDescriptor.from_tensor(x, [64, BLOCK_K], flat),
        TensorDescriptor.from_tensor(weights, [1, BLOCK_K, BLOCK_N], deep),
        TensorDescriptor.from_tensor(y, [64, BLOCK_N // 2], out),
        y, table, tiles, triton.cdiv(k, BLOCK_K), n,
        BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, SLOTS=SLOTS, OUTS=OUTS, num_warps=4,
    )  # fmt: skip
    return y
