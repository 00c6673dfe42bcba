"""Shared-prompt attention, naively: a tile of rows of one segment a program, over the prompt's keys, then over its own.

Segment 0 is the prompt itself, segment i the i-th response. `tiles` says which segment, and which of its tiles, is
whose.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
NUM_WARPS = 4


@triton.jit
def shared_prompt_kernel(
    q_ptr, k_ctx_ptr, v_ctx_ptr, k_dec_ptr, v_dec_ptr, cu_ptr, tiles_ptr, out_ptr, lse_ptr, prompt, total, scale, group,
    q_stride, k_stride, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
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
    ctx_end = tl.where(segment == 0, seen, prompt)
    dec_end = tl.where(segment == 0, 0, seen)
    q_offsets = (first + rows[:, None]).to(tl.int64) * q_stride + head * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=row_mask[:, None], other=0.0)
    k_head = head // group * HEAD_DIM
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, ctx_end, BLOCK_N):
        keys = start + cols
        offsets = keys[:, None] * k_stride + k_head + dims[None, :]
        k = tl.load(k_ctx_ptr + offsets, mask=keys[:, None] < prompt, other=0.0)
        v = tl.load(v_ctx_ptr + offsets, mask=keys[:, None] < prompt, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        visible = (keys[None, :] < prompt) & ((keys[None, :] <= rows[:, None]) | (segment > 0))
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp(scores - new_max[:, None])
        decay = tl.exp(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(p, axis=1)
        row_max = new_max
        acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None])
    for start in range(0, dec_end, BLOCK_N):
        keys = start + cols
        offsets = (own + keys[:, None]) * k_stride + k_head + dims[None, :]
        k = tl.load(k_dec_ptr + offsets, mask=keys[:, None] < own_length, other=0.0)
        v = tl.load(v_dec_ptr + offsets, mask=keys[:, None] < own_length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where((keys[None, :] < own_length) & (keys[None, :] <= rows[:, None]), scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp(scores - new_max[:, None])
        decay = tl.exp(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(p, axis=1)
        row_max = new_max
        acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None])
    tl.store(out_ptr + q_offsets, (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty), mask=row_mask[:, None])
    tl.store(lse_ptr + head * total + first + rows, row_max + tl.log(row_sum), mask=row_mask)


def run(q, k_ctx, v_ctx, k_dec, v_dec, cu):
    total, heads, head_dim = q.shape
    prompt = k_ctx.shape[0]
    starts = cu.tolist()
    lengths = [prompt] + [starts[i + 1] - starts[i] for i in range(len(starts) - 1)]
    tiles = [[i, tile] for i in range(len(lengths)) for tile in range(triton.cdiv(lengths[i], BLOCK_M))]
    out = torch.empty_like(q)
    lse = torch.empty((heads, total), dtype=torch.float32, device=q.device)
    shared_prompt_kernel[(len(tiles), heads)](
        q, k_ctx, v_ctx, k_dec, v_dec, cu, torch.tensor(tiles, dtype=torch.int32, device=q.device), out, lse,
        prompt, total, head_dim**-0.5, heads // k_ctx.shape[1], q.stride(0), k_ctx.stride(0),
        HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    return out, lse
