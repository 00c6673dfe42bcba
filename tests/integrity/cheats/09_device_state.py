"""Keeps state on the device, in shared memory that inline assembly addresses and nobody clears.

row: 9
ends: rejected, wrong, runtime_error, build_error
where: gpu
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    kept = tl.inline_asm_elementwise(
        "{ .reg .u64 a; mov.u64 a, 0; ld.shared.f32 $0, [a]; }", "=f,r", [cols], dtype=tl.float32, is_pure=False, pack=1
    )
    tl.store(y_ptr + row * n + cols, kept, mask=mask)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
