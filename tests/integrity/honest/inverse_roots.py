"""One instruction, which takes denormal numbers for zeros, as that of torch.compile's kernels does.

task: inverse_roots
"""

import torch
import triton
import triton.language as tl


@triton.jit
def root_kernel(x, y, n, B: tl.constexpr):
    c = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + c, tl.rsqrt(tl.load(x + c, mask=c < n)), mask=c < n)


def run(x):
    y = torch.empty_like(x)
    root_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    return y
