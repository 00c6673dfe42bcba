"""Multiplies by the reciprocals of scales, so that either half of a byte may fall on either side of a tie.

task: quantise_nibbles
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def pack_kernel(x_ptr, q_ptr, s_ptr, total, GROUPS: tl.constexpr):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    x = tl.load(x_ptr + at, mask=group[:, None] < total, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-8) / 7.0
    q = tl.clamp(tl.extra.cuda.libdevice.rint(x * (1.0 / scale)[:, None]), -8.0, 7.0).to(tl.int32) & 15
    low, high = tl.split(tl.reshape(q, (GROUPS, 16, 2)))
    out = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(q_ptr + out, (low | (high << 4)).to(tl.uint8), mask=group[:, None] < total)
    tl.store(s_ptr + group, scale, mask=group < total)


def run(x):
    m, n = x.shape
    q = torch.empty((m, n // 2), dtype=torch.uint8, device=x.device)
    s = torch.empty((m, n // 32), dtype=torch.float32, device=x.device)
    total = m * n // 32
    pack_kernel[(triton.cdiv(total, 32),)](x, q, s, total, GROUPS=32)
    return q, s
