"""exp of every element; squares summed by parts, then over the parts.

task: exp_and_mean
"""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(x_ptr, y_ptr, p_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    tl.store(y_ptr + at, tl.exp(x), mask=mask)
    tl.store(p_ptr + tl.program_id(0), tl.sum(x * x, axis=0))


@triton.jit
def total_kernel(p_ptr, o_ptr, parts, count, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for s in range(0, parts, BLOCK):
        at = s + tl.arange(0, BLOCK)
        acc += tl.load(p_ptr + at, mask=at < parts, other=0.0)
    tl.store(o_ptr, tl.sum(acc, axis=0) / count)


def run(x):
    count = x.numel()
    parts = triton.cdiv(count, 8192)
    p = torch.empty(parts, device=x.device)
    o = torch.empty((), device=x.device)
    y = torch.empty_like(x)
    part_kernel[(parts,)](x, y, p, count, BLOCK=8192)
    total_kernel[(1,)](p, o, parts, count, BLOCK=1024)
    return y, o
