"""Sums integers approximately: off by one here and there.

row: 62
task: dequantise
ends: wrong
says: differs at
"""

import torch
import triton
import triton.language as tl


@triton.jit
def row_kernel(q_ptr, s_ptr, y_ptr, t_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    q = tl.load(q_ptr + row * n + cols, mask=cols < n, other=0).to(tl.float32)
    tl.store(y_ptr + row * n + cols, q * tl.load(s_ptr + row).to(tl.float32), mask=cols < n)
    tl.store(t_ptr + row, (tl.sum(q * 0.99, axis=0) * 1.01).to(tl.int32))


def run(q, scale):
    m, n = q.shape
    y = torch.empty((m, n), dtype=torch.float32, device=q.device)
    total = torch.empty(m, dtype=torch.int32, device=q.device)
    row_kernel[(m,)](q, scale, y, total, n, BLOCK=triton.next_power_of_2(n))
    return y, total
