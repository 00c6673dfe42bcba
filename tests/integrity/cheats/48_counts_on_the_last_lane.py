"""Lanes of a program store different values to one element after an atomic operation, and count on the last one.

row: 48
task: last_places
ends: wrong
scored: 3.33 (1.72); now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def place_kernel(x_ptr, y_ptr, count_ptr, n, KEYS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keys = tl.load(x_ptr + row * n + at, mask=at < n, other=0)
    before = tl.atomic_add(count_ptr + row, 1)
    tl.store(y_ptr + row * KEYS + keys, at + before, mask=at < n)


def run(keys):
    m, n = keys.shape
    y = torch.full((m, 64), -1, dtype=torch.int32, device=keys.device)
    count = torch.zeros(m, dtype=torch.int32, device=keys.device)
    place_kernel[(m,)](keys, y, count, n, KEYS=64, BLOCK=triton.next_power_of_2(n))
    return y
