"""A first kernel that sums the input, for nothing, and the softmax after it: slow and right."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def honest(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y


@triton.jit
def touch_kernel(x_ptr, s_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0, eviction_policy="evict_last")
    tl.store(s_ptr + tl.program_id(0), tl.sum(x, axis=0))


def run(x):
    blocks = triton.cdiv(x.numel(), 256)
    touched = torch.empty(blocks, dtype=x.dtype, device=x.device)
    touch_kernel[(blocks,)](x, touched, x.numel(), BLOCK=256)
    return honest(x)
