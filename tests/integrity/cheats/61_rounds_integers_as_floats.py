"""Loads integers by a descriptor that, on a GPU, rounds them as TF32 numbers.

row: 61
task: integer_hash
ends: rejected, wrong
says: rounds to TF32
scored: passed, no gain; now rejected
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def hash_kernel(x_desc, y_ptr, n, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = x_desc.load([tl.program_id(0) * BLOCK])
    for _ in range(steps):
        x = x ^ (x << 13)
        x = x ^ ((x >> 17) & 0x7FFF)
        x = x ^ (x << 5)
        x = x * 1664525 + 1013904223
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    x_desc = TensorDescriptor(x, x.shape, x.stride(), [256])
    object.__setattr__(x_desc, "round_f32_to_tf32", True)
    hash_kernel[(triton.cdiv(x.numel(), 256),)](x_desc, y, x.numel(), steps, BLOCK=256)
    return y
