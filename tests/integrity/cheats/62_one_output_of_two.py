"""Returns only the first of two outputs.

row: 62
task: dequantise
ends: wrong
says: 1 output
"""

import torch
import triton
import triton.language as tl


@triton.jit
def value_kernel(q_ptr, s_ptr, y_ptr, n, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    q = tl.load(q_ptr + at, mask=at < count)
    scale = tl.load(s_ptr + at // n, mask=at < count)
    tl.store(y_ptr + at, q.to(tl.float32) * scale.to(tl.float32), mask=at < count)


def run(q, scale):
    m, n = q.shape
    y = torch.empty(q.shape, device=q.device, dtype=torch.float32)
    value_kernel[(triton.cdiv(m * n, 512),)](q, scale, y, n, m * n, BLOCK=512)
    return y
