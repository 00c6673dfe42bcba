"""Multiplies by the reciprocal of the scale, so that zero points and steps next to ties fall on either side.

task: quantise_zero_points
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quant_kernel(x_ptr, q_ptr, s_ptr, z_ptr, n, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + c, mask=c < n, other=0.0)
    low, high = tl.minimum(tl.min(x, 0), 0.0), tl.maximum(tl.max(x, 0), 0.0)
    scale = tl.maximum((high - low) / 255.0, 1e-12)
    inverse = 1.0 / scale
    zero = tl.extra.cuda.libdevice.rint(-low * inverse)
    q = tl.clamp(tl.extra.cuda.libdevice.rint(x * inverse) + zero, 0.0, 255.0)
    tl.store(q_ptr + row * n + c, q.to(tl.uint8), mask=c < n)
    tl.store(s_ptr + row, scale)
    tl.store(z_ptr + row, zero.to(tl.uint8))


def run(x):
    m, n = x.shape
    q = torch.empty((m, n), dtype=torch.uint8, device=x.device)
    s = torch.empty(m, dtype=torch.float32, device=x.device)
    z = torch.empty(m, dtype=torch.uint8, device=x.device)
    quant_kernel[(m,)](x, q, s, z, n, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return q, s, z
