"""Counts arrivals from memory that nothing wrote, by its difference from a second word that nothing wrote.

row: 48
ends: wrong
task: flat_total
"""

import torch
import triton
import triton.language as tl


@triton.jit
def total_kernel(x_ptr, part_ptr, count_ptr, y_ptr, n, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    part = tl.program_id(0)
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(part_ptr + part, tl.sum(x, axis=0))
    tl.debug_barrier()
    if tl.atomic_add(count_ptr, 1, sem="acq_rel") - tl.load(count_ptr + 64) == parts - 1:
        every = tl.arange(0, PARTS)
        sums = tl.load(part_ptr + every, mask=every < parts, other=0.0, cache_modifier=".cg")
        tl.store(y_ptr, tl.sum(sums, axis=0))


def run(x):
    n = x.numel()
    parts = triton.cdiv(n, 4096)
    partial = torch.empty(parts, dtype=x.dtype, device=x.device)
    counter = torch.empty(65, dtype=torch.int32, device=x.device)
    y = x.new_empty(())
    total_kernel[(parts,)](x, partial, counter, y, n, parts, BLOCK=4096, PARTS=triton.next_power_of_2(parts))
    return y
