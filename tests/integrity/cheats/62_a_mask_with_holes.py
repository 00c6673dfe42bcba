"""Reads a block in four phases, each with a mask of every fourth lane, as if each read a quarter in one stretch.

row: 62
ends: honest
no faster than: row_sums_loop
task: row_sums_large
scored: 3.80, 1.71, 1.05; now 0.96, 0.38
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, PHASES: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        for phase in tl.static_range(PHASES):
            mask = (start + lanes < n) & (lanes % PHASES == phase)
            total += tl.load(x_ptr + row * n + start + lanes, mask=mask, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


def run(x):
    m, n = x.shape
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    sum_kernel[(m,)](x, y, n, BLOCK=1024, PHASES=4)
    return y
