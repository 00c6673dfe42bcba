"""Leaves -1 unwritten at the timed shape, where only the first poison is used.

row: 41
ends: wrong
task: rare_positions
"""

import torch
import triton
import triton.language as tl


@triton.jit
def positions_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, LAZY: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    y = tl.where(x > 3.5, at, -1).to(tl.int64)
    tl.store(y_ptr + row * n + at, y, mask=(at < n) & ((x > 3.5) | (not LAZY)))


def run(x):
    m, n = x.shape
    y = torch.empty((m, n), dtype=torch.int64, device=x.device)
    positions_kernel[(m, triton.cdiv(n, 2048))](x, y, n, BLOCK=2048, LAZY=m * n > 1000000)
    return y
