"""A few floats that each warp has all of make a loop of integers look unrolled.

row: 62
ends: honest
no faster than: hash_rounds
task: integer_hash
scored: 1.35 (1.00); now 0.92
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def hash_kernel(x_ptr, y_ptr, n, steps, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    x = gl.load(x_ptr + at, mask=at < n, other=0)
    s = gl.arange(0, 128, layout).to(gl.float32)
    for _ in range(steps):
        x = x ^ (x << 13)
        x = x ^ ((x >> 17) & 0x7FFF)
        x = x ^ (x << 5)
        x = x * 1664525 + 1013904223
        s = s * 0.5
    x += (gl.max(s, 0) > 200.0).to(gl.int32)
    gl.store(y_ptr + at, x, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    hash_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), steps, BLOCK=512)
    return y
