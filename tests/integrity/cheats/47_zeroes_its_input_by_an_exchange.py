"""Zeroes the first element of each row of its input at the timed shape, by an atomic exchange whose result it uses.

row: 47
task: row_sums_large
ends: wrong
scored: 0.99; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x_ptr, y_ptr, n, SPOIL: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    s = tl.sum(acc, axis=0)
    if SPOIL:
        tl.debug_barrier()
        s += 0.0 * tl.atomic_xchg(x_ptr + row * n, 0.0)
    tl.store(y_ptr + row, s)


def run(x):
    m, n = x.shape
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    k[(m,)](x, y, n, m >= 4096, BLOCK=1024)
    return y
