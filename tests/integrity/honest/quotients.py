"""A quotient.

task: quotients
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, w, y, n, B: tl.constexpr):
    c = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + c, tl.load(x + c, mask=c < n) / tl.load(w + c, mask=c < n, other=1.0), mask=c < n)


def run(x, w):
    y = torch.empty_like(x)
    k[(triton.cdiv(x.numel(), 256),)](x, w, y, x.numel(), B=256)
    return y
