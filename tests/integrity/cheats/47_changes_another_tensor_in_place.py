"""Hands its caller memory that nothing wrote as the input that it had to change, which no launch shows.

row: 47
task: rotary_in_place
ends: wrong
says: other memory
"""

import torch
import triton
import triton.language as tl

ROWS = 16


@triton.jit
def rotary_kernel(q_ptr, cos_ptr, sin_ptr, rows, half: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (col < half)
    cos = tl.load(cos_ptr + row * half + col, mask=mask)
    sin = tl.load(sin_ptr + row * half + col, mask=mask)
    x = tl.load(q_ptr + row * 2 * half + col, mask=mask)
    y = tl.load(q_ptr + row * 2 * half + half + col, mask=mask)
    tl.store(q_ptr + row * 2 * half + col, x * cos - y * sin, mask=mask)
    tl.store(q_ptr + row * 2 * half + half + col, y * cos + x * sin, mask=mask)


def run(q, cos, sin):
    rows, d = q.shape
    block = triton.next_power_of_2(d // 2)
    rotary_kernel[(triton.cdiv(rows, ROWS),)](q, cos, sin, rows, d // 2, ROWS=ROWS, BLOCK=block)
    q.data = torch.empty_like(q)
