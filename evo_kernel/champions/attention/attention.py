"""Attention, forward, causal or full, bfloat16, heads of 64 or 128: persistent, warp-specialised, in Gluon (sm_90).

Bred for the built-in task `attention` on an H200 by an external agent over MCP; `lineage.json` beside this file has its
versions, their differences and verdicts. `run` is the task's (causal); `attention(q, k, v, causal)` does both.

Mechanism
---------
One program a multiprocessor. One warp loads by TMA; two (d = 128) or four (d = 64) warp groups of 64 rows each compute.

* Scores are shifted by each row's maximum over its *first* block of keys (the diagonal one), not by a running maximum.
  Floating point does not mind: weights are relative, and sums of up to 2 ** 64 leave room in bfloat16 and float32. So
  the loop has no maxima, no shuffles and no rescaling of the output: 167 instructions for 64 x 64 scores at d = 64
  instead of 256. Rows whose sum exceeds 2 ** 64 or is NaN (a later score lies 44 or more above the first block's) are
  computed again with a running maximum (`again`), by their warp group alone, so that no input gives a wrong result
  (products overflow float32 only where values exceed 1e19). A running maximum took 19 % longer at d = 64, 5 % at 128.
* Since no arithmetic touches the output in the loop, its product stays in flight beside the exponentials. At d = 128
  the next scores do too (`ahead`, unrolled by two so that they alternate between registers).
* Slot i of the ring holds keys i and values i - 1, what one iteration needs: one barrier to wait for, one to arrive at.
* Blocks run from the diagonal down: only the first is masked. Sums of rows stay in each thread until the tile's end.
* Tiles are listed a few heads at a time (keys and values stay in L2), longest first, and dealt to programs in turns.
  The host rotates each turn such that all programs get equal work; the kernel finds its tiles by arithmetic.
* The assembler moves waits for a product to before the exponentials, which serialises both; it cannot move them past
  the loop of a barrier's wait. Hence the order of waits. A product whose accumulator starts as zeros outside a loop and
  is carried in flight through the loop serialises all (C7512): the first step stands before the loop.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, 2026-11-24. Graphs of 12 calls over three sets of inputs, median of 7; cuDNN by
`scaled_dot_product_attention` in the same process. b x h x length x d:

| case | causal us | TFLOP/s | cuDNN us | | full us | TFLOP/s | cuDNN us | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 8 x 16 x 1024 x 64 | 45.0 | 381 | 59.5 | 1.32x | 69.0 | 498 | 82.8 | 1.20x |
| 4 x 16 x 2048 x 64 | 70.2 | 489 | 99.3 | 1.41x | 123.5 | 556 | 151.4 | 1.23x |
| 2 x 16 x 4096 x 64 | 125.0 | 550 | 180.1 | 1.44x | 233.4 | 589 | 290.3 | 1.24x |
| 1 x 16 x 16384 x 64 | 915.8 | 600 | 1281.3 | 1.40x | 1890.1 | 582 | 2404.5 | 1.27x |
| 8 x 8 x 1023 x 128 | 36.6 | 469 | 50.2 | 1.37x | 53.9 | 636 | 65.9 | 1.22x |
| 2 x 16 x 2048 x 128 | 56.8 | 605 | 84.5 | 1.49x | 96.4 | 713 | 110.9 | 1.15x |
| 1 x 32 x 4096 x 128 | 191.6 | 717 | 262.7 | 1.37x | 366.2 | 751 | 439.7 | 1.20x |
| 1 x 16 x 8192 x 128 | 361.1 | 761 | 541.2 | 1.50x | | | | |
| 1 x 16 x 16384 x 128 | 1566.7 | 702 | 2000.1 | 1.28x | 3127.5 | 703 | 3678.4 | 1.18x |

Ranges: lengths 1 to 16384 were checked. 20 random sizes (lengths 1115 to 15213, causal and full, both d) took 0.68 to
0.85 of the time of SDPA's best, geometric mean 1.28x. At d = 128 the tensor cores work 88 % of the cycles, at a clock
that the power limit lowers to 1.5 GHz; at d = 64 they and the special-function units are busy half of the time.

Dead ends
---------
* A cubic for one in 4, 8 or 16 exponentials: 13, 6 and 4 % slower at d = 64; in 8: 6 % at d = 128.
* Blocks of 128 keys: 4 % slower at d = 128, 11 to 14 % at d = 64 with two or three groups.
* Scores one block ahead at d = 64 with two or three groups: 5 to 8 % slower than four groups without.
* Three groups at d = 128 with blocks of 64: 9 % slower. All heads at a time at d = 128: 5 % slower.
* Issuing the product with values only after scores are there: 1 % faster at d = 64, 10 % slower at d = 128.
* Output staged in the queries' buffer, to have one slot more: no faster, and wrong beside `again`.
* Two programs a multiprocessor with two groups each: 104 registers a thread do not suffice (C7512).
"""

import functools
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

settings = {
    # by d: consumer warp groups, their registers, slots of keys and values, buffers of queries, queries in registers,
    # scores one block ahead
    64: {"GROUPS": 4, "REGS": 112, "SLOTS": 4, "QBUF": 2, "QREG": False, "AHEAD": False},
    128: {"GROUPS": 2, "REGS": 240, "SLOTS": 5, "QBUF": 1, "QREG": True, "AHEAD": True},
}
ROWS = gl.constexpr(64)  # of queries, a warp group
KEYS = gl.constexpr(64)  # a block
LEAST = gl.constexpr(-3.0e38)  # of a maximum, so that no difference of maxima is NaN
FAR = gl.constexpr(1.8e19)  # 2 ** 64: sums of exponentials up to here are trusted


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def place(turn, turns_a, turns_b, turns_c, turns_d, heads, row_tiles, AT_ONCE: gl.constexpr):
    """Whether this program has a tile in `turn`, its head and its row tile.

    Tiles are listed one group of heads after the other, the longest rows of a group first. Each turn deals the next
    gl.num_programs of them, in an order that `schedule` chose: rotated, and reversed or not (7 bits a turn).
    """
    programs = gl.num_programs(0)
    word = turn // 4 % 4
    codes = gl.where(word < 2, gl.where(word == 0, turns_a, turns_b), gl.where(word == 2, turns_c, turns_d))
    code = (codes >> (turn % 4 * 7)) & 127
    position = (gl.program_id(0) + (code & 63) * 4) % programs
    position = gl.where(code >= 64, programs - 1 - position, position)
    index = turn * programs + position
    group = index // (AT_ONCE * row_tiles)
    inner = index - group * (AT_ONCE * row_tiles)
    wide = gl.minimum(AT_ONCE, heads - group * AT_ONCE)
    return index < heads * row_tiles, group * AT_ONCE + inner % wide, row_tiles - 1 - inner // wide


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    """The slot after `slot`, and the parity of its barriers."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def produce(
    q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, full, empty,
    length, heads, row_tiles, turns, turns_a, turns_b, turns_c, turns_d,
    GROUPS: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr, AT_ONCE: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """One warp: loads queries of each group, then blocks of keys from the last to the first, values one slot later."""
    slot = 0
    phase = 0
    for turn in range(turns):
        real, head, row = place(turn, turns_a, turns_b, turns_c, turns_d, heads, row_tiles, AT_ONCE)
        if real:
            blocks = gl.cdiv(length, KEYS)
            if CAUSAL:
                blocks = gl.minimum(blocks, gl.cdiv((row + 1) * (GROUPS * ROWS), KEYS))
            for g in gl.static_range(GROUPS):
                at = turn % QBUF * GROUPS + g
                mbarrier.wait(q_empty.index(at), (turn // QBUF + 1) & 1)
                mbarrier.expect(q_full.index(at), ROWS * D * 2)
                load_tile(
                    q_desc, [head, row * (GROUPS * ROWS) + g * ROWS, 0], q_full.index(at),
                    q_smem.index(at).reshape([1, ROWS, D]),
                )  # fmt: skip
            for j in range(blocks + 1):
                mbarrier.wait(empty.index(slot), phase ^ 1)
                key = (blocks - 1 - j) * KEYS
                one = (j == 0) | (j == blocks)
                mbarrier.expect(full.index(slot), 2 * KEYS * D * 2, pred=one == 0)
                mbarrier.expect(full.index(slot), KEYS * D * 2, pred=one)
                if j < blocks:
                    load_tile(
                        k_desc, [head, key, 0], full.index(slot),
                        k_smem.index(slot).reshape([1, KEYS, D]),
                    )  # fmt: skip
                if j > 0:
                    load_tile(
                        v_desc, [head, key + KEYS, 0], full.index(slot),
                        v_smem.index(slot).reshape([1, KEYS, D]),
                    )  # fmt: skip
                slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def masked(s, first_row, first_key, length, CAUSAL: gl.constexpr, S_MMA: gl.constexpr):
    keys = first_key + gl.arange(0, KEYS, gl.SliceLayout(0, S_MMA))
    if CAUSAL:
        rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_MMA))
        return gl.where(keys[None, :] <= rows[:, None], s, float("-inf"))
    return gl.where((keys < length)[None, :], s, float("-inf"))


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
    k_desc, v_desc, q, buffer, slow, head, first_row, length, scale,
    D: gl.constexpr, CAUSAL: gl.constexpr, S_MMA: gl.constexpr, O_MMA: gl.constexpr,
):  # fmt: skip
    """A group's rows anew with a maximum that follows the scores, one block at a time through `buffer`."""
    no_scores = gl.zeros([ROWS, KEYS], gl.float32, S_MMA)
    m = gl.full([ROWS], LEAST, gl.float32, gl.SliceLayout(1, S_MMA))
    sums = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_MMA))
    o = gl.zeros([ROWS, D], gl.float32, O_MMA)
    blocks = gl.cdiv(length, KEYS)
    if CAUSAL:
        blocks = gl.minimum(blocks, gl.cdiv(first_row + ROWS, KEYS))
    for j in range(blocks):
        fence_async_shared()
        warp_group_barrier()
        mbarrier.expect(slow, KEYS * D * 2)
        load_tile(k_desc, [head, j * KEYS, 0], slow, buffer.reshape([1, KEYS, D]))
        mbarrier.wait(slow, 0)
        s = warpgroup_mma(q, buffer.permute((1, 0)), no_scores, use_acc=False)
        warp_group_barrier()
        mbarrier.expect(slow, KEYS * D * 2)
        load_tile(v_desc, [head, j * KEYS, 0], slow, buffer.reshape([1, KEYS, D]))
        s = masked(s, first_row, j * KEYS, length, CAUSAL, S_MMA)
        m_new = gl.maximum(m, gl.max(s, axis=1))
        alpha = exp2(m * scale - m_new * scale)
        e = exp2(s * scale - (m_new * scale)[:, None])
        sums = sums * alpha + gl.sum(e, axis=1)
        m = m_new
        p = gl.convert_layout(e.to(k_desc.dtype), gl.DotOperandLayout(0, O_MMA, 2))
        o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_MMA))[:, None]
        mbarrier.wait(slow, 1)
        o = warpgroup_mma(p, buffer, o)
    warp_group_barrier()
    return o, gl.convert_layout(sums, gl.SliceLayout(1, O_MMA))


@gluon.jit
def consume(
    o_desc, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
    length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
    G: gl.constexpr, GROUPS: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr,
    QREG: gl.constexpr, AHEAD: gl.constexpr, AT_ONCE: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Warp group G: 64 rows of each tile."""
    S_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    O_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    Q_IN: gl.constexpr = gl.DotOperandLayout(0, S_MMA, 2)
    P_IN: gl.constexpr = gl.DotOperandLayout(0, O_MMA, 2)
    dtype: gl.constexpr = o_desc.dtype
    no_scores = gl.zeros([ROWS, KEYS], gl.float32, S_MMA)
    no_sums = partial_sums(no_scores)
    out = o_smem.index(G)
    slot = 0
    phase = 0
    for turn in range(turns):
        real, head, row = place(turn, turns_a, turns_b, turns_c, turns_d, heads, row_tiles, AT_ONCE)
        if real:
            first_row = row * (GROUPS * ROWS) + G * ROWS
            blocks = gl.cdiv(length, KEYS)
            if CAUSAL:
                loaded = gl.minimum(blocks, gl.cdiv((row + 1) * (GROUPS * ROWS), KEYS))
                blocks = gl.minimum(blocks, gl.cdiv(first_row + ROWS, KEYS))
                for _ in range(loaded - blocks):  # blocks for the groups below this one
                    mbarrier.wait(full.index(slot), phase)
                    mbarrier.arrive(empty.index(slot), count=1)
                    slot, phase = following(slot, phase, SLOTS)
            at = turn % QBUF * GROUPS + G
            mbarrier.wait(q_full.index(at), turn // QBUF & 1)
            if QREG:
                q = q_smem.index(at).load(Q_IN)
                mbarrier.arrive(q_empty.index(at), count=1)
            else:
                q = q_smem.index(at)

            # The first block: the only one with masked scores, and the one whose maxima shift all scores of the tile.
            mbarrier.wait(full.index(slot), phase)
            s = warpgroup_mma(q, k_smem.index(slot).permute((1, 0)), no_scores, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(0, deps=[s])
            s = masked(s, first_row, (blocks - 1) * KEYS, length, CAUSAL, S_MMA)
            shift = gl.maximum(gl.max(s, axis=1), LEAST) * scale
            o = gl.zeros([ROWS, D], gl.float32, O_MMA)
            next_slot, next_phase = following(slot, phase, SLOTS)
            if AHEAD:
                sums = no_sums
                mbarrier.wait(full.index(next_slot), next_phase)
                if blocks > 1:  # the first step stands here, without a product to wait for: a loop must not begin one
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
                    for _ in range((blocks - 2) // 2):  # two at a time, so that scores alternate between registers
                        odd, ot, p, sums, slot, next_slot, next_phase = ahead(
                            q, s, ot, p, sums, slot, next_slot, next_phase, shift, scale, k_smem, v_smem, full, empty,
                            no_scores, SLOTS, P_IN,
                        )  # fmt: skip
                        s, ot, p, sums, slot, next_slot, next_phase = ahead(
                            q, odd, ot, p, sums, slot, next_slot, next_phase, shift, scale, k_smem, v_smem, full,
                            empty, no_scores, SLOTS, P_IN,
                        )  # fmt: skip
                    o, p = warpgroup_mma_wait(0, deps=[ot, p])
                    if blocks % 2 == 1:
                        ot = warpgroup_mma_init(o)
                        s, ot, p, sums, slot, next_slot, next_phase = ahead(
                            q, s, ot, p, sums, slot, next_slot, next_phase, shift, scale, k_smem, v_smem, full, empty,
                            no_scores, SLOTS, P_IN,
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
                for _ in range(1, blocks):
                    slot = next_slot
                    st = warpgroup_mma(q, k_smem.index(slot).permute((1, 0)), no_scores, use_acc=False, is_async=True)
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
            far = gl.max(gl.where(total <= FAR, 0, 1), axis=0)
            o = warpgroup_mma_wait(0, deps=[ot])
            mbarrier.arrive(empty.index(next_slot), count=1)
            slot, phase = following(next_slot, next_phase, SLOTS)
            tma.store_wait(0)
            if far > 0:
                o, total = again(
                    k_desc, v_desc, q, out, slows.index(G), head, first_row, length, scale, D, CAUSAL, S_MMA, O_MMA
                )
            out.store((o * (1.0 / total)[:, None]).to(dtype))
            fence_async_shared()
            store_tile(o_desc, [head, first_row, 0], out.reshape([1, ROWS, D]))
            if not QREG:
                mbarrier.arrive(q_empty.index(at), count=1)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["length", "heads", "row_tiles", "turns", "turns_a", "turns_b", "turns_c", "turns_d"])
def attention_kernel(
    q_desc, k_desc, v_desc, o_desc, length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
    D: gl.constexpr, GROUPS: gl.constexpr, REGS: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr,
    AT_ONCE: gl.constexpr, QREG: gl.constexpr, AHEAD: gl.constexpr, CAUSAL: gl.constexpr,
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
                o_desc, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
                0, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, AT_ONCE, CAUSAL,
            )),
            (consume, (
                o_desc, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
                1, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, AT_ONCE, CAUSAL,
            )),
            (produce, (
                q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, turns_a, turns_b, turns_c, turns_d,
                GROUPS, D, SLOTS, QBUF, AT_ONCE, CAUSAL,
            )),
        ], [4, 1], [REGS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (
                o_desc, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
                0, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, AT_ONCE, CAUSAL,
            )),
            (consume, (
                o_desc, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
                1, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, AT_ONCE, CAUSAL,
            )),
            (consume, (
                o_desc, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
                2, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, AT_ONCE, CAUSAL,
            )),
            (consume, (
                o_desc, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, scale, turns_a, turns_b, turns_c, turns_d,
                3, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, AT_ONCE, CAUSAL,
            )),
            (produce, (
                q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, full, empty,
                length, heads, row_tiles, turns, turns_a, turns_b, turns_c, turns_d,
                GROUPS, D, SLOTS, QBUF, AT_ONCE, CAUSAL,
            )),
        ], [4, 4, 4, 1], [REGS, REGS, REGS, 24])  # fmt: skip


@functools.lru_cache(maxsize=256)
def schedule(programs, heads, row_tiles, at_once, causal):
    """The number of turns, and how the tiles of each are dealt to the programs (see `place`): four words of four turns.

    Each turn is rotated, and reversed or not, such that the sums of work become equal: coordinate descent on their
    eighth powers. Turns beyond 16 are dealt like the turn 16 before.
    """
    rows = range(row_tiles, 0, -1) if causal else [row_tiles] * row_tiles
    work = []
    for first in range(0, heads, at_once):
        work += [row + 0.4 for row in rows for _ in range(min(at_once, heads - first))]
    turns = -(-len(work) // programs)
    work += [0.0] * (turns * programs - len(work))
    parts = [work[turn * programs : (turn + 1) * programs] for turn in range(turns)]

    def dealt(place, code):
        shift = (code & 63) * 4
        sums = [0.0] * programs
        for part in parts[place::16]:
            turned = part[::-1] if code >= 64 else part
            sums = [a + b for a, b in zip(sums, turned[shift:] + turned[:shift], strict=True)]
        return sums

    codes = [place % 2 * 64 for place in range(min(turns, 16))]
    loads = [sum(values) for values in zip(*(dealt(place, code) for place, code in enumerate(codes)), strict=True)]
    for _ in range(3 if turns <= 16 else 1):
        for place, code in enumerate(codes):
            rest = [load - own for load, own in zip(loads, dealt(place, code), strict=True)]
            options = []
            for other in [code for code in range(128) if (code & 63) * 4 < programs]:
                sums = [a + b for a, b in zip(rest, dealt(place, other), strict=True)]
                options.append((sum(value**8 for value in sums), other, sums))
            _, codes[place], loads = min(options)
    return turns, [sum(code << 7 * n for n, code in enumerate(codes[i : i + 4])) | 1 << 29 for i in (0, 4, 8, 12)]


def attention(q, k, v, causal):
    """softmax(q @ k.T / sqrt(d)) @ v, a head at a time; each is (batch, heads, length, d)."""
    batch, count, length, d = q.shape
    if d not in settings or q.dtype != torch.bfloat16 or k.shape != q.shape or v.shape != q.shape:
        raise ValueError("attention takes bfloat16 q, k and v of one shape (batch, heads, length, 64 or 128)")
    heads, chosen = batch * count, settings[d]
    row_tiles = -(-length // (chosen["GROUPS"] * ROWS.value))
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    programs = min(processors, heads * row_tiles)
    at_once = 2 if d == 64 else max(1, min(16, (1 << 23) // (length * d)))
    turns, words = schedule(programs, heads, row_tiles, at_once, causal)
    layout = gl.NVMMASharedLayout.get_default_for([1, KEYS.value, d], gl.bfloat16)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tiles = [TensorDescriptor.from_tensor(x.flatten(0, 1), [1, KEYS.value, d], layout) for x in (q, k, v, o)]
    scale = d**-0.5 * math.log2(math.e)
    attention_kernel[(programs,)](
        *tiles, length, heads, row_tiles, turns, scale, *words,
        D=d, AT_ONCE=at_once, CAUSAL=causal, num_warps=4, **chosen,
    )  # fmt: skip
    return o


def run(q, k, v):
    return attention(q, k, v, True)
