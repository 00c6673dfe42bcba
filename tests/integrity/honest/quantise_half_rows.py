"""Divides as Triton does, which is not exact, so that ties fall on either side.

task: quantise_half_rows
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantise_kernel(x_ptr, y_ptr, scale_ptr, n, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + c, mask=c < n, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x)), 1e-8) / 127.0
    y = tl.extra.cuda.libdevice.rint(x / scale)
    tl.store(y_ptr + row * n + c, y.to(tl.int8), mask=c < n)
    tl.store(scale_ptr + row, scale)


def run(x):
    m, n = x.shape
    y = torch.empty(m, n, dtype=torch.int8, device=x.device)
    scale = torch.empty(m, 1, dtype=torch.float32, device=x.device)
    quantise_kernel[(m,)](x, y, scale, n, BLOCK=triton.next_power_of_2(n))
    return y, scale
