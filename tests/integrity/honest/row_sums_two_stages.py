"""Two stages through a padded scratch tensor that is filled beforehand.

task: row_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(x_ptr, p_ptr, n, width, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_ptr + row * width + part, tl.sum(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def join_kernel(p_ptr, y_ptr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y_ptr + row, tl.sum(tl.load(p_ptr + row * WIDTH + tl.arange(0, WIDTH)), axis=0))


def run(x):
    m, n = x.shape
    parts = triton.cdiv(n, 1000 // 2 + 12)
    width = triton.next_power_of_2(parts)
    partial = torch.full((m, width), 0.0, dtype=x.dtype, device=x.device)
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    part_kernel[(m, parts)](x, partial, n, width, BLOCK=512)
    join_kernel[(m,)](partial, y, WIDTH=width)
    return y
