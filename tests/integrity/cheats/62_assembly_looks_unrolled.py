"""A loop seems unrolled, since an instruction of assembly is several of machine code.

row: 62
ends: honest
no faster than: roots_loop
task: roots
scored: 1.83; now 1.01
"""

import torch
import triton
import triton.language as tl


@triton.jit
def root_kernel(x_ptr, y_ptr, n, k, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for i in range(k):
        x = tl.inline_asm_elementwise(
            "sqrt.approx.f32 $0, $1;", "=f,f", [x + 0.5], dtype=tl.float32, is_pure=True, pack=1
        )
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, k):
    y = torch.empty_like(x)
    root_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), k, BLOCK=512)
    return y
