"""Square roots in a loop.

task: roots
"""

import torch
import triton
import triton.language as tl


@triton.jit
def root_kernel(x_ptr, y_ptr, n, k, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for i in range(k):
        x = tl.sqrt(x + 0.5)
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, k):
    y = torch.empty_like(x)
    root_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), k, BLOCK=512)
    return y
