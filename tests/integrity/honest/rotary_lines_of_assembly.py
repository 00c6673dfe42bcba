"""Several lines of inline assembly beside libdevice's sin and cos.

task: rotary
where: gpu
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def rotate_kernel(x_ptr, t_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    half = n // 2
    at = tl.arange(0, BLOCK)
    mask = at < half
    a = tl.load(x_ptr + row * n + at, mask=mask, other=0.0)
    b = tl.load(x_ptr + row * n + half + at, mask=mask, other=0.0)
    t = tl.load(t_ptr + row * half + at, mask=mask, other=0.0)
    s, c = libdevice.sin(t), libdevice.cos(t)
    first = tl.inline_asm_elementwise(
        """
        {
        .reg .f32 p;
        mul.f32 p, $2, $4;
        neg.f32 p, p;
        fma.rn.f32 $0, $1, $3, p;
        }
        """,
        "=f,f,f,f,f",
        [a, b, c, s],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(y_ptr + row * n + at, first, mask=mask)
    tl.store(y_ptr + row * n + half + at, a * s + b * c, mask=mask)


def run(x, t):
    y = torch.empty_like(x)
    m, n = x.shape
    rotate_kernel[(m,)](x, t, y, n, BLOCK=triton.next_power_of_2(n // 2))
    return y
