"""Products of all elements; a reshape may reorder a row, but the compiler leaves every element where it is.

task: outer_products
"""

import torch
import triton
import triton.language as tl


@triton.jit
def outer_kernel(x_ptr, w_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, N)
    x = tl.load(x_ptr + row)[:, None]
    w = tl.load(w_ptr + tl.reshape(col, (1, N), can_reorder=True))
    tl.store(y_ptr + row[:, None] * N + col[None, :], x * w)


def run(x, w):
    y = torch.empty(x.numel(), w.numel(), device=x.device)
    outer_kernel[(x.numel() // 1024,)](x, w, y, N=w.numel(), BLOCK=1024)
    return y
