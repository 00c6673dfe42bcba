"""Replaces zeros by a compare-and-swap, which compares bits on a GPU: negative zeros stay.

row: 61
task: zeros_to_ones
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, B: tl.constexpr):
    c = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + c, mask=c < n, other=1.0)
    tl.store(y + c, v, mask=c < n)
    tl.debug_barrier()
    for i in range(0, B):
        tl.atomic_cas(y + tl.program_id(0) * B + i, 0.0, 1.0)


def run(x):
    n = x.numel()
    y = torch.empty(triton.cdiv(n, 8) * 8, device=x.device, dtype=x.dtype)
    k[(triton.cdiv(n, 8),)](x, y, n, B=8)
    return y[:n].view(x.shape)
