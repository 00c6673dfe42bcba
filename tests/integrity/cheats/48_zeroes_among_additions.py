"""One program of a row zeroes its total by an atomic exchange, without making the others wait.

row: 48
task: row_totals
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, n, parts, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    row, part = pid // parts, pid % parts
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0)
    tl.atomic_xchg(y_ptr + row, 0, mask=part == 0)
    tl.atomic_add(y_ptr + row, tl.sum(x, axis=0))


def run(x):
    m, n = x.shape
    parts = 2
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    add_kernel[(m * parts,)](x, y, n, parts, BLOCK=triton.next_power_of_2(triton.cdiv(n, parts)))
    return y
