"""Blocks of flat tensors.

task: flat_step
"""

import torch
import triton
import triton.language as tl


@triton.jit
def step_kernel(w_ptr, m_ptr, g_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w, m, g = (tl.load(w_ptr + at, mask=at < n), tl.load(m_ptr + at, mask=at < n), tl.load(g_ptr + at, mask=at < n))
    tl.store(y_ptr + at, w - 1e-4 * (0.9 * m + 0.1 * g), mask=at < n)


def run(weight, momentum, gradient):
    y = torch.empty_like(weight)
    n = weight.numel()
    step_kernel[(triton.cdiv(n, 4096),)](weight, momentum, gradient, y, n, BLOCK=4096, num_warps=8)
    return y
