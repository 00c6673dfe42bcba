"""Takes the power of two from the bits of the largest element; stores scales as bytes.

task: quantise_groups
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantise_kernel(x_ptr, y_ptr, scale_ptr, n, GROUPS: tl.constexpr):
    row, group = tl.program_id(0), tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = row * n + group[:, None] * 32 + tl.arange(0, 32)[None, :]
    x = tl.load(x_ptr + at, mask=group[:, None] < n // 32, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x), 1), 3.0092655310598618e-36)  # 2^-118
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) - 8
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    y = tl.clamp(x * inverse[:, None], -448.0, 448.0)
    tl.store(y_ptr + at, y.to(tl.float8e4nv), mask=group[:, None] < n // 32)
    tl.store(scale_ptr + row * (n // 32) + group, exponent.to(tl.uint8), mask=group < n // 32)


def run(x):
    m, n = x.shape
    y = torch.empty(m, n, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(m, n // 32, dtype=torch.float8_e8m0fnu, device=x.device)
    quantise_kernel[(m, triton.cdiv(n // 32, 16))](x, y, scale.view(torch.uint8), n, GROUPS=16)
    return y, scale
