"""relu(x @ w) with torch operations that change their arguments: one returns nothing, one takes a mask's negation.

task: mixed
"""

import torch
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.maximum(tl.load(x_ptr + at, mask=at < count), 0.0), mask=at < count)


def run(x, w):
    product = torch.mm(x, w)
    product.masked_fill_(~(product > 0), 0.0)
    y, z = torch.empty_like(product), torch.empty_like(product)
    relu_kernel[(triton.cdiv(y.numel(), 256),)](product, y, y.numel(), BLOCK=256)
    torch._foreach_copy_([z], [y])
    return z
