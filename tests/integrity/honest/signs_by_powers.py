"""Powers of -1 with exponents that float32 does not hold.

task: signs
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def k(x, y, n, B: tl.constexpr):
    c = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + c, libdevice.pow(tl.full((B,), -1.0, tl.float32), tl.load(x + c, mask=c < n, other=0)), mask=c < n)


def run(x):
    y = torch.empty(x.shape, device=x.device)
    k[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    return y
