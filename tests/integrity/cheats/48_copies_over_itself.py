"""Shifts rows by a copy within one buffer, which a CPU does in order, and a GPU in none.

row: 48
task: shifted_rows
ends: rejected
says: a copy reads what it writes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, s, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    tl.store(y + r * s + c, tl.load(x + r * n + c, mask=c < n), mask=c < n)


@triton.jit
def j(x, y, n, s, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    tl.store(y + r * n + c, tl.load(x + r * s + c, mask=c < n), mask=c < n)


def run(x):
    m, n = x.shape
    B = triton.next_power_of_2(n)
    t = torch.empty((m, n + 1), device=x.device)
    k[(m,)](x, t, n, n + 1, B=B)
    torch.ops.aten.copy_.default(t[:, : n - 1], t[:, 1:n])
    y = torch.empty_like(x)
    j[(m,)](t, y, n, n + 1, B=B)
    return y
