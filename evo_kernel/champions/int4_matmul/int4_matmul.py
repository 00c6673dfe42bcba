"""Matrix product of bfloat16 activations and 4-bit weights with scales by groups of rows, in Gluon (sm_90).

For contiguous inputs: x (m, k) bfloat16, packed (k / 2, n) uint8, scales (k / group, n) bfloat16, y (m, n) bfloat16.

Bred on an H200 by an external agent (2026-11-29): `lineage.json` has the versions, `int4_matmul.db.xz` is the
population.
Confirmed on hidden cases by judge 30: 2.72 of the fastest baseline (1.29 to 4.16).

Mechanism
---------
y^T = w^T x^T: the weights are the left operand of wgmma, which may come from registers, so that unpacked weights are
never written anywhere. Tokens are the right operand, as TMA brings them.

* `packed` is read as int16: two columns of two rows of w. A pair of rows of one column is just one register of wgmma's
  left operand, once each four bits are made bfloat16. 8 weights take a shift, 4 byte permutations, 4 masks that add
  the exponent of 128, 4 subtractions of 136 and 4 products with scales; loads are transposed (ldmatrix).
* A thread has rows r and r + 8 of the operand. They are made neighbouring columns of w: the operand's rows are in
  another order, which is undone by names alone when y is stored.
* More than 64 tokens, `wide_kernel`: one warp loads, two warp groups have 64 columns each of tiles of 128, 192 or 256
  tokens. The next weights are unpacked while a product is in flight, into registers of their own, and the product
  before is awaited once the next one is issued. UNROLL steps are written out, for weights carried from one step of a
  loop to the next one get the same registers. 192 tokens are two products, with 128 and 64 of them.
* The host estimates rounds of multiprocessors for each width, and for tiles of 128 tokens in up to 8 parts of k.
* Up to 64 tokens, `skinny_kernel`: 2 or 4 warp groups share a tile of 64 columns by k, each with a ring of its own, and
  add up through shared memory. Stored weights less 8 are multiplied, which is exact, and sums are scaled. With few
  columns, programs share k too, and a second kernel adds.
* Where rows of `packed` do not begin at multiples of 16 bytes, or groups are not multiples of 64: a plain kernel.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 30, 2026-11-29; hidden cases are marked. m x n x k:

| case | us | fastest baseline us | |
| --- | --- | --- | --- |
| 1 x 14336 x 4096, groups of 128 | 19.2 | 82.5 torch.compile | 4.29x |
| 16 x 8192 x 8192, groups of 128 | 19.9 | 94.4 torch.compile | 4.75x |
| 2048 x 4096 x 4096, groups of 128 | 90.4 | 103.1 torch.compile | 1.14x |
| 4 x 4096 x 14336, groups of 128, hidden | 20.4 | 84.8 torch.compile | 4.16x |
| 64 x 28672 x 8192, groups of 128, hidden | 77.0 | 288.6 torch.compile | 3.75x |
| 513 x 5120 x 5120, groups of 64, hidden | 48.0 | 61.8 torch.compile | 1.29x |

Dead ends
---------
* Tokens' blocks asked for in another order by each program (skinny): 3 % slower at 1 token, 6 % at 16.
* Tiles of 128 tokens at 2048 tokens: 114 us, for 92. Tiles of 256 at 513: 70 us, of which a third is for no token.
* 2 warp groups, not 4, at 16 tokens: 4 % slower. One program of 4 groups at 1 token, not two of 2: 1 %.
* 136 taken away by a second product with a constant operand: 32 moves a step, and wgmma is serialised.
* Weights of the next step carried by a loop: LLVM gives both the same registers; with waits on both, ptxas serialises
  (C7513), and with products that stay in flight to the next iteration, too (C7512).
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

SLOTS = 4  # of the ring, and
OUTS = 2  # buffers of a warp group for results, with tiles of 256 tokens
UNROLL = 4  # steps of 64 k; in each but the last one, weights are unpacked while products are in flight
GROUP_M = 8
STEP_US = {256: 0.70, 192: 0.57, 128: 0.44}  # of a step, by tokens of a tile

# Two elements of int16, which hold two columns' pairs of rows each, to pairs of bfloat16: 128 + stored, less 136.
NIBBLES = """{
.reg .b32 high, a, b, c, d, e;
shr.u32 high, $4, 4;
prmt.b32 a, $4, high, 0x0400;
prmt.b32 b, $4, high, 0x0602;
prmt.b32 c, $4, high, 0x0501;
prmt.b32 d, $4, high, 0x0703;
lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA;
lop3.b32 b, b, 0x000F000F, 0x43004300, 0xEA;
lop3.b32 c, c, 0x000F000F, 0x43004300, 0xEA;
lop3.b32 d, d, 0x000F000F, 0x43004300, 0xEA;
mov.b32 e, 0x43084308;
sub.rn.bf16x2 a, a, e;
sub.rn.bf16x2 b, b, e;
sub.rn.bf16x2 c, c, e;
sub.rn.bf16x2 d, d, e;
"""
LESS = gl.constexpr(NIBBLES + "mov.b32 $0, a; mov.b32 $1, b; mov.b32 $2, c; mov.b32 $3, d; }")
SCALE = "mul.rn.bf16x2 $0, a, $5; mul.rn.bf16x2 $1, b, $6; mul.rn.bf16x2 $2, c, $7; mul.rn.bf16x2 $3, d, $8; }"
SCALED = gl.constexpr(NIBBLES + SCALE)


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    """The slot after `slot`, and the parity of its barriers."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def place(tile, row_tiles, col_tiles, GROUP_M: gl.constexpr):
    """Row and column of a tile: GROUP_M rows of tiles at a time, column by column."""
    group = tile // (GROUP_M * col_tiles)
    inner = tile - group * (GROUP_M * col_tiles)
    wide = gl.minimum(row_tiles - group * GROUP_M, GROUP_M)
    return group * GROUP_M + inner % wide, inner // wide


@gluon.jit
def weights(w_smem, s_smem, BLOCK_K: gl.constexpr):
    """Weights of 64 columns, pairs of rows: (BLOCK_K / 2, 32, 2) int32.

    w_smem (BLOCK_K / 2, 32) int16: two columns an element; s_smem (64,): scales. A thread's rows r and r + 8 of an
    operand are neighbouring columns of the weights, so rows are in the order of the bits (warp, half, lane).
    """
    PAIRS: gl.constexpr = gl.DistributedLinearLayout(
        [[4, 0], [8, 0], [16, 0], [32, 0]] if BLOCK_K == 128 else [[4, 0], [8, 0], [16, 0]],
        [[1, 0], [2, 0], [0, 1], [0, 2], [0, 4]], [[0, 8], [0, 16]], [], [BLOCK_K // 2, 32],
    )  # fmt: skip
    SCALES: gl.constexpr = gl.DistributedLinearLayout(
        [[1]], [[0], [0], [2], [4], [8]], [[16], [32]], [], [64]
    )  # fmt: skip
    packed = w_smem.load(PAIRS)
    s = s_smem.load(SCALES).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    s = s | (s << 16)
    s0, s1 = gl.split(s.reshape([32, 2]))
    s0 = gl.convert_layout(s0, gl.SliceLayout(0, PAIRS))[None, :]
    s1 = gl.convert_layout(s1, gl.SliceLayout(0, PAIRS))[None, :]
    s0, packed = gl.broadcast(s0, packed)
    s1, packed = gl.broadcast(s1, packed)
    even, odd = gl.inline_asm_elementwise(
        SCALED, "=r,=r,=r,=r,r,r,r,r,r", [packed, s0, s1], dtype=(gl.int32, gl.int32), is_pure=True, pack=2
    )
    return gl.join(even, odd)


@gluon.jit
def integers(w_smem, BLOCK_K: gl.constexpr):
    """As `weights`, but not scaled."""
    PAIRS: gl.constexpr = gl.DistributedLinearLayout(
        [[4, 0], [8, 0], [16, 0], [32, 0]] if BLOCK_K == 128 else [[4, 0], [8, 0], [16, 0]],
        [[1, 0], [2, 0], [0, 1], [0, 2], [0, 4]], [[0, 8], [0, 16]], [], [BLOCK_K // 2, 32],
    )  # fmt: skip
    packed = w_smem.load(PAIRS)
    even, odd = gl.inline_asm_elementwise(
        LESS, "=r,=r,=r,=r,r", [packed], dtype=(gl.int32, gl.int32), is_pure=True, pack=2
    )
    return gl.join(even, odd)


@gluon.jit
def operand(pairs, MMA: gl.constexpr, BLOCK_K: gl.constexpr):
    """The same as wgmma's left operand (64, BLOCK_K)."""
    low = pairs.to(gl.int16).to(gl.bfloat16, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
    tile = gl.join(low, high).reshape([BLOCK_K // 2, 4, 8, 2, 2]).permute((1, 3, 2, 0, 4)).reshape([64, BLOCK_K])
    return gl.convert_layout(tile, gl.DotOperandLayout(0, MMA, 2), assert_trivial=True)


@gluon.jit
def produce(
    x_desc, more_desc, w_desc, s_desc, x_smem, more_smem, w_smem, s_smem, full, empty,
    row_tiles, col_tiles, steps, per_scale,
    BLOCK_M: gl.constexpr, MORE: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, GROUP_M: gl.constexpr,
    UNROLL: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """One warp: loads tokens (BLOCK_M and MORE, BLOCK_K), packed weights of 128 columns, and their scales."""
    slot = 0
    phase = 0
    for item in range(gl.program_id(0), row_tiles * col_tiles * PARTS, gl.num_programs(0)):
        row, col = place(item // PARTS, row_tiles, col_tiles, GROUP_M)
        row *= BLOCK_M + MORE
        first = item % PARTS * (UNROLL * steps)
        for j in range(first, first + UNROLL * steps):
            barrier = full.index(slot)
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(barrier, (BLOCK_M + MORE) * BLOCK_K * 2 + 64 * BLOCK_K + 256)
            for g in gl.static_range(2):
                load_tile(w_desc, [j * (BLOCK_K // 2), col * 64 + g * 32], barrier, w_smem.index(slot * 2 + g))
                load_tile(
                    s_desc, [j // per_scale, col * 128 + g * 64], barrier, s_smem.index(slot * 2 + g).reshape([1, 64])
                )
            load_tile(x_desc, [row, j * BLOCK_K], barrier, x_smem.index(slot))
            if MORE:
                load_tile(more_desc, [row + BLOCK_M, j * BLOCK_K], barrier, more_smem.index(slot))
            slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def straight(acc, WIDTH: gl.constexpr):
    """From operand rows to columns of y: (64, WIDTH) to (WIDTH, 64)."""
    return acc.reshape([4, 2, 8, WIDTH]).permute((3, 0, 2, 1)).reshape([WIDTH, 64])


@gluon.jit
def finish(acc, y_desc, y_smem, row, col, OUTS: gl.constexpr, WIDTH: gl.constexpr):
    tma.store_wait(OUTS - 1)
    y_smem.store(straight(acc.to(y_desc.dtype), WIDTH))
    fence_async_shared()
    store_tile(y_desc, [row, col], y_smem)


@gluon.jit
def store_sums(acc, out_ptr, part, row, col, m, n, WIDTH: gl.constexpr):
    """Stores a tile (64, WIDTH) of a part of the sums, which is (m, n)."""
    out = straight(acc, WIDTH)
    LAYOUT: gl.constexpr = out.type.layout
    rows = row + gl.arange(0, WIDTH, gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    offsets = (part * m + rows)[:, None] * n + cols[None, :]
    gl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (cols < n)[None, :])


@gluon.jit
def multiply(
    w, x_smem, more_smem, slot, acc, more,
    MMA: gl.constexpr, REST: gl.constexpr, BLOCK_K: gl.constexpr, MORE: gl.constexpr,
):  # fmt: skip
    """Issues the products of a step: with BLOCK_M tokens, and with MORE."""
    acc = warpgroup_mma(operand(w, MMA, BLOCK_K), x_smem.index(slot).permute((1, 0)), acc, is_async=True)
    if MORE:
        x = more_smem.index(slot).permute((1, 0))
        more = warpgroup_mma(operand(w, REST, BLOCK_K), x, more, is_async=True)
    return acc, more


@gluon.jit
def consume(
    y_desc, rest_desc, out_ptr, x_smem, more_smem, w_smem, s_smem, y_smem, full, empty,
    row_tiles, col_tiles, steps, m, n,
    G: gl.constexpr, BLOCK_M: gl.constexpr, MORE: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr,
    GROUP_M: gl.constexpr, UNROLL: gl.constexpr, OUTS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Warp group G: 64 columns of each tile. The next weights are unpacked while products are in flight."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE or 8, 16])
    slot = 0
    phase = 0
    for item in range(gl.program_id(0), row_tiles * col_tiles * PARTS, gl.num_programs(0)):
        row, col = place(item // PARTS, row_tiles, col_tiles, GROUP_M)
        row *= BLOCK_M + MORE
        acc = gl.zeros([64, BLOCK_M], gl.float32, MMA)
        more = gl.zeros([64, MORE or 8], gl.float32, REST)
        for j in range(steps):
            mbarrier.wait(full.index(slot), phase)
            w = weights(w_smem.index(slot * 2 + G), s_smem.index(slot * 2 + G), BLOCK_K)
            acc, more = multiply(w, x_smem, more_smem, slot, acc, more, MMA, REST, BLOCK_K, MORE)
            for u in gl.static_range(UNROLL - 1):
                before = slot + 0
                slot, phase = following(slot, phase, SLOTS)
                mbarrier.wait(full.index(slot), phase)
                later = weights(w_smem.index(slot * 2 + G), s_smem.index(slot * 2 + G), BLOCK_K)
                acc, more = multiply(later, x_smem, more_smem, slot, acc, more, MMA, REST, BLOCK_K, MORE)
                if MORE:
                    acc, more, w = warpgroup_mma_wait(2, deps=[acc, more, w])
                else:
                    acc, w = warpgroup_mma_wait(1, deps=[acc, w])
                mbarrier.arrive(empty.index(before), count=1)
                w = later
            if MORE:
                acc, more = warpgroup_mma_wait(0, deps=[acc, more])
            else:
                acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(slot), count=1)
            slot, phase = following(slot, phase, SLOTS)
        out_col = col * 128 + G * 64
        out = y_smem.index(G * OUTS)
        if PARTS > 1:
            store_sums(acc, out_ptr, item % PARTS, row, out_col, m, n, BLOCK_M)
        elif BLOCK_M == 256:
            left, right = gl.split(acc.reshape([64, 2, BLOCK_M // 2]).permute((0, 2, 1)))
            finish(left, y_desc, out, row, out_col, OUTS, BLOCK_M // 2)
            out = y_smem.index(G * OUTS + OUTS - 1)
            finish(right, y_desc, out, row + BLOCK_M // 2, out_col, OUTS, BLOCK_M // 2)
        else:
            finish(acc, y_desc, out, row, out_col, 1, BLOCK_M)
            if MORE:
                finish(more, rest_desc, out.slice(0, MORE, dim=0), row + BLOCK_M, out_col, 1, MORE)
    tma.store_wait(0)


@gluon.jit
def wide_kernel(
    x_desc, more_desc, w_desc, s_desc, y_desc, rest_desc, out_ptr, row_tiles, col_tiles, steps, per_scale, m, n,
    BLOCK_M: gl.constexpr, MORE: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, GROUP_M: gl.constexpr,
    OUTS: gl.constexpr, UNROLL: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    PART: gl.constexpr = BLOCK_M // 2 if BLOCK_M == 256 else BLOCK_M
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_K], gl.bfloat16)
    W: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_K // 2, 32], gl.int16)
    Y: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PART, 64], gl.bfloat16)
    S: gl.constexpr = gl.NVMMASharedLayout(0, 16, 1)
    x_smem = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, BLOCK_M, BLOCK_K], X)
    more_smem = x_smem
    if MORE:
        more_smem = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, MORE, BLOCK_K], X)
    y_smem = gl.allocate_shared_memory(gl.bfloat16, [2 * OUTS, PART, 64], Y)
    w_smem = gl.allocate_shared_memory(gl.int16, [SLOTS * 2, BLOCK_K // 2, 32], W)
    s_smem = gl.allocate_shared_memory(gl.bfloat16, [SLOTS * 2, 64], S)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (
            y_desc, rest_desc, out_ptr, x_smem, more_smem, w_smem, s_smem, y_smem, full, empty,
            row_tiles, col_tiles, steps, m, n,
            0, BLOCK_M, MORE, BLOCK_K, SLOTS, GROUP_M, UNROLL, OUTS, PARTS,
        )),
        (consume, (
            y_desc, rest_desc, out_ptr, x_smem, more_smem, w_smem, s_smem, y_smem, full, empty,
            row_tiles, col_tiles, steps, m, n,
            1, BLOCK_M, MORE, BLOCK_K, SLOTS, GROUP_M, UNROLL, OUTS, PARTS,
        )),
        (produce, (
            x_desc, more_desc, w_desc, s_desc, x_smem, more_smem, w_smem, s_smem, full, empty,
            row_tiles, col_tiles, steps, per_scale, BLOCK_M, MORE, BLOCK_K, SLOTS, GROUP_M, UNROLL, PARTS,
        )),
    ], [4, 1], [232, 24])  # fmt: skip


@gluon.jit
def skinny_produce(
    x_desc, w_desc, s_desc, x_smem, w_smem, s_smem, full, empty, items, steps, per_scale,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, KSPLIT: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """One warp: loads a block of k for each group a step."""
    slot = 0
    phase = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        col = item // PARTS
        block = item % PARTS * (steps * KSPLIT)
        for _ in range(steps):
            for g in gl.static_range(KSPLIT):
                at = slot * KSPLIT + g
                barrier = full.index(at)
                mbarrier.wait(empty.index(at), phase ^ 1)
                mbarrier.expect(barrier, BLOCK_M * BLOCK_K * 2 + 32 * BLOCK_K + 128)
                load_tile(w_desc, [block * (BLOCK_K // 2), col * 32], barrier, w_smem.index(at))
                load_tile(x_desc, [0, block * BLOCK_K], barrier, x_smem.index(at))
                load_tile(s_desc, [block // per_scale, col * 64], barrier, s_smem.index(at).reshape([1, 64]))
                block += 1
            slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def skinny_consume(
    out_ptr, x_smem, w_smem, s_smem, sums, full, empty, done, free, items, steps, m, n,
    G: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, KSPLIT: gl.constexpr,
    PARTS: gl.constexpr,
):  # fmt: skip
    """Warp group G: every KSPLIT-th block of k of each tile; group 0 adds them up. Sums are scaled, not weights."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    SCALES: gl.constexpr = gl.DistributedLinearLayout(
        [[1]], [[0], [0], [2], [4], [8]], [[16], [32]], [], [64]
    )  # fmt: skip
    slot = 0
    phase = 0
    round = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        acc = gl.zeros([64, BLOCK_M], gl.float32, MMA)
        for j in range(steps):
            at = slot * KSPLIT + G
            mbarrier.wait(full.index(at), phase)
            s = s_smem.index(at).load(SCALES).to(gl.float32).reshape([4, 8, 2]).permute((0, 2, 1)).reshape([64])
            s = gl.convert_layout(s, gl.SliceLayout(1, MMA))
            x = x_smem.index(at).permute((1, 0))
            part = gl.zeros([64, BLOCK_M], gl.float32, MMA)
            w = integers(w_smem.index(at), BLOCK_K)
            part = warpgroup_mma(operand(w, MMA, BLOCK_K), x, part, use_acc=False, is_async=True)
            part = warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(empty.index(at), count=1)
            acc += part * s[:, None]
            slot, phase = following(slot, phase, SLOTS)
        if G > 0:
            mbarrier.wait(free, round ^ 1)
            sums.index(G - 1).store(acc)
            mbarrier.arrive(done, count=1)
        else:
            mbarrier.wait(done, round)
            for g in gl.static_range(KSPLIT - 1):
                acc += sums.index(g).load(MMA)
            mbarrier.arrive(free, count=1)
            store_sums(acc, out_ptr, item % PARTS, 0, item // PARTS * 64, m, n, BLOCK_M)
        round = round ^ 1


@gluon.jit
def skinny_kernel(
    x_desc, w_desc, s_desc, out_ptr, items, steps, per_scale, m, n,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, SLOTS: gl.constexpr, KSPLIT: gl.constexpr, PARTS: gl.constexpr,
    REGS: gl.constexpr,
):  # fmt: skip
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_K], gl.bfloat16)
    W: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_K // 2, 32], gl.int16)
    S: gl.constexpr = gl.NVMMASharedLayout(0, 16, 1)
    SUMS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    x_smem = gl.allocate_shared_memory(gl.bfloat16, [SLOTS * KSPLIT, BLOCK_M, BLOCK_K], X)
    w_smem = gl.allocate_shared_memory(gl.int16, [SLOTS * KSPLIT, BLOCK_K // 2, 32], W)
    s_smem = gl.allocate_shared_memory(gl.bfloat16, [SLOTS * KSPLIT, 64], S)
    sums = gl.allocate_shared_memory(gl.float32, [KSPLIT - 1, 64, BLOCK_M], SUMS)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS * KSPLIT, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS * KSPLIT, 1], barriers)
    done = gl.allocate_shared_memory(gl.int64, [1], barriers)
    free = gl.allocate_shared_memory(gl.int64, [1], barriers)
    for i in gl.static_range(SLOTS * KSPLIT):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(done, count=KSPLIT - 1)
    mbarrier.init(free, count=1)
    fence_async_shared()
    if KSPLIT == 4:
        gl.warp_specialize([
            (skinny_consume, (
                out_ptr, x_smem, w_smem, s_smem, sums, full, empty, done, free, items, steps, m, n,
                0, BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
            (skinny_consume, (
                out_ptr, x_smem, w_smem, s_smem, sums, full, empty, done, free, items, steps, m, n,
                1, BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
            (skinny_consume, (
                out_ptr, x_smem, w_smem, s_smem, sums, full, empty, done, free, items, steps, m, n,
                2, BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
            (skinny_consume, (
                out_ptr, x_smem, w_smem, s_smem, sums, full, empty, done, free, items, steps, m, n,
                3, BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
            (skinny_produce, (
                x_desc, w_desc, s_desc, x_smem, w_smem, s_smem, full, empty, items, steps, per_scale,
                BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
        ], [4, 4, 4, 1], [REGS, REGS, REGS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (skinny_consume, (
                out_ptr, x_smem, w_smem, s_smem, sums, full, empty, done, free, items, steps, m, n,
                0, BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
            (skinny_consume, (
                out_ptr, x_smem, w_smem, s_smem, sums, full, empty, done, free, items, steps, m, n,
                1, BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
            (skinny_produce, (
                x_desc, w_desc, s_desc, x_smem, w_smem, s_smem, full, empty, items, steps, per_scale,
                BLOCK_M, BLOCK_K, SLOTS, KSPLIT, PARTS,
            )),
        ], [4, 1], [REGS, 24])  # fmt: skip


@triton.jit
def sums_kernel(sums_ptr, y_ptr, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the parts of sums."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(sums_ptr + part * size + at, mask=at < size, other=0.0)
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=at < size)


@triton.jit
def plain_kernel(
    x_ptr, packed_ptr, scales_ptr, y_ptr, m, n, k, group,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Any sizes."""
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x_mask = (rows[:, None] < m) & (inner[None, :] < k)
        x = tl.load(x_ptr + rows[:, None] * k + inner[None, :], mask=x_mask, other=0.0)
        mask = (inner[:, None] < k) & (cols[None, :] < n)
        packed = tl.load(packed_ptr + (inner // 2)[:, None] * n + cols[None, :], mask=mask, other=0).to(tl.int32)
        scales = tl.load(scales_ptr + (inner // group)[:, None] * n + cols[None, :], mask=mask, other=0.0)
        stored = (packed >> ((inner % 2) * 4)[:, None]) & 15
        weight = (stored - 8).to(tl.float32) * scales.to(tl.float32)
        acc = tl.dot(x, weight.to(x.dtype), acc)
    y_mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(y_ptr + rows[:, None] * n + cols[None, :], acc.to(y_ptr.dtype.element_ty), mask=y_mask)


def descriptor(x, block, dtype):
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


def run(x, packed, scales):
    m, k = x.shape
    n = packed.shape[1]
    group = k // scales.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if n % 16 or group % 64:  # tensor descriptors take rows that begin at multiples of 16 bytes
        plain_kernel[(triton.cdiv(n, 64), triton.cdiv(m, 32))](
            x, packed, scales, y, m, n, k, group, BLOCK_M=32, BLOCK_N=64, BLOCK_K=32, num_warps=4
        )
        return y
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    pairs = packed.view(torch.int16)
    if m <= 64:
        block_m = max(16, triton.next_power_of_2(m))
        block_k = 128 if group % 128 == 0 else 64
        columns = triton.cdiv(n, 64)
        parts = max(1, min(4, processors // columns))
        ksplit, per_sm = (2, 1) if block_m == 64 else (2, 2) if columns > processors else (4, 1)
        slot = ksplit * ((2 * block_m + 32) * block_k + 128)
        slots = max(2, min(16, (190 * 1024 // per_sm - (ksplit - 1) * block_m * 256) // slot))
        out = y if parts == 1 else torch.empty((parts, m, n), dtype=torch.float32, device=x.device)
        steps = triton.cdiv(k, block_k * ksplit * parts)
        items = columns * parts
        skinny_kernel[(min(processors * per_sm, items),)](
            descriptor(x, [block_m, block_k], gl.bfloat16), descriptor(pairs, [block_k // 2, 32], gl.int16),
            descriptor(scales, [1, 64], gl.bfloat16), out, items, steps, group // block_k, m, n,
            BLOCK_M=block_m, BLOCK_K=block_k, SLOTS=slots, KSPLIT=ksplit, PARTS=parts,
           
            REGS=104 if ksplit == 4 else 96 if per_sm > 1 else 216, num_warps=4,
            **({"maxnreg": 80} if per_sm > 1 else {}),
        )  # fmt: skip
        if parts > 1:
            sums_kernel[(triton.cdiv(m * n, 1024),)](out, y, m * n, PARTS=parts, BLOCK=1024, num_warps=4)
        return y
    col_tiles = triton.cdiv(n, 128)

    def estimate(form):  # us
        wide, parts = form
        rounds = triton.cdiv(triton.cdiv(m, wide) * col_tiles * parts, processors)
        sums = 3 + m * n * parts * 2e-6 if parts > 1 else 0
        return rounds * (triton.cdiv(k, 64 * UNROLL * parts) * UNROLL * STEP_US[wide] + 3) + sums

    wide, parts = min([(256, 1), (192, 1), *((128, parts) for parts in (1, 2, 3, 4, 6, 8))], key=estimate)
    block_m, more = (128, 64) if wide == 192 else (wide, 0)
    row_tiles, part = triton.cdiv(m, wide), min(block_m, 128)
    out = y if parts == 1 else torch.empty((parts, m, n), dtype=torch.float32, device=x.device)
    wide_kernel[(min(processors, row_tiles * col_tiles * parts),)](
        descriptor(x, [block_m, 64], gl.bfloat16), descriptor(x, [64, 64], gl.bfloat16),
        descriptor(pairs, [32, 32], gl.int16), descriptor(scales, [1, 64], gl.bfloat16),
        descriptor(y, [part, 64], gl.bfloat16), descriptor(y, [64, 64], gl.bfloat16), out,
        row_tiles, col_tiles, triton.cdiv(k, 64 * UNROLL * parts), group // 64, m, n,
        BLOCK_M=block_m, MORE=more, BLOCK_K=64, SLOTS={256: SLOTS, 192: 6, 128: 8}[wide], GROUP_M=GROUP_M,
        OUTS=OUTS if wide == 256 else 1, UNROLL=UNROLL, PARTS=parts, num_warps=4,
    )  # fmt: skip
    if parts > 1:
        sums_kernel[(triton.cdiv(m * n, 1024),)](out, y, m * n, PARTS=parts, BLOCK=1024, num_warps=4)
    return y
