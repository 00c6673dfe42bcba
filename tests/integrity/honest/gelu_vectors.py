"""Grid-stride loop over vectors of four, the rest by a second kernel on slices.

task: gelu
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def body_kernel(x_ptr, y_ptr, blocks, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        where = tl.multiple_of(block * BLOCK, BLOCK) + at
        tl.store(y_ptr + where, gelu(tl.load(x_ptr + where)))


@triton.jit
def rest_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, gelu(tl.load(x_ptr + at, mask=at < n)), mask=at < n)


def run(x):
    y, n = torch.empty_like(x), x.numel()
    whole = n // 256
    body_kernel[(min(8, whole),)](x, y, whole, BLOCK=256)
    if n % 256:
        rest_kernel[(1,)](x[whole * 256 :], y[whole * 256 :], n % 256, BLOCK=256)
    return y
