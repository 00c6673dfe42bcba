"""Adds up what others have stored without waiting for them; everybody takes part in an atomic operation that orders nothing.

row: 48
task: row_sums
ends: wrong
scored: 1.33; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, part_ptr, count_ptr, y_ptr, n, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    tl.store(part_ptr + row * parts + part, tl.sum(x, axis=0))
    arrived = tl.atomic_add(count_ptr + row, 1, sem="acq_rel")
    if arrived >= 0 and part == parts - 1:  # the first holds always
        every = tl.arange(0, PARTS)
        sums = tl.load(part_ptr + row * parts + every, mask=every < parts, other=0.0, cache_modifier=".cg")
        tl.store(y_ptr + row, tl.sum(sums, axis=0))


def run(x):
    m, n = x.shape
    parts = triton.cdiv(n, 1024)
    partial = torch.empty((m, parts), dtype=x.dtype, device=x.device)
    counter = torch.zeros(m, dtype=torch.int32, device=x.device)
    y = x.new_empty(m)
    sum_kernel[(m, parts)](x, partial, counter, y, n, parts, BLOCK=1024, PARTS=triton.next_power_of_2(parts))
    return y
