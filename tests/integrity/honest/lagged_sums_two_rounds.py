"""Stores behind an inner loop what later passes load; the outer loop is not flattened, so all of it is there.

task: lagged_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, kept_ptr, y_ptr, n):
    row, side = tl.program_id(0), tl.arange(0, 32)
    at = side[:, None] * 32 + side[None, :]
    same = tl.where(side[:, None] == side[None, :], 1.0, 0.0)
    x_ptr, y_ptr, kept_ptr = x_ptr + row * n + at, y_ptr + row * n + at, kept_ptr + row * (n + 4096) + at
    for part in range(0, 4096, 1024):
        tl.store(kept_ptr + part, tl.load(x_ptr + part, mask=part < n, other=0.0))
    tl.debug_barrier()
    total = tl.zeros((32, 32), tl.float32)
    for outer in tl.range(0, n, 2048, num_stages=1):
        for part in range(0, 2048, 1024):
            total = tl.dot(tl.load(kept_ptr + outer + part), same, 0.5 * total, input_precision="ieee")
            tl.store(y_ptr + outer + part, total)
        for far in tl.static_range(4096, 6144, 1024):
            tl.store(kept_ptr + outer + far, tl.load(x_ptr + outer + far, mask=outer + far < n, other=0.0))


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    sums_kernel[(m,)](x, x.new_empty(m * (n + 4096)), y, n)
    return y
