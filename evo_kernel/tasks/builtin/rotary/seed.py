"""Rotary embedding, naively: one head of one token a program, queries and keys in launches of their own."""

import torch
import triton
import triton.language as tl

NUM_WARPS = 1


@triton.jit
def rotary_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, length, heads, HALF: tl.constexpr):
    row = tl.program_id(0)
    position = row // heads % length
    dims = tl.arange(0, HALF)
    offsets = row.to(tl.int64) * 2 * HALF + dims
    a = tl.load(x_ptr + offsets).to(tl.float32)
    b = tl.load(x_ptr + offsets + HALF).to(tl.float32)
    cos = tl.load(cos_ptr + position * HALF + dims)
    sin = tl.load(sin_ptr + position * HALF + dims)
    tl.store(y_ptr + offsets, a * cos - b * sin)
    tl.store(y_ptr + offsets + HALF, b * cos + a * sin)


def run(q, k, cos, sin):
    batch, length, heads, d = q.shape
    key_heads = k.shape[2]
    q_out = torch.empty_like(q)
    k_out = torch.empty_like(k)
    rotary_kernel[(batch * length * heads,)](q, cos, sin, q_out, length, heads, HALF=d // 2, num_warps=NUM_WARPS)
    rotary_kernel[(batch * length * key_heads,)](
        k, cos, sin, k_out, length, key_heads, HALF=d // 2, num_warps=NUM_WARPS
    )
    return q_out, k_out
