"""Paged decode attention, naively: one query head a program, one page after the other, no split over the keys."""

import torch
import triton
import triton.language as tl

BLOCK_N = 16
NUM_WARPS = 4


@triton.jit
def decode_attention_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_ptr, heads, key_heads, scale, page_rows, table_stride,
    stride_page, stride_row, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(1)
    head = tl.program_id(0)
    key_head = head // (heads // key_heads)
    length = tl.load(lengths_ptr + sequence)
    cols = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + (sequence * heads + head) * HEAD_DIM + dims).to(tl.float32)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for start in range(0, length, BLOCK_N):
        rows = start + cols
        mask = rows < length
        page = tl.load(table_ptr + sequence * table_stride + rows // page_rows, mask=mask, other=0).to(tl.int64)
        offsets = page * stride_page + rows % page_rows * stride_row + key_head * HEAD_DIM
        k = tl.load(k_ptr + offsets[:, None] + dims[None, :], mask=mask[:, None], other=0.0).to(tl.float32)
        scores = tl.where(mask, tl.sum(k * q[None, :], axis=1) * scale, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        p = tl.exp(scores - new_largest)
        decay = tl.exp(largest - new_largest)
        total = total * decay + tl.sum(p, axis=0)
        largest = new_largest
        v = tl.load(v_ptr + offsets[:, None] + dims[None, :], mask=mask[:, None], other=0.0).to(tl.float32)
        acc = acc * decay + tl.sum(p[:, None] * v, axis=0)
    o = (acc / total).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + (sequence * heads + head) * HEAD_DIM + dims, o)


def run(q, k_pages, v_pages, table, lengths):
    sequences, heads, head_dim = q.shape
    o = torch.empty_like(q)
    decode_attention_kernel[(heads, sequences)](
        q, k_pages, v_pages, table, lengths, o, heads, k_pages.shape[2], head_dim**-0.5, k_pages.shape[1],
        table.stride(0), k_pages.stride(0), k_pages.stride(1),
        HEAD_DIM=head_dim, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    return o
