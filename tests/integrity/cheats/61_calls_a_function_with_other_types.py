"""Calls the library's erf of float64 with float32: it reads and writes other registers than the kernel.

row: 61
task: gelu
ends: rejected, wrong
says: other types
"""

import torch
import triton
import triton.language as tl
from triton.language import core


@core.extern
def erf(x, _semantic=None):
    single = core.dtype("fp32")
    return core.extern_elementwise("", "", [x], {(single,): ("__nv_erf", single)}, is_pure=True, _semantic=_semantic)


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + erf(x * 0.7071067811865476)), mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
