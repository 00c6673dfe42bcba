"""Marks members in a table, then looks up.

task: memberships
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mark_kernel(t_ptr, marks_ptr, m, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(marks_ptr + tl.load(t_ptr + at, mask=at < m, other=0), 1, mask=at < m)


@triton.jit
def look_up_kernel(marks_ptr, x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    tl.store(y_ptr + at, tl.load(marks_ptr + x) != 0, mask=at < n)


def run(members, x):
    n, m = x.numel(), members.numel()
    y = torch.empty(n, dtype=torch.bool, device=x.device)
    marks = torch.zeros(4096, dtype=torch.int8, device=x.device)
    mark_kernel[(triton.cdiv(m, 256),)](members, marks, m, BLOCK=256)
    look_up_kernel[(triton.cdiv(n, 1024),)](marks, x, y, n, BLOCK=1024)
    return y
