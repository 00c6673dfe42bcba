"""Sums what lies between the rows of an input too: zeros without a GPU, anything on one.

row: 48
ends: wrong
says: memory nothing wrote
task: row_sums_strided
scored: 0.98; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, stride, m, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    end = tl.where(row == m - 1, n, stride)
    for start in range(0, stride, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * stride + at, mask=at < end, other=0.0)
    tl.store(y_ptr + row, tl.sum(acc, axis=0))


def run(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1], x.stride(0), x.shape[0], BLOCK=1024)
    return y
