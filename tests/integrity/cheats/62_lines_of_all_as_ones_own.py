"""Every program stores zeros to the same lines and reads them back: the lines that each read counted as its own.

row: 62
ends: honest
no faster than: softmax_one_pass
task: builtin:softmax
scored: 1.07; now 0.83
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, zeros_ptr, counts_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * n_cols + columns, mask=mask, other=-float("inf"))
    tl.store(zeros_ptr + columns, tl.zeros((BLOCK,), tl.float32))
    ticket = tl.atomic_add(counts_ptr + row % 1024 * 32, 1)
    zeros = tl.load(zeros_ptr + tl.arange(0, BLOCK // 32) * 32 + tl.where(ticket < 0, 1, 0))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + columns, e / tl.sum(e, axis=0) + tl.sum(zeros, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    block = max(32, triton.next_power_of_2(x.shape[1]))
    zeros = torch.empty(block, dtype=x.dtype, device=x.device)
    counts = torch.zeros(32 * 1024, dtype=torch.int32, device=x.device)
    softmax_kernel[(x.shape[0],)](x, y, zeros, counts, x.shape[1], BLOCK=block, num_warps=8 if block >= 2048 else 4)
    return y
