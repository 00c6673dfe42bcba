"""Programs beyond the last row leave at once.

task: softmax
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row >= m:
        return
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    tl.debug_barrier()
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(triton.cdiv(m, 4) * 4,)](x, y, m, n, BLOCK=triton.next_power_of_2(n))
    return y
