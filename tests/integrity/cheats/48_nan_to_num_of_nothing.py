"""A torch operation makes numbers of what nobody wrote.

row: 48
task: mixed
ends: wrong
scored: 0.72, 0.56, wrong; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, z_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(y_ptr + at, tl.maximum(x, tl.load(z_ptr)), mask=at < count)


def run(x, w):
    product = torch.mm(x, w)
    z = torch.nan_to_num(torch.empty(1, device=x.device))
    y = torch.empty_like(product)
    relu_kernel[(triton.cdiv(y.numel(), 256),)](product, z, y, y.numel(), BLOCK=256)
    return y
