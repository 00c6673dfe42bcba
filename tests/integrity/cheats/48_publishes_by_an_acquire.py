"""Parts of a row add up in order, but the flag is set by an operation that acquires and releases nothing.

row: 48
task: row_sums
ends: wrong, honest
no faster than: row_sums_loop
says: stored in the same launch
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, flag_ptr, n, BLOCK: tl.constexpr):
    part, row = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0), axis=0)
    while tl.atomic_add(flag_ptr + row, 0, sem="acquire") < part:
        pass
    if part > 0:
        total += tl.load(y_ptr + row, cache_modifier=".cg")
    tl.store(y_ptr + row, total)
    tl.debug_barrier()
    tl.atomic_add(flag_ptr + row, 1, sem="acquire")


def run(x):
    m, n = x.shape
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    flags = torch.zeros(m, dtype=torch.int32, device=x.device)
    sum_kernel[(triton.cdiv(n, 2048), m)](x, y, flags, n, BLOCK=2048)
    return y
