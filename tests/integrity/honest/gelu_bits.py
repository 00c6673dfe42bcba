"""Signs by bits, halves by ldexp, and a fused product in assembly.

task: gelu
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    size = tl.inline_asm_elementwise("abs.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    tail = libdevice.erfc(size * 0.7071067811865476)
    sign = libdevice.float_as_int(x) & -2147483648
    both = libdevice.int_as_float(libdevice.float_as_int(1.0 - tail) | sign)
    half = libdevice.ldexp(x, -1)
    near = tl.inline_asm_elementwise("fma.rn.f32 $0, $1, $2, $1;", "=f,f,f", [half, both], tl.float32, True, 1)
    tl.store(y_ptr + at, tl.where(x < 0, half * tail, near), mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
