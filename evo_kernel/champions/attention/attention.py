"""Attention, forward, causal or full, bfloat16, heads of 64 or 128: persistent, warp-specialised, in Gluon (sm_90).

Bred on an H200 by external agents: first for `attention` (2026-11-24), then from that champion for `gqa` and
`attention_full`. `run` serves `attention`, `attention_causal` and `gqa`; `full` has no mask: judge it as
`evo_kernel.champions.attention.attention:full`. `lineage.json` has all versions with their differences,
`*.db.xz` are three of the populations.

Confirmed on hidden cases on 2026-11-28, of the fastest baseline (cuDNN or eager): `attention` 1.34 (1.28 to 1.39) and
`attention_causal` 1.26 (1.20 to 1.31) by judge 22, `gqa` 1.22 (1.18 to 1.25) by judge 21. `attention_full` 1.24 (1.16
to 1.30) by judge 18, before rows with scores near 1e10 were computed again.

Mechanism
---------
One program a multiprocessor. One warp loads by TMA; warp groups of 64 rows each compute: four at d = 64, two at d = 128
and where tiles are so few that all run at once.

* Scores are shifted by each row's maximum over its *first* block of keys (the diagonal one), not by a running maximum.
  Floating point does not mind: weights are relative, and sums of up to 2 ** 64 leave room in bfloat16 and float32. So
  the loop has no maxima, no shuffles and no rescaling of the output: 167 instructions for 64 x 64 scores at d = 64
  instead of 256. Rows whose sum exceeds 2 ** 64 (a later score lies 44 or more above the first block's), is NaN, or is
  below 2 ** -64 (the rounding of a shift of 1e10 alone takes so much) are computed again with a running maximum
  (`again`), by their warp group alone, so that no input gives a wrong result
  (products overflow float32 only where values exceed 1e19). A running maximum took 19 % longer at d = 64, 5 % at 128.
* Since no arithmetic touches the output in the loop, its product stays in flight beside the exponentials. At d = 128
  the next scores do too (`ahead`, unrolled by two so that they alternate between registers).
* Slot i of the ring holds keys i and values i - 1, what one iteration needs: one barrier to wait for, one to arrive at.
* Blocks run from the diagonal down: only the first is masked. Sums of rows stay in each thread until the tile's end.
* Tiles are listed a few heads at a time (keys and values stay in L2), longest first, and dealt to programs in turns.
  The host rotates each turn such that all programs get equal work; the kernel finds its tiles by arithmetic. Where
  turns are many, one head of keys at a time saves power, hence time, more than equal work does (d = 128).
* Query heads that share a head of keys stand beside each other in that list, and read it by head // SHARE.
* Without a mask all tiles take equally long, so the last turn may have few: 4096 tiles are 31 turns of 132 and 4. Then
  programs share these tiles, each with a part of the keys; `join_kernel` weights the parts by their sums.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, 2026-11-27. Graphs of about 3 ms, median of 5 to 7 rounds over all kernels; cuDNN
by `scaled_dot_product_attention` in the same rounds. Rows with a star had their blocks in rising order after the first,
which made no difference (0.2 % on five cases). b x h (heads of keys) x length x d:

| case | causal us | TFLOP/s | cuDNN us | | full us | TFLOP/s | cuDNN us | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 8 x 16 x 4096 x 128 | 756.3 | 727 | 930.8 | 1.23x | 1436.7* | 765 | 1612.5 | 1.12x |
| 4 x 16 x 8192 x 128 | 1442.6 | 762 | 1759.6 | 1.22x | 2746.9* | 801 | 3206.8 | 1.17x |
| 2 x 16 x 16384 x 128 | 2799.8 | 786 | 3388.9 | 1.21x | | | | |
| 1 x 16 x 32768 x 128 | 5402.8 | 814 | 6605.2 | 1.22x | 10581.5* | 831 | 13294.0 | 1.26x |
| 4 x 32 x 8192 x 64 | 1821.7 | 604 | 2349.6 | 1.29x | 3402.3* | 646 | 4440.2 | 1.31x |
| 1 x 32 x 32768 x 64 | 6964.9 | 631 | 8961.7 | 1.29x | 13896.2* | 633 | 18070.5 | 1.30x |
| 8 x 32 (4) x 4096 x 128 | 1435.7* | 766 | 1793.2 | 1.25x | | | | |
| 8 x 32 (8) x 4096 x 128 | | | | | 2748.3* | 800 | 3209.6 | 1.17x |
| 4 x 32 (8) x 8192 x 128 | 2762.5* | 796 | 3393.2 | 1.23x | | | | |
| 4 x 32 (4) x 8192 x 128 | | | | | 5324.3* | 826 | 6284.4 | 1.18x |
| 1 x 32 (4) x 32768 x 128 | 10648.5* | 826 | 13268.8 | 1.25x | | | | |
| 1 x 32 (8) x 32768 x 128 | | | | | 22008.1* | 799 | 27783.0 | 1.26x |
| 4 x 16 x 2048 x 64 | 69.9 | 492 | 100.5 | 1.44x | | | | |
| 1 x 32 x 4096 x 128 | 190.4 | 723 | 260.9 | 1.37x | | | | |
| 1 x 16 x 8192 x 128 | 355.0 | 775 | 484.1 | 1.36x | | | | |
| 32 x 16 x 1024 x 128 | 245.1 | 561 | 295.6 | 1.21x | 404.0* | 680 | 442.0 | 1.09x |
| 32 x 32 x 1024 x 64 | 297.1* | 463 | 389.7 | 1.31x | 496.2* | 554 | 610.4 | 1.23x |
| 1 x 16 x 1024 x 128 | 16.6* | 260 | 20.9 | 1.26x | 18.5* | 464 | 20.4 | 1.10x |
| 1 x 8 x 1024 x 64 | 13.1 | 82 | 15.1 | 1.15x | 13.6 | 158 | 14.7 | 1.09x |
| 1 x 9 x 2048 x 64 | 32.5 | 149 | 27.2 | 0.84x | 34.9 | 277 | 42.1 | 1.21x |
| 1 x 1 x 32768 x 64 | 445.8 | 308 | 432.4 | 0.97x | 440.3 | 624 | 567.0 | 1.29x |

The last two rows are the slowest found among some 50 sizes of 1k to 32k: at d = 64 four groups begin where tiles of
128 rows exceed the multiprocessors, and then half of these idle. The judge's search scores are lower, 1.172 (`gqa`) and
1.156 (`attention_full`): it times candidates without rests, when the power limit lowers the clock, and baselines with.

Lengths 1 to 3333 with 1 to 8 query heads a head of keys, and scores up to 30 times as large, were compared with
float64: errors as those of SDPA, and equal bits in every repetition. At d = 128 the tensor cores work 88 % of the
cycles, at a clock that the power limit lowers; at d = 64 they and the special-function units are busy half of the time.

Dead ends
---------
* Until 2026-11-28 a rounded shift of scores near 1e10 made whole rows NaN: the judge found one row of a million.
* A cubic for one in 4, 8 or 16 exponentials: 13, 6 and 4 % slower at d = 64; in 8: 6 % at d = 128.
* Blocks of 128 keys: 4 % slower at d = 128, 11 to 14 % at d = 64 with two or three groups.
* Scores one block ahead at d = 64 with two or three groups: 5 to 8 % slower than four groups without, once all
  multiprocessors have work. Four groups where tiles are few: 0.7 of cuDNN.
* Three groups at d = 128 with blocks of 64: 9 % slower. 16 heads at a time at d = 128: 4 to 8 % slower in many turns,
  though loads then differ by 1 % instead of 3.
* Issuing the product with values only after scores are there: 1 % faster at d = 64, 10 % slower at d = 128.
* Output staged in the queries' buffer, to have one slot more: no faster, and wrong beside `again`.
* Two programs a multiprocessor with two groups each: 104 registers a thread do not suffice (C7512).
"""

import functools
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
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Names of Triton 3.9, or of 3.6.
warp_group_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

settings = {
    # by d, and whether all tiles of 128 rows run at once: consumer warp groups, their registers, slots of keys and
    # values, buffers of queries, queries in registers, scores one block ahead
    (64, False): {"GROUPS": 4, "REGS": 112, "SLOTS": 4, "QBUF": 2, "QREG": False, "AHEAD": False},
    (64, True): {"GROUPS": 2, "REGS": 240, "SLOTS": 8, "QBUF": 1, "QREG": True, "AHEAD": True},
    (128, False): {"GROUPS": 2, "REGS": 240, "SLOTS": 5, "QBUF": 1, "QREG": True, "AHEAD": True},
    (128, True): {"GROUPS": 2, "REGS": 240, "SLOTS": 5, "QBUF": 1, "QREG": True, "AHEAD": True},
}
ROWS = gl.constexpr(64)  # of queries, a warp group
KEYS = gl.constexpr(64)  # a block
LEAST = gl.constexpr(-3.0e38)  # of a maximum, so that no difference of maxima is NaN
MOST_PARTS = 64  # that share a tile
FAR = gl.constexpr(1.8e19)  # 2 ** 64: sums of exponentials from 1 / FAR to here are trusted


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def log2(x):
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def place(
    turn, turns, parts, turns_a, turns_b, turns_c, turns_d, heads, row_tiles, at_once, CAUSAL: gl.constexpr
):  # fmt: skip
    """Whether this program has a tile in `turn`, the tile's head and row, its position in the turn, its sharers.

    Tiles are listed one group of heads after the other, the longest rows of a group first. Each turn deals the next
    gl.num_programs of them, in an order that `schedule` chose: rotated, and reversed or not (7 bits a turn). Without a
    mask, `parts` programs share each tile of the last turn: each takes a part of the keys.
    """
    programs = gl.num_programs(0)
    word = turn // 4 % 4
    codes = gl.where(word < 2, gl.where(word == 0, turns_a, turns_b), gl.where(word == 2, turns_c, turns_d))
    code = (codes >> (turn % 4 * 7)) & 127
    position = (gl.program_id(0) + (code & 63) * 4) % programs
    position = gl.where(code >= 64, programs - 1 - position, position)
    index = turn * programs + position
    sharers = gl.to_tensor(1)
    if not CAUSAL:
        sharers = gl.where(turn == turns - 1, parts, 1)
        index = turn * programs + position // sharers
    group = index // (at_once * row_tiles)
    inner = index - group * (at_once * row_tiles)
    wide = gl.minimum(at_once, heads - group * at_once)
    return (
        index < heads * row_tiles, group * at_once + inner % wide, row_tiles - 1 - inner // wide, position, sharers
    )  # fmt: skip


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    """The slot after `slot`, and the parity of its barriers."""
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def part_of(blocks, position, sharers):
    """The first block of keys of this program's part of a tile, and how many it has."""
    part = position % sharers
    start = blocks * part // sharers
    return start, blocks * (part + 1) // sharers - start


@gluon.jit
def produce(
    q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, full, empty,
    length, heads, row_tiles, at_once, turns, parts, turns_a, turns_b, turns_c, turns_d,
    GROUPS: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr,
    SHARE: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """One warp: loads queries of each group, then blocks of keys from the last to the first, values one slot later."""
    slot = 0
    phase = 0
    for turn in range(turns):
        real, head, row, position, sharers = place(
            turn, turns, parts, turns_a, turns_b, turns_c, turns_d, heads, row_tiles, at_once, CAUSAL
        )
        if real:
            blocks = gl.cdiv(length, KEYS)
            start = gl.to_tensor(0)
            if CAUSAL:
                blocks = gl.minimum(blocks, gl.cdiv((row + 1) * (GROUPS * ROWS), KEYS))
            else:
                start, blocks = part_of(blocks, position, sharers)
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
                one = (j == 0) | (j == blocks)
                mbarrier.expect(full.index(slot), 2 * KEYS * D * 2, pred=one == 0)
                mbarrier.expect(full.index(slot), KEYS * D * 2, pred=one)
                if j < blocks:
                    load_tile(
                        k_desc, [head // SHARE, (start + blocks - 1 - j) * KEYS, 0], full.index(slot),
                        k_smem.index(slot).reshape([1, KEYS, D]),
                    )  # fmt: skip
                if j > 0:
                    load_tile(
                        v_desc, [head // SHARE, (start + blocks - j) * KEYS, 0], full.index(slot),
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
    k_desc, v_desc, q, buffer, slow, head, first_row, start, blocks, length, scale,
    D: gl.constexpr, CAUSAL: gl.constexpr, S_MMA: gl.constexpr, O_MMA: gl.constexpr,
):  # fmt: skip
    """A group's rows anew with a maximum that follows the scores, one block at a time through `buffer`."""
    no_scores = gl.zeros([ROWS, KEYS], gl.float32, S_MMA)
    m = gl.full([ROWS], LEAST, gl.float32, gl.SliceLayout(1, S_MMA))
    sums = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_MMA))
    o = gl.zeros([ROWS, D], gl.float32, O_MMA)
    for j in range(start, start + blocks):
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
        alpha = exp2((m - m_new) * scale)  # not m * scale - m_new * scale: of scores near 1e10 that is off by 1000
        e = exp2((s - m_new[:, None]) * scale)
        sums = sums * alpha + gl.sum(e, axis=1)
        m = m_new
        p = gl.convert_layout(e.to(k_desc.dtype), gl.DotOperandLayout(0, O_MMA, 2))
        o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_MMA))[:, None]
        mbarrier.wait(slow, 1)
        o = warpgroup_mma(p, buffer, o)
    warp_group_barrier()
    return o, gl.convert_layout(sums, gl.SliceLayout(1, O_MMA)), m * scale


@gluon.jit
def consume(
    o_desc, part_desc, lse_ptr, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty, full, empty,
    length, heads, row_tiles, at_once, turns, parts, scale, turns_a, turns_b, turns_c, turns_d,
    G: gl.constexpr, GROUPS: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr,
    QREG: gl.constexpr, AHEAD: gl.constexpr, SHARE: gl.constexpr, CAUSAL: gl.constexpr,
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
        real, head, row, position, sharers = place(
            turn, turns, parts, turns_a, turns_b, turns_c, turns_d, heads, row_tiles, at_once, CAUSAL
        )
        if real:
            first_row = row * (GROUPS * ROWS) + G * ROWS
            blocks = gl.cdiv(length, KEYS)
            start = gl.to_tensor(0)
            if CAUSAL:
                loaded = gl.minimum(blocks, gl.cdiv((row + 1) * (GROUPS * ROWS), KEYS))
                blocks = gl.minimum(blocks, gl.cdiv(first_row + ROWS, KEYS))
                for _ in range(loaded - blocks):  # blocks for the groups below this one
                    mbarrier.wait(full.index(slot), phase)
                    mbarrier.arrive(empty.index(slot), count=1)
                    slot, phase = following(slot, phase, SLOTS)
            else:
                start, blocks = part_of(blocks, position, sharers)
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
            s = masked(s, first_row, (start + blocks - 1) * KEYS, length, CAUSAL, S_MMA)
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
            far = gl.max(gl.where((total <= FAR) & (total >= 1.0 / FAR), 0, 1), axis=0)
            o = warpgroup_mma_wait(0, deps=[ot])
            mbarrier.arrive(empty.index(next_slot), count=1)
            slot, phase = following(next_slot, next_phase, SLOTS)
            tma.store_wait(0)
            if far > 0:
                o, total, shift = again(
                    k_desc, v_desc, q, out, slows.index(G), head // SHARE, first_row, start, blocks, length, scale,
                    D, CAUSAL, S_MMA, O_MMA,
                )  # fmt: skip
            out.store((o * (1.0 / total)[:, None]).to(dtype))
            fence_async_shared()
            if CAUSAL:  # noqa: SIM114  (decided here, not in the IR, where Triton 3.6 fails on what is then not used)
                store_tile(o_desc, [head, first_row, 0], out.reshape([1, ROWS, D]))
            elif sharers == 1:
                store_tile(o_desc, [head, first_row, 0], out.reshape([1, ROWS, D]))
            else:
                store_tile(part_desc, [position, G * ROWS, 0], out.reshape([1, ROWS, D]))
                lse = gl.convert_layout(shift, gl.SliceLayout(1, O_MMA), assert_trivial=True) + log2(total)
                rows = gl.arange(0, ROWS, gl.SliceLayout(1, O_MMA))
                gl.store(lse_ptr + (position * GROUPS + G) * ROWS + rows, lse)
            if not QREG:
                mbarrier.arrive(q_empty.index(at), count=1)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "length", "heads", "row_tiles", "at_once", "turns", "parts", "turns_a", "turns_b", "turns_c", "turns_d",
    ]
)  # fmt: skip
def attention_kernel(
    q_desc, k_desc, v_desc, o_desc, part_desc, lse_ptr, length, heads, row_tiles, at_once, turns, parts, scale,
    turns_a, turns_b, turns_c, turns_d,
    D: gl.constexpr, GROUPS: gl.constexpr, REGS: gl.constexpr, SLOTS: gl.constexpr, QBUF: gl.constexpr,
    SHARE: gl.constexpr, QREG: gl.constexpr, AHEAD: gl.constexpr, CAUSAL: gl.constexpr,
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
                o_desc, part_desc, lse_ptr, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty,
                full, empty, length, heads, row_tiles, at_once, turns, parts, scale, turns_a, turns_b, turns_c, turns_d,
                0, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, SHARE, CAUSAL,
            )),
            (consume, (
                o_desc, part_desc, lse_ptr, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty,
                full, empty, length, heads, row_tiles, at_once, turns, parts, scale, turns_a, turns_b, turns_c, turns_d,
                1, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, SHARE, CAUSAL,
            )),
            (produce, (
                q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, full, empty,
                length, heads, row_tiles, at_once, turns, parts, turns_a, turns_b, turns_c, turns_d,
                GROUPS, D, SLOTS, QBUF, SHARE, CAUSAL,
            )),
        ], [4, 1], [REGS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (
                o_desc, part_desc, lse_ptr, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty,
                full, empty, length, heads, row_tiles, at_once, turns, parts, scale, turns_a, turns_b, turns_c, turns_d,
                0, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, SHARE, CAUSAL,
            )),
            (consume, (
                o_desc, part_desc, lse_ptr, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty,
                full, empty, length, heads, row_tiles, at_once, turns, parts, scale, turns_a, turns_b, turns_c, turns_d,
                1, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, SHARE, CAUSAL,
            )),
            (consume, (
                o_desc, part_desc, lse_ptr, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty,
                full, empty, length, heads, row_tiles, at_once, turns, parts, scale, turns_a, turns_b, turns_c, turns_d,
                2, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, SHARE, CAUSAL,
            )),
            (consume, (
                o_desc, part_desc, lse_ptr, k_desc, v_desc, q_smem, k_smem, v_smem, o_smem, slows, q_full, q_empty,
                full, empty, length, heads, row_tiles, at_once, turns, parts, scale, turns_a, turns_b, turns_c, turns_d,
                3, GROUPS, D, SLOTS, QBUF, QREG, AHEAD, SHARE, CAUSAL,
            )),
            (produce, (
                q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, full, empty,
                length, heads, row_tiles, at_once, turns, parts, turns_a, turns_b, turns_c, turns_d,
                GROUPS, D, SLOTS, QBUF, SHARE, CAUSAL,
            )),
        ], [4, 4, 4, 1], [REGS, REGS, REGS, 24])  # fmt: skip


@triton.jit
def join_kernel(
    part_ptr, lse_ptr, o_ptr, first, parts, length, heads, row_tiles, at_once,
    D: tl.constexpr, TALL: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One row of a tile that `parts` programs shared: the mean of their results, weighted by their sums."""
    tile = tl.program_id(0) // TALL
    row = tl.program_id(0) % TALL
    index = first + tile
    group = index // (at_once * row_tiles)
    inner = index - group * (at_once * row_tiles)
    wide = min(at_once, heads - group * at_once)
    to = (row_tiles - 1 - inner // wide) * TALL + row
    part = tl.arange(0, MOST)
    d = tl.arange(0, D)
    at = (tile * parts + part) * TALL + row
    lse = tl.load(lse_ptr + at, mask=part < parts, other=float("-inf"))
    o = tl.load(part_ptr + at[:, None] * D + d[None, :], mask=(part < parts)[:, None], other=0.0).to(tl.float32)
    weight = tl.exp2(lse - tl.max(lse, axis=0))
    o = tl.sum(o * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    offset = (group * at_once + inner % wide).to(tl.int64) * length + to
    tl.store(o_ptr + offset * D + d, o.to(o_ptr.dtype.element_ty), mask=to < length)


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
    rounds = [work[turn * programs : (turn + 1) * programs] for turn in range(turns)]
    alike = [[sum(column) for column in zip(*rounds[place::16], strict=True)] for place in range(min(turns, 16))]

    def dealt(place, code):
        shift = (code & 63) * 4
        turned = alike[place][::-1] if code >= 64 else alike[place]
        return turned[shift:] + turned[:shift]

    codes = [place % 2 * 64 for place in range(len(alike))]
    loads = [sum(values) for values in zip(*(dealt(place, code) for place, code in enumerate(codes)), strict=True)]
    for _ in range(6):
        before = list(codes)
        for place, code in enumerate(codes):
            rest = [load - own for load, own in zip(loads, dealt(place, code), strict=True)]
            options = []
            for other in [code for code in range(128) if (code & 63) * 4 < programs]:
                sums = [a + b for a, b in zip(rest, dealt(place, other), strict=True)]
                options.append((sum(value**8 for value in sums), other, sums))
            _, codes[place], loads = min(options)
        if codes == before:
            break
    return turns, [sum(code << 7 * n for n, code in enumerate(codes[i : i + 4])) | 1 << 29 for i in (0, 4, 8, 12)]


def attention(q, k, v, causal):
    """softmax(q @ k.T / sqrt(d)) @ v, a head at a time; each is (batch, heads, length, d).

    Where k and v have fewer heads than q, as many consecutive heads of q share one.
    """
    batch, count, length, d = q.shape
    share = count // k.shape[1]
    fits = k.shape == v.shape == (batch, k.shape[1], length, d) and share * k.shape[1] == count
    if d not in (64, 128) or q.dtype != torch.bfloat16 or not fits:
        raise ValueError(
            "attention takes bfloat16 q, k and v of one shape (batch, heads, length, 64 or 128); "
            "k and v may have fewer heads, of which q's are a multiple"
        )
    heads, blocks = batch * count, -(-length // KEYS.value)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    chosen = settings[d, heads * -(-length // 128) <= processors]
    tall = chosen["GROUPS"] * ROWS.value
    row_tiles = -(-length // tall)
    first, last = heads * row_tiles // processors * processors, heads * row_tiles % processors
    parts = 1
    if last and not causal:
        parts = max(1, min(processors // last, blocks // 2, MOST_PARTS))
        parts = parts if blocks - blocks // parts > 12 else 1  # joining parts takes as long as 5 to 10 blocks
    programs = processors if parts > 1 else min(processors, heads * row_tiles)
    if d == 64:
        at_once = 2 * share
    elif causal and heads * row_tiles >= 16 * processors:  # many turns: balanced anyway, and less traffic saves power
        at_once = share
    else:
        at_once = share * max(1, min(16 // share, (1 << 23) // (length * d)))
    turns, words = schedule(programs, heads, row_tiles, at_once, causal)
    layout = gl.NVMMASharedLayout.get_default_for([1, KEYS.value, d], gl.bfloat16)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    shared = last * parts if parts > 1 else 1
    part = torch.empty(shared, tall, d, dtype=q.dtype, device=q.device)
    lse = torch.empty(shared, tall, dtype=torch.float32, device=q.device)
    flat = (*(x.flatten(0, 1) for x in (q, k, v, o)), part)
    descriptors = [TensorDescriptor.from_tensor(x, [1, KEYS.value, d], layout) for x in flat]
    scale = d**-0.5 * math.log2(math.e)
    attention_kernel[(programs,)](
        *descriptors, lse, length, heads, row_tiles, at_once, turns, parts, scale, *words,
        D=d, SHARE=share, CAUSAL=causal, num_warps=4, **chosen,
    )  # fmt: skip
    if parts > 1:
        join_kernel[(last * tall,)](
            part, lse, o, first, parts, length, heads, row_tiles, at_once,
            D=d, TALL=tall, MOST=triton.next_power_of_2(parts), num_warps=4,
        )  # fmt: skip
    return o


def run(q, k, v, causal=True):
    return attention(q, k, v, bool(causal))


def full(q, k, v):
    return attention(q, k, v, False)
