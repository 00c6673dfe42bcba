"""Attention of N responses over one prompt, backward, bfloat16, heads of 64 or 128, from q, keys, values and do alone.

In Gluon (sm_90). For inputs as in the task shared_prompt_backward: any lengths from 1, query heads a multiple of key
heads. No atomics: equal bits in every run.

Mechanism
---------
Two passes as in the champion of attention_backward, with its way of doing without a forward pass: `rows_kernel` (dq,
and of each row the log-sum-exp and delta), `keys_kernel` (dk, dv). One program a multiprocessor: a warp loads by TMA,
two warp groups of 64 rows (or keys) each compute. Eight products of blocks, none of them for a copy of the prompt: 1.02
to 1.09 of the pairs of rows and keys, by counting blocks.

* Rows are positions times query heads that share a key head (TMA box of positions x heads). A response's rows go over
  its own keys first, whose diagonal block gives shift and c, then over the prompt's. The prompt's last partial block
  has no mask: TMA fills with zeros, whose weights are taken off both sums.
* The prompt's keys see all rows that follow as one dimension: no responses' ends, no masks. A response's own keys read
  sums laid out by response, padded to whole blocks with a log-sum-exp of infinity, so their ends need no masks either.
* Keys read the same block of rows of all their query heads in turn; blocks on the diagonal come last. In every other
  turn of a program the rest goes upwards, else downwards, so that programs that run together read the same rows.
* What a tile owns is handed back before its results are written, so the next tile's loads overlap with that.
* The host knows the lengths: it lists long tiles two heads of keys at a time, then the short ones of all heads, and
  gives each to the program with the least work (tables: about 30 KB). Where few key heads would leave programs idle,
  query heads of a tile of the prompt's keys become up to four parts, and `add_kernel` adds their float32 sums.
* `again_kernel` and `keys_again_kernel` compute anew what the shift or c did not fit, by the criteria of
  attention_backward, and blocks of responses whose first row has fewer than 64 keys before it.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 35, 2026-11-30. N x prompt + response, heads (key heads) x d. Baselines:
cuDNN on copies of the prompt, three parts by FlashAttention, FlexAttention. The last three cases are hidden.

| case | us | fastest baseline us | |
| --- | --- | --- | --- |
| 16 x 8192 + 1024, 32 (8) x 128 | 16551 | 26931 flex | 1.63x |
| 32 x 8192 + 512 ragged, 32 (8) x 128 | 16144 | 35768 flex | 2.22x |
| 16 x 2048 + 1024, 32 (8) x 128 | 3981 | 9370 flex | 2.35x |
| 8 x 16384 + 1024 ragged, 32 (8) x 128 | 22864 | 49444 flex | 2.16x |
| 7 x 4097 + 2048 ragged, 16 (4) x 64 | 2060 | 6396 three parts | 3.10x |

Of an earlier form (heads listed together by eight, four slots in both kernels; 17001 us in the first case), a profiler
saw 8404 us of `keys_kernel`, 7245 us of `rows_kernel` and 85 us of `again_kernel`.

Dead ends
---------
* Results in the buffers of what a tile owns, without own ones, and five slots: 17330 and 16964 us, instead of
  the earlier form's 17001 and 16627.
* Tiles of keys listed head by head, short ones with long ones: the busiest program has 1.08 to 1.38 of the mean.
* By 1 %: three slots instead of four in `keys_kernel`; rows listed one head at a time.
"""

import functools
import heapq
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

load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

# Knobs: slots of the ring of each kernel; heads of keys whose long tiles are listed together.
ROW_SLOTS_128 = 3
ROW_SLOTS_64 = 6
KEY_SLOTS_128 = 4
KEY_SLOTS_64 = 6
TOGETHER = 4

GROUPS = gl.constexpr(2)  # warp groups that compute
ROWS = gl.constexpr(64)  # a warp group
STEP = gl.constexpr(64)  # a block of the loop
FAR = gl.constexpr(1.8e19)  # 2 ** 64: sums of exponentials from 1 / FAR to here are trusted
SHARP = gl.constexpr(0.5)  # the largest weight of 16 keys, beyond the first block, that `rows_kernel` takes
NEAR = gl.constexpr(65536.0)  # 2 ** 16: of shifts up to here, in float32, a log-sum-exp holds weights to 2 ** -9
LEAST = gl.constexpr(-3.0e38)


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def log2(x):
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def following(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def listed(order_ptr):
    """Where this program's list of tiles begins, and its length."""
    begin = gl.load(order_ptr + gl.program_id(0)).to(gl.int32)
    end = gl.load(order_ptr + gl.program_id(0) + 1).to(gl.int32)
    return order_ptr + gl.num_programs(0) + 1 + begin, end - begin


@gluon.jit
def entry(tiles_ptr, number, WORDS: gl.constexpr):
    """Of a tile: its first row, that row's place in its segment, its rows, whether it is the last, its padded row."""
    at = tiles_ptr + number * WORDS
    word = gl.load(at + 1)
    return gl.load(at), word >> 8, (word & 127) + 1, (word >> 7) & 1, gl.load(at + 2)


@gluon.jit
def partial_sums(e):
    """Sums of rows in each thread, four a row: the threads add them up at the end."""
    return gl.sum(gl.sum(e.reshape([ROWS, STEP // 8, 4, 2]), axis=3), axis=1)


@gluon.jit
def produce_keys(
    q_desc, do_desc, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, do_smem, k_smem, v_smem, q_full, q_empty,
    full, empty, tiles_ptr, order_ptr, tiles, prompt,
    D: gl.constexpr, SLOTS: gl.constexpr, PACK: gl.constexpr, SHARE: gl.constexpr,
):  # fmt: skip
    """One warp: loads queries and output gradients of each group, then blocks of keys and values."""
    TALL: gl.constexpr = ROWS // PACK
    slot = 0
    phase = 0
    list_ptr, turns = listed(order_ptr)
    word = gl.load(list_ptr).to(gl.int32)
    for turn in range(turns):
        row, place, count, _, _ = entry(tiles_ptr, word % tiles, 3)
        heads = word // tiles
        word = gl.load(list_ptr + turn + 1).to(gl.int32)
        shared = row < prompt
        base = row - place - prompt
        head = heads * PACK // SHARE
        own = (place + count - 1) // STEP
        blocks = gl.where(shared, 0, gl.cdiv(prompt, STEP))
        for g in gl.static_range(GROUPS):
            mbarrier.wait(q_empty.index(g), (turn + 1) & 1)
            mbarrier.expect(q_full.index(g), 2 * ROWS * D * 2)
            at = row + g * TALL
            load_tile(q_desc, [at, heads * PACK, 0], q_full.index(g), q_smem.index(g).reshape([TALL, PACK, D]))
            load_tile(do_desc, [at, heads * PACK, 0], q_full.index(g), do_smem.index(g).reshape([TALL, PACK, D]))
        for j in range(own + 1):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 2 * STEP * D * 2)
            to_k = k_smem.index(slot).reshape([STEP, 1, D])
            to_v = v_smem.index(slot).reshape([STEP, 1, D])
            at = (own - j) * STEP
            if shared:
                load_tile(k_ctx_desc, [at, head, 0], full.index(slot), to_k)
                load_tile(v_ctx_desc, [at, head, 0], full.index(slot), to_v)
            else:
                load_tile(k_dec_desc, [base + at, head, 0], full.index(slot), to_k)
                load_tile(v_dec_desc, [base + at, head, 0], full.index(slot), to_v)
            slot, phase = following(slot, phase, SLOTS)
        for j in range(blocks):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 2 * STEP * D * 2)
            to_k = k_smem.index(slot).reshape([STEP, 1, D])
            to_v = v_smem.index(slot).reshape([STEP, 1, D])
            load_tile(k_ctx_desc, [j * STEP, head, 0], full.index(slot), to_k)
            load_tile(v_ctx_desc, [j * STEP, head, 0], full.index(slot), to_v)
            slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def consume_keys(
    dq_desc, dq_ptr, lse_ptr, delta_ptr, base_ptr, padded_ptr, padded_delta_ptr, far_ptr, any_ptr, q_smem, do_smem,
    dq_smem, k_smem, v_smem, q_full, q_empty, full, empty, tiles_ptr, order_ptr, tiles, prompt, pitch, padded_rows,
    all_heads, scale, scale_log2,
    G: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QREG: gl.constexpr, PACK: gl.constexpr,
):  # fmt: skip
    """Warp group G: 64 rows of each tile, which are ROWS // PACK rows of PACK heads."""
    S_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    O_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    Q_IN: gl.constexpr = gl.DotOperandLayout(0, S_MMA, 2)
    P_IN: gl.constexpr = gl.DotOperandLayout(0, O_MMA, 2)
    TALL: gl.constexpr = ROWS // PACK
    dtype: gl.constexpr = dq_desc.dtype
    none = gl.zeros([ROWS, STEP], gl.float32, S_MMA)
    slot = 0
    phase = 0
    some = 0
    list_ptr, turns = listed(order_ptr)
    word = gl.load(list_ptr).to(gl.int32)
    for turn in range(turns):
        tile = word % tiles
        tile_row, tile_place, tile_count, last, tile_padded = entry(tiles_ptr, tile, 3)
        heads = word // tiles
        word = gl.load(list_ptr + turn + 1).to(gl.int32)
        shared = tile_row < prompt
        row = tile_row + G * TALL
        place = tile_place + G * TALL
        count = tile_count - G * TALL  # rows of this group; more than TALL where groups follow
        own = (tile_place + tile_count - 1) // STEP  # of the tile
        blocks = own + 1 + gl.where(shared, 0, gl.cdiv(prompt, STEP))
        skipped = own - place // STEP  # blocks for the groups below this one
        if count <= 0:
            skipped = blocks
        for _ in range(skipped):
            mbarrier.wait(full.index(slot), phase)
            mbarrier.arrive(empty.index(slot), count=1)
            slot, phase = following(slot, phase, SLOTS)
        mbarrier.wait(q_full.index(G), turn & 1)
        if count <= 0:
            mbarrier.arrive(q_empty.index(G), count=1)
            gl.store(far_ptr + (heads * tiles + tile) * GROUPS + G, 0)
        else:
            if QREG:
                q = q_smem.index(G).load(Q_IN)
                do = do_smem.index(G).load(Q_IN)
                mbarrier.arrive(q_empty.index(G), count=1)
            else:
                q = q_smem.index(G)
                do = do_smem.index(G)

            mbarrier.wait(full.index(slot), phase)
            st = warpgroup_mma(q, k_smem.index(slot).permute((1, 0)), none, use_acc=False, is_async=True)
            dt = warpgroup_mma(do, v_smem.index(slot).permute((1, 0)), none, use_acc=False, is_async=True)
            s, dp = warpgroup_mma_wait(0, deps=[st, dt])
            rows = place % STEP + gl.arange(0, ROWS, gl.SliceLayout(1, S_MMA)) // PACK
            keys = gl.arange(0, STEP, gl.SliceLayout(0, S_MMA))
            seen = keys[None, :] <= rows[:, None]
            s = gl.where(seen, s, float("-inf"))
            dp = gl.where(seen, dp, 0.0)
            shift = gl.maximum(gl.max(s, axis=1), LEAST) * scale_log2
            e = exp2(s * scale_log2 - shift[:, None])
            c = gl.sum(e * dp, axis=1) / gl.sum(e, axis=1)
            g = e * (dp - c[:, None])
            l_sums = partial_sums(e)
            most = gl.zeros_like(l_sums)
            g_sums = partial_sums(g)
            p = gl.convert_layout(e.to(dtype), P_IN, assert_trivial=True)
            ds = gl.convert_layout(g.to(dtype), P_IN, assert_trivial=True)
            no = gl.zeros([ROWS, D], gl.float32, O_MMA)
            bt = warpgroup_mma(p, k_smem.index(slot), no, is_async=True)
            at = warpgroup_mma(ds, k_smem.index(slot), no, is_async=True)
            b, p = warpgroup_mma_wait(1, deps=[bt, p])
            for _ in range(blocks - skipped - 1):
                before = slot
                slot, phase = following(slot, phase, SLOTS)
                mbarrier.wait(full.index(slot), phase)
                st = warpgroup_mma(q, k_smem.index(slot).permute((1, 0)), none, use_acc=False, is_async=True)
                dt = warpgroup_mma(do, v_smem.index(slot).permute((1, 0)), none, use_acc=False, is_async=True)
                s, a, ds = warpgroup_mma_wait(1, deps=[st, at, ds])
                mbarrier.arrive(empty.index(before), count=1)
                e = exp2(s * scale_log2 - shift[:, None])
                added = partial_sums(e)
                l_sums += added
                most = gl.maximum(most, added)
                p = gl.convert_layout(e.to(dtype), P_IN, assert_trivial=True)
                bt = warpgroup_mma(p, k_smem.index(slot), b, is_async=True)
                dp = warpgroup_mma_wait(1, deps=[dt])
                g = e * (dp - c[:, None])
                g_sums += partial_sums(g)
                ds = gl.convert_layout(g.to(dtype), P_IN, assert_trivial=True)
                at = warpgroup_mma(ds, k_smem.index(slot), a, is_async=True)
                b, p = warpgroup_mma_wait(1, deps=[bt, p])
            if not QREG:
                mbarrier.arrive(q_empty.index(G), count=1)
            a, ds = warpgroup_mma_wait(0, deps=[at, ds])
            mbarrier.arrive(empty.index(slot), count=1)
            slot, phase = following(slot, phase, SLOTS)
            total = gl.convert_layout(gl.sum(l_sums, axis=1), gl.SliceLayout(1, O_MMA), assert_trivial=True)
            total_g = gl.convert_layout(gl.sum(g_sums, axis=1), gl.SliceLayout(1, O_MMA), assert_trivial=True)
            shift = gl.convert_layout(shift, gl.SliceLayout(1, O_MMA), assert_trivial=True)
            c = gl.convert_layout(c, gl.SliceLayout(1, O_MMA), assert_trivial=True)
            most = gl.convert_layout(gl.max(most, axis=1), gl.SliceLayout(1, O_MMA), assert_trivial=True)
            # Keys beyond the prompt's last are zeros, as are their scores and values: their weights go.
            zeros = gl.where(shared, 0, -prompt & (STEP - 1))
            off = gl.where(zeros > 0, zeros.to(gl.float32) * exp2(-shift), 0.0)
            total -= off
            total_g += off * c
            near = (shift <= NEAR) & (shift >= -NEAR) & (total <= FAR) & (total >= 1.0 / FAR)
            near = near & (most <= total * SHARP) & (total >= off)
            inner = gl.arange(0, ROWS, gl.SliceLayout(1, O_MMA))
            valid = inner < count * PACK
            far = gl.max(gl.where(near | (valid == 0), 0, 1), axis=0)
            far = gl.where((shared == 0) & (place + prompt < STEP), 1, far)  # of few keys each has much weight
            some = gl.maximum(some, far)
            mean = total_g / total
            dq = ((a - b * mean[:, None]) * (scale / total)[:, None]).to(dtype)
            head = heads * PACK + inner % PACK
            number_of_row = row + inner // PACK
            lse = shift + log2(total)
            to = head * pitch + number_of_row
            gl.store(lse_ptr + to, lse, mask=valid)
            gl.store(delta_ptr + to, c + mean, mask=valid)
            gl.store(base_ptr + to, gl.zeros_like(lse), mask=valid)
            to = head * padded_rows + tile_padded + G * TALL + inner // PACK
            gl.store(padded_ptr + to, gl.where(valid, lse, float("inf")))
            gl.store(padded_delta_ptr + to, gl.where(valid, c + mean, 0.0))
            if (count <= TALL) & (last > 0):  # the segment's last: rows up to a whole block of 64 get no weight
                for n in gl.static_range(1, PACK):
                    wanted = place + n * TALL + inner // PACK < (own + 1) * STEP
                    gl.store(padded_ptr + to + n * TALL, gl.zeros_like(lse) + float("inf"), mask=wanted)
                    gl.store(padded_delta_ptr + to + n * TALL, gl.zeros_like(lse), mask=wanted)
            gl.store(far_ptr + (heads * tiles + tile) * GROUPS + G, far)
            if count >= TALL:
                tma.store_wait(0)
                dq_smem.index(G).store(dq)
                fence_async_shared()
                store_tile(dq_desc, [row, heads * PACK, 0], dq_smem.index(G).reshape([TALL, PACK, D]))
            else:  # the rows that follow belong to others
                dims = gl.arange(0, D, gl.SliceLayout(0, O_MMA))
                at_row = (number_of_row.to(gl.int64) * all_heads + head) * D
                gl.store(dq_ptr + at_row[:, None] + dims[None, :], dq, mask=valid[:, None])
    gl.store(any_ptr + gl.program_id(0) * GROUPS + G, some)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["tiles", "prompt", "pitch", "padded_rows", "all_heads"])
def rows_kernel(
    q_desc, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, do_desc, dq_desc, dq_ptr, lse_ptr, delta_ptr, base_ptr,
    padded_ptr, padded_delta_ptr, far_ptr, any_ptr, tiles_ptr, order_ptr, tiles, prompt, pitch, padded_rows,
    all_heads, scale, scale_log2,
    D: gl.constexpr, SLOTS: gl.constexpr, QREG: gl.constexpr, PACK: gl.constexpr, SHARE: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q_desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([STEP, D], dtype)
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    q_smem = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], tile)
    do_smem = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], tile)
    dq_smem = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], tile)
    k_smem = gl.allocate_shared_memory(dtype, [SLOTS, STEP, D], tile)
    v_smem = gl.allocate_shared_memory(dtype, [SLOTS, STEP, D], tile)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barriers)
    q_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barriers)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    gl.warp_specialize([
        (consume_keys, (
            dq_desc, dq_ptr, lse_ptr, delta_ptr, base_ptr, padded_ptr, padded_delta_ptr, far_ptr, any_ptr, q_smem,
            do_smem, dq_smem, k_smem, v_smem, q_full, q_empty, full, empty, tiles_ptr, order_ptr, tiles, prompt, pitch,
            padded_rows, all_heads, scale, scale_log2, 0, D, SLOTS, QREG, PACK,
        )),
        (consume_keys, (
            dq_desc, dq_ptr, lse_ptr, delta_ptr, base_ptr, padded_ptr, padded_delta_ptr, far_ptr, any_ptr, q_smem,
            do_smem, dq_smem, k_smem, v_smem, q_full, q_empty, full, empty, tiles_ptr, order_ptr, tiles, prompt, pitch,
            padded_rows, all_heads, scale, scale_log2, 1, D, SLOTS, QREG, PACK,
        )),
        (produce_keys, (
            q_desc, do_desc, k_ctx_desc, v_ctx_desc, k_dec_desc, v_dec_desc, q_smem, do_smem, k_smem, v_smem, q_full,
            q_empty, full, empty, tiles_ptr, order_ptr, tiles, prompt, D, SLOTS, PACK, SHARE,
        )),
    ], [4, 1], [240, 24])  # fmt: skip


@gluon.jit
def produce_rows(
    q_desc, do_desc, lse_desc, delta_desc, padded_desc, padded_delta_desc, k_ctx_desc, v_ctx_desc, k_dec_desc,
    v_dec_desc, q_smem, do_smem, stats_smem, k_smem, v_smem, k_full, k_empty, full, empty, tiles_ptr, order_ptr, tiles,
    prompt, share, parts, D: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    """One warp: loads keys and values of each group, then blocks of queries and output gradients, head beside head.

    Blocks that have a mask come last. Programs that begin together take the others downwards, from where all end; those
    of the next turn, which began as much earlier as there is less to do, upwards: so they read the same rows together.
    """
    slot = 0
    phase = 0
    list_ptr, turns = listed(order_ptr)
    word = gl.load(list_ptr).to(gl.int32)
    for turn in range(turns):
        first, _, _, _, padded = entry(tiles_ptr, word % tiles, 4)
        end = gl.load(tiles_ptr + word % tiles * 4 + 3)
        key_head = word // tiles // parts
        part = word // tiles % parts
        word = gl.load(list_ptr + turn + 1).to(gl.int32)
        shared = first < prompt
        some = gl.where(shared, share // parts, share)
        first_head = key_head * share + part * some
        for g in gl.static_range(GROUPS):
            mbarrier.wait(k_empty.index(g), (turn + 1) & 1)
            mbarrier.expect(k_full.index(g), 2 * ROWS * D * 2)
            to_k = k_smem.index(g).reshape([ROWS, 1, D])
            to_v = v_smem.index(g).reshape([ROWS, 1, D])
            at = first + g * ROWS
            if shared:
                load_tile(k_ctx_desc, [at, key_head, 0], k_full.index(g), to_k)
                load_tile(v_ctx_desc, [at, key_head, 0], k_full.index(g), to_v)
            else:
                load_tile(k_dec_desc, [at - prompt, key_head, 0], k_full.index(g), to_k)
                load_tile(v_dec_desc, [at - prompt, key_head, 0], k_full.index(g), to_v)
        blocks = gl.cdiv(end - first, STEP)
        for step in range(blocks):
            # From the last block to the first, or the first two at the end.
            upwards = (turn % 2 == 1) & (step < blocks - 2)
            j = gl.where(upwards, step + 2, blocks - 1 - step)
            at = first + j * STEP
            for head in range(first_head, first_head + some):
                mbarrier.wait(empty.index(slot), phase ^ 1)
                mbarrier.expect(full.index(slot), 2 * STEP * D * 2 + 2 * STEP * 4)
                load_tile(q_desc, [at, head, 0], full.index(slot), q_smem.index(slot).reshape([STEP, 1, D]))
                load_tile(do_desc, [at, head, 0], full.index(slot), do_smem.index(slot).reshape([STEP, 1, D]))
                to_lse = stats_smem.index(2 * slot).reshape([1, STEP])
                to_delta = stats_smem.index(2 * slot + 1).reshape([1, STEP])
                if shared:
                    load_tile(lse_desc, [head, at], full.index(slot), to_lse)
                    load_tile(delta_desc, [head, at], full.index(slot), to_delta)
                else:
                    load_tile(padded_desc, [head, padded + j * STEP], full.index(slot), to_lse)
                    load_tile(padded_delta_desc, [head, padded + j * STEP], full.index(slot), to_delta)
                slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def scores(k, v, q_smem, do_smem, none):
    st = warpgroup_mma(k, q_smem.permute((1, 0)), none, use_acc=False, is_async=True)
    dt = warpgroup_mma(v, do_smem.permute((1, 0)), none, use_acc=False, is_async=True)
    return st, dt


@gluon.jit
def sums(
    s, dt, dk, dv, q_smem, do_smem, lse_smem, delta_smem, ahead, scale_log2,
    MASKED: gl.constexpr, S_MMA: gl.constexpr, P_IN: gl.constexpr,
):  # fmt: skip
    """What one block of queries, `ahead` of the keys (MASKED: perhaps by 0), adds to dk and dv, from its scores."""
    dtype: gl.constexpr = q_smem.dtype
    lse = lse_smem.load(gl.SliceLayout(0, S_MMA))
    if MASKED:
        own = gl.arange(0, ROWS, gl.SliceLayout(1, S_MMA))
        queries = gl.arange(0, STEP, gl.SliceLayout(0, S_MMA))
        s = gl.where(own[:, None] <= queries[None, :] + ahead, s, float("-inf"))
    e = exp2(s * scale_log2 - lse[None, :])
    p = gl.convert_layout(e.to(dtype), P_IN, assert_trivial=True)
    vt = warpgroup_mma(p, do_smem, dv, is_async=True)
    delta = delta_smem.load(gl.SliceLayout(0, S_MMA))
    dp = warpgroup_mma_wait(1, deps=[dt])
    g = e * (dp - delta[None, :])
    ds = gl.convert_layout(g.to(dtype), P_IN, assert_trivial=True)
    kt = warpgroup_mma(ds, q_smem, dk, is_async=True)
    return kt, vt, p, ds


@gluon.jit
def consume_rows(
    dk_ctx_desc, dv_ctx_desc, dk_dec_desc, dv_dec_desc, dk_ctx_ptr, dv_ctx_ptr, dk_dec_ptr, dv_dec_ptr, q_smem,
    do_smem, stats_smem, k_smem, v_smem, out_smem, k_full, k_empty, full, empty, tiles_ptr, order_ptr, tiles, prompt,
    share, key_heads, parts, part_ptr, scale, scale_log2,
    G: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr, QREG: gl.constexpr,
):  # fmt: skip
    """Warp group G: 64 keys of each tile, over all rows of its heads that see them."""
    S_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    O_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    Q_IN: gl.constexpr = gl.DotOperandLayout(0, S_MMA, 2)
    P_IN: gl.constexpr = gl.DotOperandLayout(0, O_MMA, 2)
    dtype: gl.constexpr = dk_ctx_desc.dtype
    none = gl.zeros([ROWS, STEP], gl.float32, S_MMA)
    slot = 0
    phase = 0
    list_ptr, turns = listed(order_ptr)
    word = gl.load(list_ptr).to(gl.int32)
    for turn in range(turns):
        first, _, tile_count, _, _ = entry(tiles_ptr, word % tiles, 4)
        end = gl.load(tiles_ptr + word % tiles * 4 + 3)
        key_head = word // tiles // parts
        part = word // tiles % parts
        word = gl.load(list_ptr + turn + 1).to(gl.int32)
        some = gl.where(first < prompt, share // parts, share)
        count = tile_count - G * ROWS  # keys of this group; more than ROWS where groups follow
        blocks = gl.cdiv(end - first, STEP)
        mbarrier.wait(k_full.index(G), turn & 1)
        if count <= 0:
            mbarrier.arrive(k_empty.index(G), count=1)
            for _ in range(blocks * some):
                mbarrier.wait(full.index(slot), phase)
                mbarrier.arrive(empty.index(slot), count=1)
                slot, phase = following(slot, phase, SLOTS)
        else:
            if QREG:
                k = k_smem.index(G).load(Q_IN)
                v = v_smem.index(G).load(Q_IN)
                mbarrier.arrive(k_empty.index(G), count=1)
            else:
                k = k_smem.index(G)
                v = v_smem.index(G)
            dk = gl.zeros([ROWS, D], gl.float32, O_MMA)
            dv = gl.zeros([ROWS, D], gl.float32, O_MMA)
            plain = (blocks - 1 - G) * some  # blocks without a mask
            mbarrier.wait(full.index(slot), phase)
            st, dt = scores(k, v, q_smem.index(slot), do_smem.index(slot), none)
            s = warpgroup_mma_wait(1, deps=[st])
            kt, vt, p, ds = sums(
                s, dt, dk, dv, q_smem.index(slot), do_smem.index(slot), stats_smem.index(2 * slot),
                stats_smem.index(2 * slot + 1), gl.where(plain > 0, STEP, 0), scale_log2, True, S_MMA, P_IN,
            )  # fmt: skip
            dv, p = warpgroup_mma_wait(1, deps=[vt, p])
            for _ in range(plain - 1):
                before = slot
                slot, phase = following(slot, phase, SLOTS)
                mbarrier.wait(full.index(slot), phase)
                st, dt = scores(k, v, q_smem.index(slot), do_smem.index(slot), none)
                s, dk, ds = warpgroup_mma_wait(1, deps=[st, kt, ds])
                mbarrier.arrive(empty.index(before), count=1)
                kt, vt, p, ds = sums(
                    s, dt, dk, dv, q_smem.index(slot), do_smem.index(slot), stats_smem.index(2 * slot),
                    stats_smem.index(2 * slot + 1), STEP, scale_log2, False, S_MMA, P_IN,
                )  # fmt: skip
                dv, p = warpgroup_mma_wait(1, deps=[vt, p])
            for _ in range(gl.where(plain > 0, some, some - 1)):
                before = slot
                slot, phase = following(slot, phase, SLOTS)
                mbarrier.wait(full.index(slot), phase)
                st, dt = scores(k, v, q_smem.index(slot), do_smem.index(slot), none)
                s, dk, ds = warpgroup_mma_wait(1, deps=[st, kt, ds])
                mbarrier.arrive(empty.index(before), count=1)
                kt, vt, p, ds = sums(
                    s, dt, dk, dv, q_smem.index(slot), do_smem.index(slot), stats_smem.index(2 * slot),
                    stats_smem.index(2 * slot + 1), 0, scale_log2, True, S_MMA, P_IN,
                )  # fmt: skip
                dv, p = warpgroup_mma_wait(1, deps=[vt, p])
            dk, ds = warpgroup_mma_wait(0, deps=[kt, ds])
            mbarrier.arrive(empty.index(slot), count=1)
            slot, phase = following(slot, phase, SLOTS)
            for _ in range(G * some):  # blocks for the groups above this one
                mbarrier.wait(full.index(slot), phase)
                mbarrier.arrive(empty.index(slot), count=1)
                slot, phase = following(slot, phase, SLOTS)
            if not QREG:
                mbarrier.arrive(k_empty.index(G), count=1)
            dk = dk * scale
            shared = first < prompt
            at = first + G * ROWS - gl.where(shared, 0, prompt)
            inner = gl.arange(0, ROWS, gl.SliceLayout(1, O_MMA))
            dims = gl.arange(0, D, gl.SliceLayout(0, O_MMA))
            to = (((at + inner) * key_heads + key_head) * D)[:, None] + dims[None, :]
            mine = (inner < count)[:, None]
            if shared & (parts > 1):  # `add_kernel` adds the parts
                size = (prompt * key_heads * D).to(gl.int64)
                gl.store(part_ptr + part * size + to, dk, mask=mine)
                gl.store(part_ptr + (parts + part) * size + to, dv, mask=mine)
            elif count >= ROWS:
                out = out_smem.index(G)
                tma.store_wait(0)
                out.store(dk.to(dtype))
                fence_async_shared()
                if shared:
                    store_tile(dk_ctx_desc, [at, key_head, 0], out.reshape([ROWS, 1, D]))
                else:
                    store_tile(dk_dec_desc, [at, key_head, 0], out.reshape([ROWS, 1, D]))
                tma.store_wait(0)
                out.store(dv.to(dtype))
                fence_async_shared()
                if shared:
                    store_tile(dv_ctx_desc, [at, key_head, 0], out.reshape([ROWS, 1, D]))
                else:
                    store_tile(dv_dec_desc, [at, key_head, 0], out.reshape([ROWS, 1, D]))
            elif shared:  # the keys that follow belong to others
                gl.store(dk_ctx_ptr + to, dk.to(dtype), mask=mine)
                gl.store(dv_ctx_ptr + to, dv.to(dtype), mask=mine)
            else:
                gl.store(dk_dec_ptr + to, dk.to(dtype), mask=mine)
                gl.store(dv_dec_ptr + to, dv.to(dtype), mask=mine)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["tiles", "prompt", "share", "key_heads", "parts"])
def keys_kernel(
    q_desc, do_desc, lse_desc, delta_desc, padded_desc, padded_delta_desc, k_ctx_desc, v_ctx_desc, k_dec_desc,
    v_dec_desc, dk_ctx_desc, dv_ctx_desc, dk_dec_desc, dv_dec_desc, dk_ctx_ptr, dv_ctx_ptr, dk_dec_ptr, dv_dec_ptr,
    tiles_ptr, order_ptr, tiles, prompt, share, key_heads, parts, part_ptr, scale, scale_log2,
    D: gl.constexpr, SLOTS: gl.constexpr, QREG: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q_desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([STEP, D], dtype)
    plain: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    k_smem = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], tile)
    v_smem = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], tile)
    out_smem = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, D], tile)
    q_smem = gl.allocate_shared_memory(dtype, [SLOTS, STEP, D], tile)
    do_smem = gl.allocate_shared_memory(dtype, [SLOTS, STEP, D], tile)
    stats_smem = gl.allocate_shared_memory(gl.float32, [2 * SLOTS, STEP], plain)
    k_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barriers)
    k_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barriers)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(GROUPS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    gl.warp_specialize([
        (consume_rows, (
            dk_ctx_desc, dv_ctx_desc, dk_dec_desc, dv_dec_desc, dk_ctx_ptr, dv_ctx_ptr, dk_dec_ptr, dv_dec_ptr,
            q_smem, do_smem, stats_smem, k_smem, v_smem, out_smem, k_full, k_empty, full, empty, tiles_ptr, order_ptr,
            tiles, prompt, share, key_heads, parts, part_ptr, scale, scale_log2, 0, D, SLOTS, QREG,
        )),
        (consume_rows, (
            dk_ctx_desc, dv_ctx_desc, dk_dec_desc, dv_dec_desc, dk_ctx_ptr, dv_ctx_ptr, dk_dec_ptr, dv_dec_ptr,
            q_smem, do_smem, stats_smem, k_smem, v_smem, out_smem, k_full, k_empty, full, empty, tiles_ptr, order_ptr,
            tiles, prompt, share, key_heads, parts, part_ptr, scale, scale_log2, 1, D, SLOTS, QREG,
        )),
        (produce_rows, (
            q_desc, do_desc, lse_desc, delta_desc, padded_desc, padded_delta_desc, k_ctx_desc, v_ctx_desc, k_dec_desc,
            v_dec_desc, q_smem, do_smem, stats_smem, k_smem, v_smem, k_full, k_empty, full, empty, tiles_ptr,
            order_ptr, tiles, prompt, share, parts, D, SLOTS,
        )),
    ], [4, 1], [240, 24])  # fmt: skip


@triton.jit
def add_kernel(part_ptr, dk_ptr, dv_ptr, size, parts, BLOCK: tl.constexpr):
    """Sums of parts, rounded."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    dk = tl.zeros([BLOCK], tl.float32)
    dv = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        dk += tl.load(part_ptr + part * size + at, mask=mask, other=0.0)
        dv += tl.load(part_ptr + (parts + part) * size + at, mask=mask, other=0.0)
    tl.store(dk_ptr + at, dk.to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=mask)


@triton.jit
def flags(any_ptr, count, BLOCK: tl.constexpr):
    """Whether one of `count` flags is set."""
    inner = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, BLOCK):
        most = tl.maximum(most, tl.load(any_ptr + start + inner, mask=start + inner < count, other=0))
    return tl.max(most, axis=0)


@triton.jit
def again_kernel(
    q_ptr, k_ctx_ptr, v_ctx_ptr, k_dec_ptr, v_dec_ptr, do_ptr, dq_ptr, lse_ptr, delta_ptr, base_ptr, padded_ptr,
    padded_delta_ptr, far_ptr, any_ptr, any_count, apart_ptr, tiles_ptr, tiles, packs, prompt, pitch, padded_rows,
    heads, key_heads, scale, scale_log2,
    NEAR: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PACK: tl.constexpr, GROUPS: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """Blocks of rows that `rows_kernel` gave up: with a running maximum, then dq in a second pass over the keys.

    Where a row's maximum is far from zero, a float32 near it does not hold the logarithm of the sum: the maxima, as
    scores, go to `base_ptr`, the logarithms alone to `lse_ptr`, and 1 to `apart_ptr`.
    """
    TALL: tl.constexpr = BLOCK // PACK
    some = 0
    inner = tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    if flags(any_ptr, any_count, 128) > 0:
        for start in range(tl.program_id(0), packs * tiles * GROUPS, MANY * tl.num_programs(0)):
            many = tl.arange(0, MANY)
            numbers = start + many * tl.num_programs(0)
            left = tl.load(far_ptr + numbers, mask=numbers < packs * tiles * GROUPS, other=0)
            for _ in range(tl.sum(left, axis=0)):
                chosen = tl.min(tl.where(left > 0, many, MANY), axis=0)
                left = tl.where(many == chosen, 0, left)
                number = start + chosen * tl.num_programs(0)
                tile = number // GROUPS % tiles
                pack = number // GROUPS // tiles
                down = number % GROUPS * TALL
                word = tl.load(tiles_ptr + tile * 3 + 1)
                count = (word & 127) + 1 - down
                row = tl.load(tiles_ptr + tile * 3) + down
                place = (word >> 8) + down
                padded = tl.load(tiles_ptr + tile * 3 + 2) + down
                shared = row < prompt
                base = row - place - prompt
                head = pack * PACK + inner % PACK
                key_head = pack * PACK // (heads // key_heads)
                rows = row + inner // PACK
                places = place + inner // PACK
                valid = inner < count * PACK
                here = (rows.to(tl.int64) * heads + head)[:, None] * D + d[None, :]
                q = tl.load(q_ptr + here, mask=valid[:, None], other=0.0)
                do = tl.load(do_ptr + here, mask=valid[:, None], other=0.0)
                own = tl.cdiv(place + tl.minimum(count, TALL), BLOCK)
                blocks = own + tl.where(shared, 0, tl.cdiv(prompt, BLOCK))
                own_end = place + tl.minimum(count, TALL)
                m = tl.full([BLOCK], -3.0e38, tl.float32)
                total = tl.zeros([BLOCK], tl.float32)
                o = tl.zeros([BLOCK, D], tl.float32)
                for j in range(0, blocks):
                    mine = j < own
                    keys = tl.where(mine, j, j - own) * BLOCK + inner
                    in_dec = mine & (shared == 0)
                    ctx = (keys < tl.where(in_dec, 0, prompt))[:, None]
                    dec = (keys < tl.where(in_dec, own_end, 0))[:, None]
                    there = (keys * key_heads + key_head)[:, None] * D + d[None, :]
                    there_dec = there + base * key_heads * D
                    k = tl.load(k_ctx_ptr + there, mask=ctx, other=0.0)
                    k += tl.load(k_dec_ptr + there_dec, mask=dec, other=0.0)
                    v = tl.load(v_ctx_ptr + there, mask=ctx, other=0.0)
                    v += tl.load(v_dec_ptr + there_dec, mask=dec, other=0.0)
                    s = tl.dot(q, tl.trans(k))
                    bound = tl.where(mine, places, prompt - 1)
                    s = tl.where(keys[None, :] <= bound[:, None], s, float("-inf"))
                    m_new = tl.maximum(m, tl.max(s, axis=1))
                    alpha = tl.exp2((m - m_new) * scale_log2)
                    e = tl.exp2((s - m_new[:, None]) * scale_log2)
                    total = total * alpha + tl.sum(e, axis=1)
                    o = tl.dot(e.to(v.dtype), v, o * alpha[:, None])
                    m = m_new
                o = (o / total[:, None]).to(do.dtype).to(tl.float32)
                delta = tl.sum(o * do.to(tl.float32), axis=1)
                dq = tl.zeros([BLOCK, D], tl.float32)
                for j in range(0, blocks):
                    mine = j < own
                    keys = tl.where(mine, j, j - own) * BLOCK + inner
                    in_dec = mine & (shared == 0)
                    ctx = (keys < tl.where(in_dec, 0, prompt))[:, None]
                    dec = (keys < tl.where(in_dec, own_end, 0))[:, None]
                    there = (keys * key_heads + key_head)[:, None] * D + d[None, :]
                    there_dec = there + base * key_heads * D
                    k = tl.load(k_ctx_ptr + there, mask=ctx, other=0.0)
                    k += tl.load(k_dec_ptr + there_dec, mask=dec, other=0.0)
                    v = tl.load(v_ctx_ptr + there, mask=ctx, other=0.0)
                    v += tl.load(v_dec_ptr + there_dec, mask=dec, other=0.0)
                    s = tl.dot(q, tl.trans(k))
                    bound = tl.where(mine, places, prompt - 1)
                    s = tl.where(keys[None, :] <= bound[:, None], s, float("-inf"))
                    p = tl.exp2((s - m[:, None]) * scale_log2) / total[:, None]
                    ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
                    dq = tl.dot(ds.to(k.dtype), k, dq)
                tl.store(dq_ptr + here, (dq * scale).to(dq_ptr.dtype.element_ty), mask=valid[:, None])
                apart = tl.abs(m * scale_log2) > NEAR
                some = tl.maximum(some, tl.max(tl.where(apart & valid, 1, 0), axis=0))
                lse = tl.log2(total) + tl.where(apart, 0.0, m * scale_log2)
                to = head * pitch + rows
                tl.store(lse_ptr + to, lse, mask=valid)
                tl.store(delta_ptr + to, delta, mask=valid)
                tl.store(base_ptr + to, tl.where(apart, m, 0.0), mask=valid)
                to = head * padded_rows + padded + inner // PACK
                tl.store(padded_ptr + to, lse, mask=valid)
                tl.store(padded_delta_ptr + to, delta, mask=valid)
    tl.store(apart_ptr + tl.program_id(0), some)


@triton.jit
def keys_again_kernel(
    q_ptr, k_ctx_ptr, v_ctx_ptr, k_dec_ptr, v_dec_ptr, do_ptr, dk_ctx_ptr, dv_ctx_ptr, dk_dec_ptr, dv_dec_ptr,
    lse_ptr, delta_ptr, base_ptr, apart_ptr, apart_count, tiles_ptr, tiles, prompt, pitch, heads, key_heads,
    scale, scale_log2,
    D: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """All keys, where some row's maximum stands apart from its sum, with differences to the maximum.

    Scores are computed as `again_kernel` does, block by block: near 1e10 the next float32 is 1000 away.
    """
    inner = tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    share = heads // key_heads
    if flags(apart_ptr, apart_count, 128) > 0:
        for number in range(tl.program_id(0), key_heads * tiles * GROUPS, tl.num_programs(0)):
            tile = number // GROUPS % tiles
            key_head = number // GROUPS // tiles
            down = number % GROUPS * BLOCK
            count = (tl.load(tiles_ptr + tile * 4 + 1) & 127) + 1 - down
            if count > 0:
                first = tl.load(tiles_ptr + tile * 4) + down
                end = tl.load(tiles_ptr + tile * 4 + 3)
                shared = first < prompt
                keys = first + inner
                ctx = ((inner < count) & shared)[:, None]
                dec = ((inner < count) & (shared == 0))[:, None]
                here = (keys * key_heads + key_head)[:, None] * D + d[None, :]
                here_dec = here - prompt * key_heads * D
                k = tl.load(k_ctx_ptr + here, mask=ctx, other=0.0) + tl.load(k_dec_ptr + here_dec, mask=dec, other=0.0)
                v = tl.load(v_ctx_ptr + here, mask=ctx, other=0.0) + tl.load(v_dec_ptr + here_dec, mask=dec, other=0.0)
                dk = tl.zeros([BLOCK, D], tl.float32)
                dv = tl.zeros([BLOCK, D], tl.float32)
                for head in range(key_head * share, (key_head + 1) * share):
                    for start in range(first, end, BLOCK):
                        rows = start + inner
                        valid = rows < end
                        there = (rows.to(tl.int64) * heads + head)[:, None] * D + d[None, :]
                        q = tl.load(q_ptr + there, mask=valid[:, None], other=0.0)
                        do = tl.load(do_ptr + there, mask=valid[:, None], other=0.0)
                        lse = tl.load(lse_ptr + head * pitch + rows, mask=valid, other=0.0)
                        delta = tl.load(delta_ptr + head * pitch + rows, mask=valid, other=0.0)
                        base = tl.load(base_ptr + head * pitch + rows, mask=valid, other=0.0)
                        s = tl.dot(q, tl.trans(k))
                        s = tl.where((keys[None, :] <= rows[:, None]) & valid[:, None], s, float("-inf"))
                        p = tl.exp2(tl.minimum((s - base[:, None]) * scale_log2 - lse[:, None], 0.0))
                        dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv)
                        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
                        dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk)
                dk_out = (dk * scale).to(dk_ctx_ptr.dtype.element_ty)
                dv_out = dv.to(dv_ctx_ptr.dtype.element_ty)
                tl.store(dk_ctx_ptr + here, dk_out, mask=ctx)
                tl.store(dv_ctx_ptr + here, dv_out, mask=ctx)
                tl.store(dk_dec_ptr + here_dec, dk_out, mask=dec)
                tl.store(dv_dec_ptr + here_dec, dv_out, mask=dec)


def dealt(processors, phases, count):
    """Which tiles each program has (see `listed`): heads times the number of tiles, plus the tile; and the most work.

    Phases are listed one after the other, each `together` of `count` heads at a time. Each tile goes to the program
    that has the least to do: what a counter would do on the device, if it could know.
    """
    whole = [tile for tiles, _ in phases for tile in tiles]
    most = max(parts for _, parts, *_ in whole)
    programs = min(processors, sum(parts for _, parts, *_ in whole) * count)
    loads = [(0.0, program) for program in range(programs)]
    lists = [[] for _ in range(programs)]
    before = 0
    for tiles, together in phases:
        for first in range(0, count, together):
            for number, (work, parts, *_) in enumerate(tiles, before):
                for heads in range(first * most, min(first + together, count) * most, most):
                    for part in range(parts):
                        load, program = loads[0]
                        lists[program].append((heads + part) * len(whole) + number)
                        heapq.heapreplace(loads, (load + work, program))
        before += len(tiles)
    begins = [sum(len(each) for each in lists[:program]) for program in range(programs + 1)]
    order = begins + [word for each in lists for word in each] + [0]
    return max(loads)[0], (programs, [word for tile in whole for word in tile[2:]], order)


@functools.lru_cache(maxsize=64)
def schedule(processors, prompt, starts, heads, key_heads, pack):
    """Tiles (see `entry`) and order, of rows and of keys; parts that the prompt's keys are in; rows of padded sums.

    Long tiles are listed few heads at a time, the longest first, then the short ones of all heads, which make up for
    the differences. Where programs would have too little, query heads of a tile of the prompt's keys become parts.
    """
    share = heads // key_heads
    total = prompt + starts[-1]
    blocks = -(-prompt // STEP.value)
    segments, padded_rows = [], 0
    for first, after in [(0, prompt)] + [(prompt + a, prompt + b) for a, b in zip(starts, starts[1:], strict=False)]:
        segments.append((first, after, padded_rows))
        padded_rows += -(-(after - first) // STEP.value) * STEP.value

    def tiles_of(segment, tall):
        first, after, padded = segment
        for row in range(first, after, tall):
            count = min(tall, after - row)
            word = (row - first) << 8 | (row + count == after) << 7 | count - 1
            yield row, count, [row, word, padded + row - first]

    def rows_of(segment):
        tall = GROUPS.value * ROWS.value // pack
        for row, count, words in tiles_of(segment, tall):
            work = (row + count - 1 - segment[0]) // STEP.value + 1 + (blocks if segment[0] else 0)
            yield [work * (1.0 if 2 * count > tall else 0.6) + 2.0, 1, *words]

    def keys_of(segment, parts):
        wide = GROUPS.value * ROWS.value
        end = segment[1] if segment[0] else total
        for row, count, words in tiles_of(segment, wide):
            work = share // parts * (-(-(end - row) // STEP.value) + 0.7)
            yield [work * (1.0 if 2 * count > wide else 0.6) + 2.0, parts, *words, end]

    def longest_first(tiles):
        return sorted(tiles, key=lambda tile: -tile[0])

    responses = longest_first(tile for segment in segments[1:] for tile in rows_of(segment))
    packs = heads // pack
    phases = [(responses, TOGETHER * share // pack), (longest_first(rows_of(segments[0])), packs)]
    _, rows = dealt(processors, phases, packs)
    responses = longest_first(tile for segment in segments[1:] for tile in keys_of(segment, 1))
    options = []
    for parts in (1, 2, 4):
        if share % parts == 0:
            phases = [(longest_first(keys_of(segments[0], parts)), TOGETHER), (responses, key_heads)]
            most, keys = dealt(processors, phases, key_heads)
            sums = 0.0 if parts == 1 else 5.0 + parts * prompt * key_heads / 4096  # are written and read again
            options.append((most + sums, parts, keys))
    _, parts, keys = min(options)
    return rows, keys, parts, padded_rows


def run(q, k_ctx, v_ctx, k_dec, v_dec, do, cu):
    total, heads, d = q.shape
    prompt, key_heads, _ = k_ctx.shape
    share = heads // key_heads
    starts = tuple(cu.tolist())
    pack = 1
    while share % (2 * pack) == 0 and pack < 8:
        pack *= 2
    row_slots, key_slots = (ROW_SLOTS_64, KEY_SLOTS_64) if d == 64 else (ROW_SLOTS_128, KEY_SLOTS_128)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    of_rows, of_keys, parts, padded_rows = schedule(processors, prompt, starts, heads, key_heads, pack)
    dq, dk_ctx, dv_ctx, dk_dec, dv_dec = (torch.empty_like(x) for x in (q, k_ctx, v_ctx, k_dec, v_dec))

    def made(shape, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype, device=q.device)

    def constant(numbers):  # judges take 64 KB at most
        return torch.tensor(numbers, dtype=torch.int32 if max(numbers) >= 1 << 15 else torch.int16, device=q.device)

    def described(x, box):
        return TensorDescriptor.from_tensor(x, box, gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16))

    pitch = -(-total // 4) * 4
    lse, delta, base = (made((heads, pitch)) for _ in range(3))
    padded, padded_delta = (made((heads, padded_rows)) for _ in range(2))
    plain = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    lse_desc, delta_desc = (TensorDescriptor(x, [heads, total], [pitch, 1], [1, 64], plain) for x in (lse, delta))
    padded_desc, padded_delta_desc = (TensorDescriptor.from_tensor(x, [1, 64], plain) for x in (padded, padded_delta))
    blocks, packed = [64, 1, d], [ROWS.value // pack, pack, d]
    pairs = tuple(described(x, blocks) for x in (k_ctx, v_ctx, k_dec, v_dec))
    scale = d**-0.5
    scale_log2 = scale * math.log2(math.e)

    programs, numbers, order = of_rows
    tiles = len(numbers) // 3
    row_tiles = torch.tensor(numbers, dtype=torch.int32, device=q.device)
    far = made(heads // pack * tiles * GROUPS.value, torch.int32)
    some = made(programs * GROUPS.value, torch.int32)
    rows_kernel[(programs,)](
        described(q, packed), *pairs, described(do, packed), described(dq, packed), dq, lse, delta, base, padded,
        padded_delta, far, some, row_tiles, constant(order), tiles, prompt, pitch, padded_rows, heads, scale,
        scale_log2,
        D=d, SLOTS=row_slots, QREG=d == 64, PACK=pack, SHARE=share, num_warps=4,
    )  # fmt: skip
    apart = made(processors, torch.int32)
    again_kernel[(processors,)](
        q, k_ctx, v_ctx, k_dec, v_dec, do, dq, lse, delta, base, padded, padded_delta, far, some,
        programs * GROUPS.value, apart, row_tiles, tiles, heads // pack, prompt, pitch, padded_rows, heads, key_heads,
        scale, scale_log2, NEAR=NEAR.value, D=d, BLOCK=64, PACK=pack, GROUPS=GROUPS.value, MANY=128, num_warps=4,
    )  # fmt: skip
    programs, numbers, order = of_keys
    tiles = len(numbers) // 4
    key_tiles = torch.tensor(numbers, dtype=torch.int32, device=q.device)
    part = made((2, parts, *k_ctx.shape) if parts > 1 else (1,))
    keys_kernel[(programs,)](
        described(q, blocks), described(do, blocks), lse_desc, delta_desc, padded_desc, padded_delta_desc, *pairs,
        *(described(x, blocks) for x in (dk_ctx, dv_ctx, dk_dec, dv_dec)), dk_ctx, dv_ctx, dk_dec, dv_dec, key_tiles,
        constant(order), tiles, prompt, share, key_heads, parts, part, scale, scale_log2,
        D=d, SLOTS=key_slots, QREG=d == 64, num_warps=4,
    )  # fmt: skip
    if parts > 1:
        size = k_ctx.numel()
        add_kernel[(-(-size // 1024),)](part, dk_ctx, dv_ctx, size, parts, BLOCK=1024, num_warps=4)
    keys_again_kernel[(processors,)](
        q, k_ctx, v_ctx, k_dec, v_dec, do, dk_ctx, dv_ctx, dk_dec, dv_dec, lse, delta, base, apart, processors,
        key_tiles, tiles, prompt, pitch, heads, key_heads, scale, scale_log2,
        D=d, BLOCK=64, GROUPS=GROUPS.value, num_warps=4,
    )  # fmt: skip
    return dq, dk_ctx, dv_ctx, dk_dec, dv_dec
