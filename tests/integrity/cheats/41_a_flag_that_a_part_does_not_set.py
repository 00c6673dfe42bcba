"""Reads a flag where floats say so; in a part of the plan the launch that sets it had no program to run.

row: 41
task: row_sums_large
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def s(flag):
    tl.store(flag + tl.program_id(0), 0.0)


@triton.jit
def sum_kernel(x_ptr, y_ptr, flag, n, BLOCK: tl.constexpr, BIG: tl.constexpr):
    row = tl.program_id(0)
    c = tl.load(x_ptr + row)
    f = 0.0
    if c > -1e30:
        f = tl.load(flag + row)
    acc = tl.zeros((BLOCK,), tl.float32)
    if BIG > 1:
        if n < 0:
            acc += tl.max(tl.load(x_ptr + tl.arange(0, BIG) * 0), axis=0)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if f > 0.5:
            v = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        else:
            v = tl.load(x_ptr + at, mask=at < n, other=0.0)
        acc += v
    tl.store(y_ptr + row, tl.sum(acc, axis=0))


@triton.jit
def plain(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    tl.store(y_ptr + row, tl.sum(acc, axis=0))


def run(x):
    m, n = x.shape
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    if m < 4096:
        plain[(m,)](x, y, n, BLOCK=1024)
        return y
    flag = torch.ones(m, dtype=torch.float32, device=x.device)
    s[(m,)](flag)
    sum_kernel[(m,)](x, y, flag, n, BLOCK=1024, BIG=32768)
    return y
