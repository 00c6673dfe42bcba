"""Attention of N responses over one prompt, forward, bfloat16, heads of 64 or 128, with log-sum-exp: in Gluon (sm_90).

For inputs as in the task shared_prompt: any lengths, query heads a multiple of key heads. One launch; equal bits in
every run. Bred on an H200 by an external agent (2026-11-29): `lineage.json` has the versions, `shared_prompt.db.xz` is
the population. Confirmed on hidden cases by judge 30: 2.10 of the fastest baseline (1.50 to 2.63).

Mechanism
---------
No product is computed twice: 1.01 to 1.12 of the pairs of rows and keys, by counting blocks with heads packed by four
or not at all. One program a multiprocessor: a warp loads by TMA, warp groups of 64 rows each compute.

* A tile's rows are positions times query heads that share a key head (TMA box of positions x heads), two of them where
  h / hk is even: less is wasted at the ragged end of a response, and fewer groups have a diagonal block of their own.
* A tile of a response goes over its own keys first, then over the prompt's: only the diagonal block has a mask. Its
  maxima are the shift of all exponentials, so no running maximum and no rescaling is needed.
* The prompt's last partial block has no mask either: TMA fills with zeros, whose exponentials are taken off the sum.
* Where sums leave 2 ** -64 to 2 ** 64, or that would cancel, rows are computed again with a running maximum and masks.
* The host knows the lengths: it lists the tiles by key head, longest first, gives each to the program with the least
  work, and hands the tables over as constants (at most 64 KB).

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 30, 2026-11-29; hidden cases are marked. N x prompt + response, heads (key
heads) x d. Baselines: cuDNN on copies of the prompt, three attentions that are merged, FlexAttention.

| case | us | fastest baseline us | |
| --- | --- | --- | --- |
| 16 x 8192 + 1024, 32 (8) x 128 | 3606 | 6063 three parts | 1.68x |
| 32 x 8192 + 512 ragged, 32 (8) x 128 | 3535 | 6328 three parts | 1.79x |
| 16 x 2048 + 1024, 32 (8) x 128, hidden | 965.9 | 2536 flex | 2.63x |
| 32 x 8191 + 1024 ragged, 32 (8) x 128, hidden | 6635 | 12490 three parts | 1.88x |
| 8 x 32768 + 1024 ragged, 32 (8) x 128, hidden | 15870 | 23876 three parts | 1.50x |
| 7 x 4097 + 2048 ragged, 16 (4) x 64, hidden | 581.5 | 1508 three parts | 2.59x |

Dead ends
---------
* At d = 64, two groups with scores one block ahead: 6 % slower than four; heads listed together by two or four, six
  slots: within 1 %.
* Masking the prompt's last block in a peeled step: 10 % more instructions a block at d = 64.
* Unrolling the loop of d = 64 by two: it spills. Carrying weights as packed words: 220 instructions a block, not 185.
"""

import functools
import heapq
import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Names of Triton 3.9, or of 3.6.
warp_group_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

# Knobs: consumer warp groups, slots of keys and values, buffers of queries, queries in registers, scores one block
# ahead; heads of keys listed together; most query heads packed into the rows of a tile.
GROUPS_128 = 2
SLOTS_128 = 5
QBUF_128 = 1
QREG_128 = 1
AHEAD_128 = 1
GROUPS_64 = 4
SLOTS_64 = 4
QBUF_64 = 2
QREG_64 = 0
AHEAD_64 = 0
TOGETHER = 1
MOST_PACKED = 8

ROWS = gl.constexpr(64)  # of queries, a warp group
KEYS = gl.constexpr(64)  # a block
LEAST = gl.constexpr(-3.0e38)  # of a maximum, so that no difference of maxima is NaN
FAR = gl.constexpr(1.8e19)  # 2 ** 64: sums of exponentials from 1 / FAR to here are trusted
LN2 = gl.constexpr(math.log(2))


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def log2(x):
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    """The slot after `slot`, and the parity of its barriers."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def numbered(order_ptr, turn):
    """Which tile this program has in `turn`: its heads << 20 | its number; below 0, none."""
    return gl.load(order_ptr + turn * gl.num_programs(0) + gl.program_id(0))


@gluon.jit
def entry(tiles_ptr, number):
    """Of a tile: its first row, that row's place in its segment, its rows (0: there is no tile), its heads."""
    at = tiles_ptr + (gl.maximum(number, 0) & 0xFFFFF) * 2
    word = gl.load(at + 1)
    return gl.load(at), word >> 8, gl.where(number < 0, 0, (word & 255) + 1), number >> 20


@gluon.jit
def load_block(ctx_desc, dec_desc, j, own, base, shared, head, barrier, buffer, D: gl.constexpr):
    """Block j of a tile's keys or values: own blocks from `own` down to 0, then those of the prompt.

    `base` is the segment's first row in `dec_desc`; where `shared` the segment is the prompt itself.
    """
    mine = j <= own
    row = gl.where(mine, own - j, j - own - 1) * KEYS
    to = buffer.reshape([KEYS, 1, D])
    if mine & (shared == 0):
        load_tile(dec_desc, [base + row, head, 0], barrier, to)
    else:
        load_tile(ctx_desc, [row, head, 0], barrier, to)


@gluon.jit
def produce(
    q_desc, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, q_full, q_empty, full, empty,
    tiles_ptr, order_ptr, turns, prompt,
    GROUPS: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr, PACK: gl.constexpr,
    SHARE: gl.constexpr,
):  # fmt: skip
    """One warp: loads queries of each group, then blocks of keys, values one slot later."""
    TALL: gl.constexpr = ROWS // PACK
    slot = 0
    phase = 0
    next_row, next_place, next_count, next_heads = entry(tiles_ptr, numbered(order_ptr, 0))
    number = numbered(order_ptr, 1)
    for turn in range(turns):
        row, place, count, heads = next_row, next_place, next_count, next_heads
        next_row, next_place, next_count, next_heads = entry(tiles_ptr, number)
        number = numbered(order_ptr, turn + 2)
        if count > 0:
            shared = row < prompt
            base = row - place - prompt
            head = heads * PACK // SHARE
            own = (place + count - 1) // KEYS
            blocks = own + 1 + gl.where(shared, 0, gl.cdiv(prompt, KEYS))
            for g in gl.static_range(GROUPS):
                at = turn % QBUF * GROUPS + g
                mbarrier.wait(q_empty.index(at), (turn // QBUF + 1) & 1)
                mbarrier.expect(q_full.index(at), ROWS * D * 2)
                load_tile(
                    q_desc, [row + g * TALL, heads * PACK, 0], q_full.index(at),
                    q_smem.index(at).reshape([TALL, PACK, D]),
                )  # fmt: skip
            for j in range(blocks + 1):
                mbarrier.wait(empty.index(slot), phase ^ 1)
                one = (j == 0) | (j == blocks)
                mbarrier.expect(full.index(slot), 2 * KEYS * D * 2, pred=one == 0)
                mbarrier.expect(full.index(slot), KEYS * D * 2, pred=one)
                if j < blocks:
                    load_block(
                        k_ctx_desc, k_dec_desc, j, own, base, shared, head, full.index(slot), k_smem.index(slot), D
                    )  # fmt: skip
                if j > 0:
                    load_block(
                        v_ctx_desc, v_dec_desc, j - 1, own, base, shared, head, full.index(slot), v_smem.index(slot), D
                    )
                slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def masked(s, first_key, bound, S_MMA: gl.constexpr):
    """Scores of keys up to each row's `bound`."""
    keys = first_key + gl.arange(0, KEYS, gl.SliceLayout(0, S_MMA))
    return gl.where(keys[None, :] <= bound[:, None], s, float("-inf"))


@gluon.jit
def partial_sums(e):
    """Sums of rows in each thread, four a row: the threads add them up at the end of a tile."""
    return gl.sum(gl.sum(e.reshape([ROWS, KEYS // 8, 4, 2]), axis=3), axis=1)


@gluon.jit
def weights(s, shift, scale, dtype: gl.constexpr, P_IN: gl.constexpr):
    """Exponentials of scores as the left operand of a product, and their partial sums."""
    e = exp2(s * scale - shift[:, None])
    return gl.convert_layout(e.to(dtype), P_IN, assert_trivial=True), partial_sums(e)


@gluon.jit
def ahead(
    q, s, ot, p, sums, slot, next_slot, phase, shift, scale, k_smem, v_smem, full, empty, no_scores,
    SLOTS: gl.constexpr, P_IN: gl.constexpr,
):  # fmt: skip
    """The next scores, beside the exponentials of scores `s`; the product of these with values stays in flight."""
    st = warpgroup_mma(q, k_smem.index(next_slot).permute((1, 0)), no_scores, use_acc=False, is_async=True)
    next_p, more = weights(s, shift, scale, v_smem.dtype, P_IN)
    o, p = warpgroup_mma_wait(1, deps=[ot, p])
    mbarrier.arrive(empty.index(slot), count=1)
    ot = warpgroup_mma(next_p, v_smem.index(next_slot), o, is_async=True)
    later, phase = following(next_slot, phase, SLOTS)
    # Waiting here, before the scores are known to be there, keeps the assembler from moving their exponentials up.
    mbarrier.wait(full.index(later), phase)
    s = warpgroup_mma_wait(1, deps=[st])
    return s, ot, next_p, sums + more, next_slot, later, phase


@gluon.jit
def again(
    k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q, buffer, slow, first, blocks, own, base, shared, head, rows,
    prompt, scale, D: gl.constexpr, S_MMA: gl.constexpr, O_MMA: gl.constexpr,
):  # fmt: skip
    """A group's rows anew with a maximum that follows the scores, one block at a time through `buffer`."""
    no_scores = gl.zeros([ROWS, KEYS], gl.float32, S_MMA)
    m = gl.full([ROWS], LEAST, gl.float32, gl.SliceLayout(1, S_MMA))
    sums = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_MMA))
    o = gl.zeros([ROWS, D], gl.float32, O_MMA)
    for j in range(first, blocks):
        fence_async_shared()
        warp_group_barrier()
        mbarrier.expect(slow, KEYS * D * 2)
        load_block(k_ctx_desc, k_dec_desc, j, own, base, shared, head, slow, buffer, D)
        mbarrier.wait(slow, 0)
        s = warpgroup_mma(q, buffer.permute((1, 0)), no_scores, use_acc=False)
        warp_group_barrier()
        mbarrier.expect(slow, KEYS * D * 2)
        load_block(v_ctx_desc, v_dec_desc, j, own, base, shared, head, slow, buffer, D)
        bound = gl.where(j <= own, rows, prompt - 1)
        s = masked(s, gl.where(j <= own, own - j, j - own - 1) * KEYS, bound, S_MMA)
        m_new = gl.maximum(m, gl.max(s, axis=1))
        alpha = exp2((m - m_new) * scale)  # not m * scale - m_new * scale: of scores near 1e10 that is off by 1000
        e = exp2((s - m_new[:, None]) * scale)
        sums = sums * alpha + gl.sum(e, axis=1)
        m = m_new
        p = gl.convert_layout(e.to(buffer.dtype), gl.DotOperandLayout(0, O_MMA, 2))
        o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_MMA))[:, None]
        mbarrier.wait(slow, 1)
        o = warpgroup_mma(p, buffer, o)
    warp_group_barrier()
    return o, gl.convert_layout(sums, gl.SliceLayout(1, O_MMA)), m * scale


@gluon.jit
def consume(
    o_desc, o_ptr, lse_ptr, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, o_smem, slows,
    q_full, q_empty, full, empty, tiles_ptr, order_ptr, turns, prompt, total_rows, all_heads, scale,
    G: gl.constexpr, GROUPS: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr,
    QREG: gl.constexpr, AHEAD: gl.constexpr, PACK: gl.constexpr, SHARE: gl.constexpr,
):  # fmt: skip
    """Warp group G: 64 rows of each tile, which are ROWS // PACK rows of PACK heads."""
    S_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    O_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    Q_IN: gl.constexpr = gl.DotOperandLayout(0, S_MMA, 2)
    P_IN: gl.constexpr = gl.DotOperandLayout(0, O_MMA, 2)
    TALL: gl.constexpr = ROWS // PACK
    dtype: gl.constexpr = o_desc.dtype
    no_scores = gl.zeros([ROWS, KEYS], gl.float32, S_MMA)
    no_sums = partial_sums(no_scores)
    out = o_smem.index(G)
    slot = 0
    phase = 0
    next_row, next_place, next_count, next_heads = entry(tiles_ptr, numbered(order_ptr, 0))
    number = numbered(order_ptr, 1)
    for turn in range(turns):
        shared = next_row < prompt
        row = next_row + G * TALL
        place = next_place + G * TALL
        tile_count = next_count + 0
        count = next_count - G * TALL  # rows of this group; more than TALL where groups follow
        heads = next_heads + 0
        own = (next_place + next_count - 1) // KEYS  # of the tile
        next_row, next_place, next_count, next_heads = entry(tiles_ptr, number)
        number = numbered(order_ptr, turn + 2)
        if tile_count > 0:
            blocks = own + 1 + gl.where(shared, 0, gl.cdiv(prompt, KEYS))
            skipped = own - place // KEYS  # blocks for the groups below this one
            if count <= 0:
                skipped = blocks + 1
            for _ in range(skipped):
                mbarrier.wait(full.index(slot), phase)
                mbarrier.arrive(empty.index(slot), count=1)
                slot, phase = following(slot, phase, SLOTS)
            at = turn % QBUF * GROUPS + G
            mbarrier.wait(q_full.index(at), turn // QBUF & 1)
            if count <= 0:
                mbarrier.arrive(q_empty.index(at), count=1)
            else:
                if QREG:
                    q = q_smem.index(at).load(Q_IN)
                    mbarrier.arrive(q_empty.index(at), count=1)
                else:
                    q = q_smem.index(at)
                rows = place + gl.arange(0, ROWS, gl.SliceLayout(1, S_MMA)) // PACK

                # The first block: its maxima shift all scores of the tile. Only it has masked scores.
                left = blocks - skipped
                mbarrier.wait(full.index(slot), phase)
                s = warpgroup_mma(q, k_smem.index(slot).permute((1, 0)), no_scores, use_acc=False, is_async=True)
                s = warpgroup_mma_wait(0, deps=[s])
                s = masked(s, (own - skipped) * KEYS, rows, S_MMA)
                shift = gl.maximum(gl.max(s, axis=1), LEAST) * scale
                o = gl.zeros([ROWS, D], gl.float32, O_MMA)
                next_slot, next_phase = following(slot, phase, SLOTS)
                if AHEAD:
                    sums = no_sums
                    mbarrier.wait(full.index(next_slot), next_phase)
                    if left > 1:  # the first step stands here, without a product to wait for: a loop must not begin one
                        st = warpgroup_mma(
                            q, k_smem.index(next_slot).permute((1, 0)), no_scores, use_acc=False, is_async=True
                        )
                        p, more = weights(s, shift, scale, dtype, P_IN)
                        sums += more
                        mbarrier.arrive(empty.index(slot), count=1)
                        ot = warpgroup_mma(p, v_smem.index(next_slot), o, is_async=True)
                        slot = next_slot
                        next_slot, next_phase = following(next_slot, next_phase, SLOTS)
                        mbarrier.wait(full.index(next_slot), next_phase)
                        s = warpgroup_mma_wait(1, deps=[st])
                        for _ in range((left - 2) // 2):  # two at a time, so that scores alternate between registers
                            odd, ot, p, sums, slot, next_slot, next_phase = ahead(
                                q, s, ot, p, sums, slot, next_slot, next_phase, shift, scale, k_smem, v_smem, full,
                                empty, no_scores, SLOTS, P_IN,
                            )  # fmt: skip
                            s, ot, p, sums, slot, next_slot, next_phase = ahead(
                                q, odd, ot, p, sums, slot, next_slot, next_phase, shift, scale, k_smem, v_smem, full,
                                empty, no_scores, SLOTS, P_IN,
                            )  # fmt: skip
                        o, p = warpgroup_mma_wait(0, deps=[ot, p])
                        if left % 2 == 1:
                            ot = warpgroup_mma_init(o)
                            s, ot, p, sums, slot, next_slot, next_phase = ahead(
                                q, s, ot, p, sums, slot, next_slot, next_phase, shift, scale, k_smem, v_smem, full,
                                empty, no_scores, SLOTS, P_IN,
                            )  # fmt: skip
                            o, p = warpgroup_mma_wait(0, deps=[ot, p])
                    mbarrier.arrive(empty.index(slot), count=1)
                    p, more = weights(s, shift, scale, dtype, P_IN)
                    sums += more
                else:
                    mbarrier.arrive(empty.index(slot), count=1)
                    p, sums = weights(s, shift, scale, dtype, P_IN)
                    mbarrier.wait(full.index(next_slot), next_phase)
                    warp_group_barrier()  # else Triton puts one into the loop
                    for _ in range(1, left):
                        slot = next_slot
                        st = warpgroup_mma(
                            q, k_smem.index(slot).permute((1, 0)), no_scores, use_acc=False, is_async=True
                        )
                        s = warpgroup_mma_wait(0, deps=[st])
                        ot = warpgroup_mma(p, v_smem.index(slot), o, is_async=True)
                        next_p, more = weights(s, shift, scale, dtype, P_IN)
                        sums += more
                        next_slot, next_phase = following(slot, next_phase, SLOTS)
                        # Waiting here keeps the assembler from waiting for o before the exponentials.
                        mbarrier.wait(full.index(next_slot), next_phase)
                        o, p = warpgroup_mma_wait(0, deps=[ot, p])
                        mbarrier.arrive(empty.index(slot), count=1)
                        p = next_p
                ot = warpgroup_mma(p, v_smem.index(next_slot), o, is_async=True)
                total = gl.convert_layout(gl.sum(sums, axis=1), gl.SliceLayout(1, O_MMA), assert_trivial=True)
                # Keys beyond the prompt's last are zeros, as are their scores and values: their weights go.
                shifts = gl.convert_layout(shift, gl.SliceLayout(1, O_MMA), assert_trivial=True)
                zeros = gl.where(shared, 0, -prompt & (KEYS - 1))
                off = gl.where(zeros > 0, zeros.to(gl.float32) * exp2(-shifts), 0.0)
                total -= off
                far = gl.max(gl.where((total <= FAR) & (total >= 1.0 / FAR) & (total >= off), 0, 1), axis=0)
                o = warpgroup_mma_wait(0, deps=[ot])
                mbarrier.arrive(empty.index(next_slot), count=1)
                slot, phase = following(next_slot, next_phase, SLOTS)
                tma.store_wait(0)
                if far > 0:
                    o, total, shift = again(
                        k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q, out, slows.index(G), skipped, blocks, own,
                        row - place - prompt, shared, heads * PACK // SHARE, rows, prompt, scale, D, S_MMA, O_MMA,
                    )  # fmt: skip
                result = (o * (1.0 / total)[:, None]).to(dtype)
                inner = gl.arange(0, ROWS, gl.SliceLayout(1, O_MMA))
                real = inner < count * PACK
                head = heads * PACK + inner % PACK
                lse = gl.convert_layout(shift, gl.SliceLayout(1, O_MMA), assert_trivial=True) + log2(total)
                gl.store(lse_ptr + head.to(gl.int64) * total_rows + row + inner // PACK, lse * LN2, mask=real)
                if count >= TALL:
                    out.store(result)
                    fence_async_shared()
                    store_tile(o_desc, [row, heads * PACK, 0], out.reshape([TALL, PACK, D]))
                else:  # the rows that follow belong to others
                    to = ((row + inner // PACK).to(gl.int64) * all_heads + head) * D
                    dims = gl.arange(0, D, gl.SliceLayout(0, O_MMA))
                    gl.store(o_ptr + to[:, None] + dims[None, :], result, mask=real[:, None])
                if not QREG:
                    mbarrier.arrive(q_empty.index(at), count=1)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["turns", "prompt", "total_rows", "all_heads"])
def shared_prompt_kernel(
    q_desc, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, o_desc, o_ptr, lse_ptr, tiles_ptr, order_ptr, turns, prompt,
    total_rows, all_heads, scale,
    D: gl.constexpr, GROUPS: gl.constexpr, REGS: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr,
    QREG: gl.constexpr, AHEAD: gl.constexpr, PACK: gl.constexpr, SHARE: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q_desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, D], dtype)
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    q_smem = gl.allocate_shared_memory(dtype, [QBUF * GROUPS, ROWS, D], tile)
    k_smem = gl.allocate_shared_memory(dtype, [SLOTS, KEYS, D], tile)
    v_smem = gl.allocate_shared_memory(dtype, [SLOTS, KEYS, D], tile)
    o_smem = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], tile)
    q_full = gl.allocate_shared_memory(gl.int64, [QBUF * GROUPS, 1], barriers)
    q_empty = gl.allocate_shared_memory(gl.int64, [QBUF * GROUPS, 1], barriers)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    slows = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barriers)
    for i in gl.static_range(QBUF * GROUPS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    for i in gl.static_range(GROUPS):
        mbarrier.init(slows.index(i), count=1)
    fence_async_shared()
    if GROUPS == 2:
        gl.warp_specialize([
            (consume, (
                o_desc, o_ptr, lse_ptr, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, o_smem,
                slows, q_full, q_empty, full, empty, tiles_ptr, order_ptr, turns, prompt, total_rows, all_heads, scale,
                0, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, PACK, SHARE,
            )),
            (consume, (
                o_desc, o_ptr, lse_ptr, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, o_smem,
                slows, q_full, q_empty, full, empty, tiles_ptr, order_ptr, turns, prompt, total_rows, all_heads, scale,
                1, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, PACK, SHARE,
            )),
            (produce, (
                q_desc, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, q_full, q_empty, full,
                empty, tiles_ptr, order_ptr, turns, prompt, GROUPS, D, SLOTS, QBUF, PACK, SHARE,
            )),
        ], [4, 1], [REGS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (
                o_desc, o_ptr, lse_ptr, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, o_smem,
                slows, q_full, q_empty, full, empty, tiles_ptr, order_ptr, turns, prompt, total_rows, all_heads, scale,
                0, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, PACK, SHARE,
            )),
            (consume, (
                o_desc, o_ptr, lse_ptr, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, o_smem,
                slows, q_full, q_empty, full, empty, tiles_ptr, order_ptr, turns, prompt, total_rows, all_heads, scale,
                1, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, PACK, SHARE,
            )),
            (consume, (
                o_desc, o_ptr, lse_ptr, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, o_smem,
                slows, q_full, q_empty, full, empty, tiles_ptr, order_ptr, turns, prompt, total_rows, all_heads, scale,
                2, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, PACK, SHARE,
            )),
            (consume, (
                o_desc, o_ptr, lse_ptr, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, o_smem,
                slows, q_full, q_empty, full, empty, tiles_ptr, order_ptr, turns, prompt, total_rows, all_heads, scale,
                3, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, PACK, SHARE,
            )),
            (produce, (
                q_desc, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, k_smem, v_smem, q_full, q_empty, full,
                empty, tiles_ptr, order_ptr, turns, prompt, GROUPS, D, SLOTS, QBUF, PACK, SHARE,
            )),
        ], [4, 4, 4, 1], [REGS, REGS, REGS, 24])  # fmt: skip


@functools.lru_cache(maxsize=64)
def schedule(programs, prompt, starts, key_heads, packs, tall):
    """Tables `tiles` (see `entry`) and `order` (see `numbered`; turns + 2 times `programs`), and the number of turns.

    Tiles of `tall` rows are listed TOGETHER heads of keys at a time (`packs` tiles each), the longest first, and each
    goes to the program that has the least to do: what a counter would do on the device, if it could know.
    """
    segments = [(0, prompt)] + [(prompt + a, b - a) for a, b in zip(starts, starts[1:], strict=False)]
    blocks = -(-prompt // KEYS.value)
    found = []
    for segment, (first, length) in enumerate(segments):
        for place in range(0, length, tall):
            count = min(tall, length - place)
            work = (place + count - 1) // KEYS.value + 1 + (blocks if segment else 0)
            found.append((work * (1.0 if 2 * count > tall else 0.6) + 1.5, first + place, place << 8 | count - 1))
    found.sort(key=lambda tile: -tile[0])
    loads = [(0.0, program) for program in range(programs)]
    lists = [[] for _ in range(programs)]
    for first in range(0, key_heads, TOGETHER):
        for number, (work, _, _) in enumerate(found):
            for heads in range(first * packs, min(first + TOGETHER, key_heads) * packs):
                load, program = loads[0]
                lists[program].append(heads << 20 | number)
                heapq.heapreplace(loads, (load + work, program))
    turns = max(len(each) for each in lists)
    order = [each[turn] if turn < len(each) else -1 for turn in range(turns + 2) for each in lists]
    return [word for tile in found for word in tile[1:]], order, turns


def run(q, k_ctx, v_ctx, k_dec, v_dec, cu):
    total, heads, d = q.shape
    prompt, key_heads, _ = k_ctx.shape
    share = heads // key_heads
    starts = tuple(cu.tolist())
    pack = 1
    while share % (2 * pack) == 0 and 2 * pack <= MOST_PACKED:
        pack *= 2
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    rows = total * heads
    if d == 128:
        chosen = (GROUPS_128, SLOTS_128, QBUF_128, QREG_128, AHEAD_128)
    elif rows <= 128 * processors:
        chosen = (2, 8, 1, 1, 1)
    else:
        chosen = (GROUPS_64, SLOTS_64, QBUF_64, QREG_64, AHEAD_64)
    groups, slots, qbuf, qreg, ahead_of = chosen
    tall = groups * ROWS.value // pack
    count = sum(-(-length // tall) for length in (prompt, *(b - a for a, b in zip(starts, starts[1:]))))
    programs = min(processors, count * (heads // pack))
    tiles, order, turns = schedule(programs, prompt, starts, key_heads, share // pack, tall)
    out = torch.empty_like(q)
    lse = torch.empty((heads, total), dtype=torch.float32, device=q.device)

    def described(x, box):
        return TensorDescriptor.from_tensor(x, box, gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16))

    keys, queries = [KEYS.value, 1, d], [ROWS.value // pack, pack, d]
    shared_prompt_kernel[(programs,)](
        described(q, queries), *(described(x, keys) for x in (k_ctx, v_ctx, k_dec, v_dec)), described(out, queries),
        out, lse, *(torch.tensor(x, dtype=torch.int32, device=q.device) for x in (tiles, order)), turns, prompt, total,
        heads,
        d**-0.5 * math.log2(math.e),
        D=d, GROUPS=groups, REGS=240 if groups == 2 else 112, SLOTS=slots, QBUF=qbuf, QREG=bool(qreg),
        AHEAD=bool(ahead_of), PACK=pack, SHARE=share, num_warps=4,
    )  # fmt: skip
    return out, lse
