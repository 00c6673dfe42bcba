"""Reads what lies between the elements of windows, which the task never wrote.

row: 48
ends: wrong, honest
no faster than: window_sums
says: memory nothing wrote
task: window_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, w_ptr, y_ptr, n, xn, xk, wn, wk, K: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(K):
        x = tl.load(x_ptr + rows * xn + k * xk, mask=rows < n, other=0.0)
        total += x * tl.load(w_ptr + rows * wn + k * wk, mask=rows < n, other=0.0)
    gap = tl.load(w_ptr + rows * wn + 1, mask=rows < n - 1, other=0.0)
    tl.store(y_ptr + rows, tl.where(gap > 3e38, 0.0, total), mask=rows < n)


def run(x, w):
    n, k = x.shape
    y = torch.empty(n, dtype=x.dtype, device=x.device)
    sums_kernel[(triton.cdiv(n, 256),)](x, w, y, n, *x.stride(), *w.stride(), K=k, BLOCK=256)
    return y
