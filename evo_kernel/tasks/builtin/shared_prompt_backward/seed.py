"""Backward of shared-prompt attention, naively: a kernel over queries (maximum and sum, correction, dq), one over keys.

Segment 0 is the prompt itself, segment i the i-th response. The tables say which segment, and which of its tiles, is
whose. Keys of the prompt and of the own response are one sequence of blocks; a block is loaded from where it lies. No
atomics: the program of a tile of keys sums over all queries that see it. Scores are scaled after the row's maximum is
taken off, so that its own power is 1 however large they are: a product that is fused with the subtraction would round
the two differently.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
NUM_WARPS = 4


@triton.jit
def queries_kernel(
    q_ptr, k_ctx_ptr, v_ctx_ptr, k_dec_ptr, v_dec_ptr, do_ptr, cu_ptr, tiles_ptr, dq_ptr, max_ptr, sum_ptr, delta_ptr,
    prompt, total, scale, group, q_stride, k_stride,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    segment = tl.load(tiles_ptr + tl.program_id(0) * 2)
    tile = tl.load(tiles_ptr + tl.program_id(0) * 2 + 1)
    response = tl.maximum(segment - 1, 0)
    own = tl.load(cu_ptr + response)
    own_length = tl.load(cu_ptr + response + 1) - own
    length = tl.where(segment == 0, prompt, own_length)
    first = tl.where(segment == 0, 0, prompt + own)  # row of q at which the segment begins
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    row_mask = rows < length
    seen = tl.minimum(length, (tile + 1) * BLOCK_M)  # own rows up to the tile's last
    ctx_rows = tl.cdiv(tl.where(segment == 0, seen, prompt), BLOCK_N) * BLOCK_N
    end = ctx_rows + tl.where(segment == 0, 0, seen)
    q_offsets = (first + rows[:, None]) * q_stride + head * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=row_mask[:, None], other=0.0)
    do = tl.load(do_ptr + q_offsets, mask=row_mask[:, None], other=0.0)
    k_head = head // group * HEAD_DIM
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, end, BLOCK_N):
        in_ctx = start < ctx_rows
        keys = start + cols - tl.where(in_ctx, 0, ctx_rows)
        ctx_mask = keys[None, :] < tl.where(in_ctx, prompt, 0)
        dec_mask = keys[None, :] < tl.where(in_ctx, 0, own_length)
        visible = (ctx_mask & (segment > 0)) | ((ctx_mask | dec_mask) & (keys[None, :] <= rows[:, None]))
        ctx_offsets = keys[None, :] * k_stride + k_head + dims[:, None]
        dec_offsets = ctx_offsets + own * k_stride
        k = tl.load(k_ctx_ptr + ctx_offsets, mask=ctx_mask, other=0.0)
        k += tl.load(k_dec_ptr + dec_offsets, mask=dec_mask, other=0.0)
        scores = tl.where(visible, tl.dot(q, k), float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        powers = tl.exp((scores - new_max[:, None]) * scale)
        row_sum = row_sum * tl.exp((row_max - new_max) * scale) + tl.sum(powers, axis=1)
        row_max = new_max
    o = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, end, BLOCK_N):
        in_ctx = start < ctx_rows
        keys = start + cols - tl.where(in_ctx, 0, ctx_rows)
        ctx_mask = keys[None, :] < tl.where(in_ctx, prompt, 0)
        dec_mask = keys[None, :] < tl.where(in_ctx, 0, own_length)
        visible = (ctx_mask & (segment > 0)) | ((ctx_mask | dec_mask) & (keys[None, :] <= rows[:, None]))
        ctx_offsets = keys[None, :] * k_stride + k_head + dims[:, None]
        dec_offsets = ctx_offsets + own * k_stride
        k = tl.load(k_ctx_ptr + ctx_offsets, mask=ctx_mask, other=0.0)
        k += tl.load(k_dec_ptr + dec_offsets, mask=dec_mask, other=0.0)
        v = tl.load(v_ctx_ptr + ctx_offsets, mask=ctx_mask, other=0.0)
        v += tl.load(v_dec_ptr + dec_offsets, mask=dec_mask, other=0.0)
        p = tl.where(visible, tl.exp((tl.dot(q, k) - row_max[:, None]) * scale), 0.0) / row_sum[:, None]
        o = tl.dot(p.to(v.dtype), tl.trans(v), o)
    delta = tl.sum(do.to(tl.float32) * o.to(do.dtype).to(tl.float32), axis=1)  # rounded, p is one where one key wins
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, end, BLOCK_N):
        in_ctx = start < ctx_rows
        keys = start + cols - tl.where(in_ctx, 0, ctx_rows)
        ctx_mask = keys[None, :] < tl.where(in_ctx, prompt, 0)
        dec_mask = keys[None, :] < tl.where(in_ctx, 0, own_length)
        visible = (ctx_mask & (segment > 0)) | ((ctx_mask | dec_mask) & (keys[None, :] <= rows[:, None]))
        ctx_offsets = keys[None, :] * k_stride + k_head + dims[:, None]
        dec_offsets = ctx_offsets + own * k_stride
        k = tl.load(k_ctx_ptr + ctx_offsets, mask=ctx_mask, other=0.0)
        k += tl.load(k_dec_ptr + dec_offsets, mask=dec_mask, other=0.0)
        v = tl.load(v_ctx_ptr + ctx_offsets, mask=ctx_mask, other=0.0)
        v += tl.load(v_dec_ptr + dec_offsets, mask=dec_mask, other=0.0)
        p = tl.where(visible, tl.exp((tl.dot(q, k) - row_max[:, None]) * scale), 0.0) / row_sum[:, None]
        ds = p * (tl.dot(do, v) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), tl.trans(k), dq)
    tl.store(dq_ptr + q_offsets, (dq * scale).to(dq_ptr.dtype.element_ty), mask=row_mask[:, None])
    tl.store(max_ptr + head * total + first + rows, row_max, mask=row_mask)
    tl.store(sum_ptr + head * total + first + rows, row_sum, mask=row_mask)
    tl.store(delta_ptr + head * total + first + rows, delta, mask=row_mask)


@triton.jit
def keys_kernel(
    q_ptr, k_ctx_ptr, v_ctx_ptr, k_dec_ptr, v_dec_ptr, do_ptr, cu_ptr, tiles_ptr, max_ptr, sum_ptr, delta_ptr,
    dk_ctx_ptr, dv_ctx_ptr, dk_dec_ptr, dv_dec_ptr, prompt, total, scale, group, q_stride, k_stride,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    segment = tl.load(tiles_ptr + tl.program_id(0) * 2)
    tile = tl.load(tiles_ptr + tl.program_id(0) * 2 + 1)
    response = tl.maximum(segment - 1, 0)
    own = tl.load(cu_ptr + response)
    own_length = tl.load(cu_ptr + response + 1) - own
    first = tl.where(segment == 0, 0, prompt + own)  # row of q at which the segment begins
    end = tl.where(segment == 0, total, first + own_length)  # the prompt is seen by every row that follows
    keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    ctx_mask = keys[:, None] < tl.where(segment == 0, prompt, 0)
    dec_mask = keys[:, None] < tl.where(segment == 0, 0, own_length)
    ctx_offsets = keys[:, None] * k_stride + tl.program_id(1) * HEAD_DIM + dims[None, :]
    dec_offsets = ctx_offsets + own * k_stride
    k = tl.load(k_ctx_ptr + ctx_offsets, mask=ctx_mask, other=0.0)
    k += tl.load(k_dec_ptr + dec_offsets, mask=dec_mask, other=0.0)
    v = tl.load(v_ctx_ptr + ctx_offsets, mask=ctx_mask, other=0.0)
    v += tl.load(v_dec_ptr + dec_offsets, mask=dec_mask, other=0.0)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    for head in range(tl.program_id(1) * group, (tl.program_id(1) + 1) * group):
        for start in range(first + tile * BLOCK_N, end, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            row_mask = rows < end
            q_offsets = rows[None, :] * q_stride + head * HEAD_DIM + dims[:, None]
            q = tl.load(q_ptr + q_offsets, mask=row_mask[None, :], other=0.0)
            do = tl.load(do_ptr + q_offsets, mask=row_mask[None, :], other=0.0)
            row_max = tl.load(max_ptr + head * total + rows, mask=row_mask, other=0.0)
            row_sum = tl.load(sum_ptr + head * total + rows, mask=row_mask, other=1.0)
            delta = tl.load(delta_ptr + head * total + rows, mask=row_mask, other=0.0)
            visible = (first + keys[:, None] <= rows[None, :]) & row_mask[None, :] & (ctx_mask | dec_mask)
            p = tl.where(visible, tl.exp((tl.dot(k, q) - row_max[None, :]) * scale), 0.0) / row_sum[None, :]
            dv = tl.dot(p.to(do.dtype), tl.trans(do), dv)
            ds = p * (tl.dot(v, do) - delta[None, :])
            dk = tl.dot(ds.to(q.dtype), tl.trans(q), dk)
    dk = (dk * scale).to(dk_ctx_ptr.dtype.element_ty)
    dv = dv.to(dv_ctx_ptr.dtype.element_ty)
    tl.store(dk_ctx_ptr + ctx_offsets, dk, mask=ctx_mask)
    tl.store(dv_ctx_ptr + ctx_offsets, dv, mask=ctx_mask)
    tl.store(dk_dec_ptr + dec_offsets, dk, mask=dec_mask)
    tl.store(dv_dec_ptr + dec_offsets, dv, mask=dec_mask)


def run(q, k_ctx, v_ctx, k_dec, v_dec, do, cu):
    total, heads, head_dim = q.shape
    prompt, key_heads, _ = k_ctx.shape
    starts = cu.tolist()
    lengths = [prompt] + [starts[i + 1] - starts[i] for i in range(len(starts) - 1)]
    rows = [[i, tile] for i in range(len(lengths)) for tile in range(triton.cdiv(lengths[i], BLOCK_M))]
    keys = [[i, tile] for i in range(len(lengths)) for tile in range(triton.cdiv(lengths[i], BLOCK_N))]
    dq = torch.empty_like(q)
    dk_ctx = torch.empty_like(k_ctx)
    dv_ctx = torch.empty_like(v_ctx)
    dk_dec = torch.empty_like(k_dec)
    dv_dec = torch.empty_like(v_dec)
    row_max = torch.empty((heads, total), dtype=torch.float32, device=q.device)
    row_sum = torch.empty((heads, total), dtype=torch.float32, device=q.device)
    delta = torch.empty((heads, total), dtype=torch.float32, device=q.device)
    queries_kernel[(len(rows), heads)](
        q, k_ctx, v_ctx, k_dec, v_dec, do, cu, torch.tensor(rows, dtype=torch.int32, device=q.device),
        dq, row_max, row_sum, delta, prompt, total, head_dim**-0.5, heads // key_heads, q.stride(0), k_ctx.stride(0),
        HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    keys_kernel[(len(keys), key_heads)](
        q, k_ctx, v_ctx, k_dec, v_dec, do, cu, torch.tensor(keys, dtype=torch.int32, device=q.device),
        row_max, row_sum, delta, dk_ctx, dv_ctx, dk_dec, dv_dec,
        prompt, total, head_dim**-0.5, heads // key_heads, q.stride(0), k_ctx.stride(0),
        HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    return dq, dk_ctx, dv_ctx, dk_dec, dv_dec
