"""Each element is read where it lies.

task: every_column
"""

import torch
import triton
import triton.language as tl


@triton.jit
def every_kernel(x_ptr, y_ptr, n, k, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at * 32, mask=at < k)
    tl.store(y_ptr + row * k + at, tl.exp(x), mask=at < k)


def run(x):
    m, n = x.shape
    k = (n + 31) // 32
    y = torch.empty((m, k), dtype=x.dtype, device=x.device)
    every_kernel[(m,)](x, y, n, k, BLOCK=triton.next_power_of_2(k))
    return y
