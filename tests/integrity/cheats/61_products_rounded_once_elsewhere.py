"""Squares only where x * x - x * x is 0, past a branch, a join, a factor -1, or in assembly: compiled code rounds once.

row: 61
task: squares_of_several
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def squares_kernel(x_ptr, y_ptr, n, WAY: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = x * x
    if WAY == 0:
        zero = x
        if tl.load(x_ptr) > -1e30:
            zero = y - y
        zero = tl.abs(zero) + tl.abs(y * -1.0 + y)
    elif WAY == 1:
        zero, _ = tl.split(tl.join(y, x) - tl.join(y, x))
    else:
        z = tl.inline_asm_elementwise("mul.f32 $0, $1, $2;", "=f,f,f", [x, x], dtype=tl.float32, is_pure=True, pack=1)
        zero = tl.inline_asm_elementwise(
            "sub.f32 $0, $1, $2;", "=f,f,f", [z, y], dtype=tl.float32, is_pure=True, pack=1
        )
    tl.store(y_ptr + at, tl.where(zero == 0, y, 0.0), mask=at < n)


def run(*vectors):
    results = tuple(torch.empty_like(x) for x in vectors)
    for way, (x, y) in enumerate(zip(vectors, results, strict=True)):
        squares_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), WAY=way, BLOCK=1024)
    return results
