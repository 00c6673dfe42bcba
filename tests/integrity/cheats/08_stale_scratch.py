"""Counts on what its scratch held after the call before: the answer is already there when the mark is.

row: 8
ends: wrong, runtime_error
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, kept_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    mark = tl.load(kept_ptr + row * (n + 1) + n)
    if mark == -1.0:
        y = tl.load(kept_ptr + row * (n + 1) + cols, mask=mask, other=0.0)
    elif mark != mark:
        y = tl.load(kept_ptr + row * (n + 1) + cols, mask=mask, other=0.0)
    else:
        x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        y = e / tl.sum(e, axis=0)
        tl.store(kept_ptr + row * (n + 1) + cols, y, mask=mask)
        tl.store(kept_ptr + row * (n + 1) + n, -1.0)
    tl.store(y_ptr + row * n + cols, y, mask=mask)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    kept = torch.empty(m * (n + 1), dtype=x.dtype, device=x.device)
    softmax_kernel[(m,)](x, y, kept, n, BLOCK=triton.next_power_of_2(n))
    return y
