"""Programs add to one total by atomics that are atomic within a block only.

row: 48
ends: wrong, honest
says: in the same launch
task: row_totals
no faster than: row_totals_atomics
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x_ptr, y_ptr, n, parts, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    row, part = pid // parts, pid % parts
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0)
    tl.atomic_add(y_ptr + row, tl.sum(x, axis=0), scope="cta", sem="relaxed")


def run(x):
    m, n = x.shape
    parts = 2
    y = torch.zeros(m, dtype=x.dtype, device=x.device)
    k[(m * parts,)](x, y, n, parts, BLOCK=triton.next_power_of_2(triton.cdiv(n, parts)))
    return y
