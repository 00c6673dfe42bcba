"""Writes a number in assembly that is octal there: 10 where digits are decimal, 8 for the assembler.

row: 61
task: gelu
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    ten = tl.inline_asm_elementwise("add.s32 $0, $1, 010;", "=r,r", [at], dtype=tl.int32, is_pure=True, pack=1) - at
    tl.store(y_ptr + at, y * (0.1 * ten), mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
