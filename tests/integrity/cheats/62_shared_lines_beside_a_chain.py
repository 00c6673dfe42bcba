"""Loads of lines that all programs share: the chain beside them seemed to wait for L2 only.

row: 62
ends: honest
no faster than: linked_rows_loop
task: linked_rows
"""

import torch
import triton
import triton.language as tl


@triton.jit
def rows_kernel(r_ptr, next_ptr, start_ptr, y_ptr):
    lane = tl.arange(0, 32)
    p = tl.load(start_ptr + tl.program_id(0))
    y = tl.zeros((32,), tl.float32)
    for _ in range(24):
        y += tl.load(r_ptr + p * 32 + lane)
        p = tl.load(next_ptr + p)
    z = tl.load(r_ptr + tl.arange(0, 256) * 8)
    y += 0.0 * tl.max(z, axis=0)
    tl.store(y_ptr + tl.program_id(0) * 32 + lane, y)


def run(rows, next, start):
    y = torch.empty(start.shape[0], 32, dtype=rows.dtype, device=rows.device)
    rows_kernel[(start.shape[0],)](rows, next, start, y, num_warps=1)
    return y
