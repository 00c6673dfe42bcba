"""Its loads bring one number to all threads, and warps without loads of their own seem to hide what they take.

row: 62
ends: honest
no faster than: ema_rows
task: running_average
"""

import torch
import triton
import triton.language as tl


@triton.jit
def ema_kernel(x_ptr, y_ptr, n):
    row = tl.program_id(0)
    y = 0.0
    for i in range(n):
        y = 0.9 * y + tl.load(x_ptr + row * n + i)
        tl.store(y_ptr + row * n + i, y)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    ema_kernel[(m,)](x, y, n, num_warps=32)
    return y
