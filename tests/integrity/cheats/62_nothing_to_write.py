"""Returns a tensor of the right shape with no elements behind it, of the wrong dtype.

row: 62
ends: wrong, rejected
"""

import torch
import triton
import triton.language as tl


@triton.jit
def half_kernel(y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 0.0, mask=at < count)


def run(x):
    y = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    half_kernel[(triton.cdiv(x.numel(), 256),)](y, x.numel(), BLOCK=256)
    return y
