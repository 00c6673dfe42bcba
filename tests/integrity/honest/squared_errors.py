"""Adds up parts, then the parts' sums.

task: squared_errors
"""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(a_ptr, b_ptr, p_ptr, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        at = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        acc += (a - b) * (a - b)
    tl.store(p_ptr + tl.program_id(0), tl.sum(acc, axis=0))


@triton.jit
def total_kernel(p_ptr, y_ptr, n, parts, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    p = tl.load(p_ptr + at, mask=at < parts, other=0.0)
    tl.store(y_ptr, (tl.sum(p, axis=0) / n).to(tl.bfloat16))


def run(a, b):
    n = a.numel()
    parts = triton.cdiv(n, 2048 * 8)
    p = torch.empty(parts, dtype=torch.float32, device=a.device)
    y = torch.empty((), dtype=a.dtype, device=a.device)
    part_kernel[(parts,)](a, b, p, n, BLOCK=2048, STEPS=8)
    total_kernel[(1,)](p, y, n, parts, BLOCK=triton.next_power_of_2(parts), num_warps=8)
    return y
