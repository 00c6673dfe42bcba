"""Remainders by torch, whose loop takes a round for each bit of the quotient, priced by an ordinary one's.

row: 62
ends: honest
no faster than: remainders_by_the_library
task: remainders_mixed
scored: 5.16 (1.00); now 0.88
"""

import torch
import triton
import triton.language as tl


@triton.jit
def narrow_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n).to(tl.int32), mask=at < n)


def run(x, m):
    left = torch.fmod(x.double() * 2.0**900, m.double())
    y = torch.empty_like(x)
    narrow_kernel[(triton.cdiv(x.numel(), 512),)](left, y, x.numel(), BLOCK=512)
    return y
