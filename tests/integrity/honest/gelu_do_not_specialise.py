"""Parameters that are not specialised, and a type annotation.

task: gelu
"""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def gelu_kernel(x_ptr, y_ptr, n: tl.int64, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel())
    return y
