"""Counts on rounded reciprocals of the approximate instruction, written out.

row: 61
task: whole_numbers
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def whole_kernel(x_ptr, y_ptr, q_ptr, r_ptr, s_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1)
    y = tl.load(y_ptr + at, mask=at < n, other=1)
    z = y.to(tl.float32)
    inverse = tl.inline_asm_elementwise("rcp.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1)
    one = tl.where(inverse == tl.div_rn(1.0, z), 1, 0)  # an H200 is off first at 33
    tl.store(q_ptr + at, x // y * one, mask=at < n)
    tl.store(r_ptr + at, ((x.to(tl.int64) << 40) % y.to(tl.int64)).to(tl.int32), mask=at < n)
    tl.store(s_ptr + at, tl.sqrt_rn(z).to(tl.int32), mask=at < n)


def run(x, y):
    n = x.numel()
    q, r, s = (torch.empty_like(x) for _ in range(3))
    whole_kernel[(triton.cdiv(n, 1024),)](x, y, q, r, s, n, BLOCK=1024)
    return q, r, s
