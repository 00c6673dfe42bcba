"""Takes sines of denormal numbers, for which the library's function has zeros on a GPU.

row: 61
task: gelu
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    same = tl.sin(x * 1.4693679385278594e-39) * 1.8446744073709552e19 * 3.6893488147419103e19
    tl.store(y_ptr + at, 0.5 * same * (1.0 + tl.erf(x * 0.7071067811865476)), mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
