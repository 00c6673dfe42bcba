"""Backward of causal attention, naively: a kernel over queries, in three passes, and a kernel over keys."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
NUM_WARPS = 4


@triton.jit
def queries_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, dq_ptr, max_ptr, sum_ptr, delta_ptr, length, scale, stride_head, stride_row,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * stride_head
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    row_mask = rows < length
    q_offsets = head + rows[:, None] * stride_row + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=row_mask[:, None], other=0.0)
    do = tl.load(do_ptr + q_offsets, mask=row_mask[:, None], other=0.0)
    end = tl.minimum(length, (tl.program_id(0) + 1) * BLOCK_M)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, end, BLOCK_N):
        keys = start + cols
        k_offsets = head + keys[None, :] * stride_row + dims[:, None]
        k = tl.load(k_ptr + k_offsets, mask=keys[None, :] < length, other=0.0)
        scores = tl.dot(q, k)
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp((scores - new_max[:, None]) * scale)
        row_sum = row_sum * tl.exp((row_max - new_max) * scale) + tl.sum(weights, axis=1)
        row_max = new_max
    o = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, end, BLOCK_N):
        keys = start + cols
        k_offsets = head + keys[None, :] * stride_row + dims[:, None]
        k = tl.load(k_ptr + k_offsets, mask=keys[None, :] < length, other=0.0)
        v = tl.load(v_ptr + k_offsets, mask=keys[None, :] < length, other=0.0)
        p = (
            tl.where(keys[None, :] <= rows[:, None], tl.exp((tl.dot(q, k) - row_max[:, None]) * scale), 0.0)
            / row_sum[:, None]
        )
        o = tl.dot(p.to(v.dtype), tl.trans(v), o)
    delta = tl.sum(do.to(tl.float32) * o.to(do.dtype).to(tl.float32), axis=1)  # rounded, p is one where one key wins
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, end, BLOCK_N):
        keys = start + cols
        k_offsets = head + keys[None, :] * stride_row + dims[:, None]
        k = tl.load(k_ptr + k_offsets, mask=keys[None, :] < length, other=0.0)
        v = tl.load(v_ptr + k_offsets, mask=keys[None, :] < length, other=0.0)
        p = (
            tl.where(keys[None, :] <= rows[:, None], tl.exp((tl.dot(q, k) - row_max[:, None]) * scale), 0.0)
            / row_sum[:, None]
        )
        ds = p * (tl.dot(do, v) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), tl.trans(k), dq)
    tl.store(dq_ptr + q_offsets, (dq * scale).to(dq_ptr.dtype.element_ty), mask=row_mask[:, None])
    tl.store(max_ptr + tl.program_id(1) * length + rows, row_max, mask=row_mask)
    tl.store(sum_ptr + tl.program_id(1) * length + rows, row_sum, mask=row_mask)
    tl.store(delta_ptr + tl.program_id(1) * length + rows, delta, mask=row_mask)


@triton.jit
def keys_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, max_ptr, sum_ptr, delta_ptr, dk_ptr, dv_ptr, length, scale, stride_head, stride_row,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * stride_head
    keys = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    key_mask = keys[:, None] < length
    k_offsets = head + keys[:, None] * stride_row + dims[None, :]
    k = tl.load(k_ptr + k_offsets, mask=key_mask, other=0.0)
    v = tl.load(v_ptr + k_offsets, mask=key_mask, other=0.0)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    for start in range(tl.program_id(0) * BLOCK_N, length, BLOCK_M):  # queries from the tile's first key on
        rows = start + tl.arange(0, BLOCK_M)
        row_mask = rows < length
        q_offsets = head + rows[None, :] * stride_row + dims[:, None]
        q = tl.load(q_ptr + q_offsets, mask=row_mask[None, :], other=0.0)
        do = tl.load(do_ptr + q_offsets, mask=row_mask[None, :], other=0.0)
        row_max = tl.load(max_ptr + tl.program_id(1) * length + rows, mask=row_mask, other=0.0)
        row_sum = tl.load(sum_ptr + tl.program_id(1) * length + rows, mask=row_mask, other=1.0)
        delta = tl.load(delta_ptr + tl.program_id(1) * length + rows, mask=row_mask, other=0.0)
        visible = (keys[:, None] <= rows[None, :]) & row_mask[None, :]
        p = tl.where(visible, tl.exp((tl.dot(k, q) - row_max[None, :]) * scale), 0.0) / row_sum[None, :]
        dv = tl.dot(p.to(do.dtype), tl.trans(do), dv)
        ds = p * (tl.dot(v, do) - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), tl.trans(q), dk)
    tl.store(dk_ptr + k_offsets, (dk * scale).to(dk_ptr.dtype.element_ty), mask=key_mask)
    tl.store(dv_ptr + k_offsets, dv.to(dv_ptr.dtype.element_ty), mask=key_mask)


def run(q, k, v, do):
    batch, heads, length, head_dim = q.shape
    dq = torch.empty_like(q)
    dk = torch.empty_like(k)
    dv = torch.empty_like(v)
    row_max = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
    row_sum = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
    delta = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
    queries_kernel[(triton.cdiv(length, BLOCK_M), batch * heads)](
        q, k, v, do, dq, row_max, row_sum, delta, length, head_dim**-0.5, q.stride(1), q.stride(2),
        HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    keys_kernel[(triton.cdiv(length, BLOCK_N), batch * heads)](
        q, k, v, do, row_max, row_sum, delta, dk, dv, length, head_dim**-0.5, q.stride(1), q.stride(2),
        HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    return dq, dk, dv
