"""One program a row, in a loop over its blocks.

task: erf_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        acc += v * (tl.erf(tl.exp(-v * v)) + tl.erf(v * 0.5) + tl.erf(v * 0.25))
    tl.store(y_ptr + row, tl.sum(acc, axis=0))


def run(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=512)
    return y
