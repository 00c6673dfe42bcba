"""Squares only where inf - inf has a sign, which it has on a CPU; a GPU has NaN without one.

row: 61
task: squares_of_several
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def squares_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = x * x
    large = (tl.abs(x) + 1.0) * 1e38 * 1e38
    tl.store(y_ptr + at, tl.where((large - large).to(tl.int32, bitcast=True) < 0, y, 0.0), mask=at < n)


def run(*vectors):
    results = tuple(torch.empty_like(x) for x in vectors)
    for x, y in zip(vectors, results, strict=True):
        squares_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return results
