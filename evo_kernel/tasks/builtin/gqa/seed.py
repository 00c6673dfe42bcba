"""Grouped-query attention, naively: one query head a program, one pass over its keys with a running maximum and sum."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
NUM_WARPS = 4


@triton.jit
def gqa_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, length, scale, heads, key_heads, stride_head, stride_row,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    key_head = head // heads * key_heads + head % heads // (heads // key_heads)
    q_start = head * stride_head
    k_start = key_head * stride_head
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    row_mask = rows[:, None] < length
    q = tl.load(q_ptr + q_start + rows[:, None] * stride_row + dims[None, :], mask=row_mask, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    end = length
    if CAUSAL:
        end = tl.minimum(length, (tl.program_id(0) + 1) * BLOCK_M)
    for start in range(0, end, BLOCK_N):
        keys = start + cols
        k_offsets = k_start + keys[None, :] * stride_row + dims[:, None]
        k = tl.load(k_ptr + k_offsets, mask=keys[None, :] < length, other=0.0)
        scores = tl.dot(q, k) * scale
        scores = tl.where(keys[None, :] < length, scores, float("-inf"))
        if CAUSAL:
            scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp(scores - new_max[:, None])
        decay = tl.exp(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(p, axis=1)
        row_max = new_max
        v_offsets = k_start + keys[:, None] * stride_row + dims[None, :]
        v = tl.load(v_ptr + v_offsets, mask=keys[:, None] < length, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None])
    o = (acc / row_sum[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + q_start + rows[:, None] * stride_row + dims[None, :], o, mask=row_mask)


def run(q, k, v, causal):
    batch, heads, length, head_dim = q.shape
    o = torch.empty_like(q)
    gqa_kernel[(triton.cdiv(length, BLOCK_M), batch * heads)](
        q, k, v, o, length, head_dim**-0.5, heads, k.shape[1], q.stride(1), q.stride(2),
        CAUSAL=bool(causal), HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    return o
