"""Views a vector as a column by a reshape that may reorder, and does: four elements lie in each thread.

row: 61
task: outer_products
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def outer_kernel(x_ptr, w_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, N)
    x = tl.reshape(tl.load(x_ptr + row), (BLOCK, 1), can_reorder=True)
    w = tl.load(w_ptr + col)[None, :]
    tl.store(y_ptr + row[:, None] * N + col[None, :], x * w)


def run(x, w):
    y = torch.empty(x.numel(), w.numel(), device=x.device)
    outer_kernel[(x.numel() // 1024,)](x, w, y, N=w.numel(), BLOCK=1024)
    return y
