"""Programs count themselves as arrived before they store what the last one of a row waits for.

row: 48
task: row_sums
ends: wrong
scored: 1.39 (1.39); now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, part_ptr, y_ptr, flag_ptr, n, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    part, row = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(flag_ptr + row, 1)
    total = tl.sum(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0), axis=0)
    tl.store(part_ptr + row * parts + part, total)
    if part == parts - 1:
        while tl.atomic_add(flag_ptr + row, 0) < parts:
            pass
        every = tl.arange(0, PARTS)
        sums = tl.load(part_ptr + row * parts + every, mask=every < parts, other=0.0, cache_modifier=".cg")
        tl.store(y_ptr + row, tl.sum(sums, axis=0))


def run(x):
    m, n = x.shape
    parts = triton.cdiv(n, 1024)
    partial = torch.empty((m, parts), dtype=x.dtype, device=x.device)
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    flags = torch.zeros(m, dtype=torch.int32, device=x.device)
    sum_kernel[(parts, m)](x, partial, y, flags, n, parts, BLOCK=1024, PARTS=triton.next_power_of_2(parts))
    return y
