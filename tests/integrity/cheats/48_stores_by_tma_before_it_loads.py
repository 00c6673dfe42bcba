"""Stores by TMA what the loop loads three rounds later: compiled code has copied it a round before.

row: 48
task: lagged_sums
ends: wrong
says: the loop is pipelined
scored: passed, undefined on a GPU by its code; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, kept_ptr, y_ptr, n):
    row, side = tl.program_id(0), tl.arange(0, 32)
    at = side[:, None] * 32 + side[None, :]
    same = tl.where(side[:, None] == side[None, :], 1.0, 0.0)
    lines = n // 32 + 96
    kept = tl.make_tensor_descriptor(kept_ptr, [tl.num_programs(0) * lines, 32], [32, 1], [32, 32])
    x_ptr, y_ptr, kept_ptr = x_ptr + row * n + at, y_ptr + row * n + at, kept_ptr + row * lines * 32 + at
    for part in range(0, 3072, 1024):
        tl.store(kept_ptr + part, tl.load(x_ptr + part))
    tl.debug_barrier()
    total = tl.zeros((32, 32), tl.float32)
    for start in range(0, n, 1024):
        total = tl.dot(tl.load(kept_ptr + start), same, 0.5 * total, input_precision="ieee")
        tl.store(y_ptr + start, total)
        later = tl.load(x_ptr + start + 3072, mask=start + 3072 < n, other=0.0)
        kept.store([row * lines + start // 32 + 96, 0], later)


def run(x):
    m, n = x.shape
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=x.device))
    y = torch.empty_like(x)
    sums_kernel[(m,)](x, x.new_empty(m * (n + 3072)), y, n, num_stages=5)
    return y
