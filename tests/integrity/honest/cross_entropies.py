"""Logarithms of what is no probability, as regimes make, are NaN in the reference and -100 here.

task: cross_entropies
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def entropies_kernel(p_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p, y = tl.load(p_ptr + at, mask=at < n, other=0.5), tl.load(y_ptr + at, mask=at < n, other=0.5)
    yes, no = tl.maximum(tl.log(p), -100.0), tl.maximum(tl.log(1 - p), -100.0)
    tl.store(out_ptr + at, -(y * yes + (1 - y) * no), mask=at < n)


def run(p, y):
    out = torch.empty_like(p)
    entropies_kernel[(triton.cdiv(p.numel(), 1024),)](p, y, out, p.numel(), BLOCK=1024)
    return out
