"""Largest places by atomics.

task: last_places
"""

import torch
import triton
import triton.language as tl


@triton.jit
def place_kernel(x_ptr, y_ptr, n, KEYS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keys = tl.load(x_ptr + row * n + at, mask=at < n, other=0)
    tl.atomic_max(y_ptr + row * KEYS + keys, at, mask=at < n, sem="relaxed")


def run(keys):
    m, n = keys.shape
    y = torch.full((m, 64), -1, dtype=torch.int32, device=keys.device)
    place_kernel[(m,)](keys, y, n, KEYS=64, BLOCK=triton.next_power_of_2(n))
    return y
