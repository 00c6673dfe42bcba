"""Saturates at half of the range, where single roundings are as large as what was left uncompared.

row: 41
task: quantise_eight_bits
ends: wrong
scored: 1.00 of the honest kernel; wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantise_kernel(x_ptr, y_ptr, scale_ptr, n, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + c, mask=c < n, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-8) / 448.0
    y = tl.clamp(x * (1.0 / scale), -256.0, 256.0)
    tl.store(y_ptr + row * n + c, y.to(tl.float8e4nv), mask=c < n)
    tl.store(scale_ptr + row, scale)


def run(x):
    m, n = x.shape
    y, scale = torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.empty(m, 1, device=x.device)
    quantise_kernel[(m,)](x, y, scale, n, BLOCK=triton.next_power_of_2(n))
    return y, scale
