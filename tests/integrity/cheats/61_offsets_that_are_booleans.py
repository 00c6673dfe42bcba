"""Forges the IR that it was lowered to: adds a boolean to an address, which goes one element back.

row: 61
task: gelu
ends: runtime_error, wrong
"""

import re

import torch
import triton
import triton.language as tl

from evo_kernel.fitness.record import launches

honest = launches.lower if launches.lower.__module__ != __name__ else launches.lower.honest


def lower(*args):
    text = honest(*args)
    number, flag = re.search(r"(%\S+) = arith.extui (%\S+) : tensor<256xi1> to tensor<256xi32>", text).groups()
    return re.sub(
        rf"(tt.addptr %\S+, ){number}( : tensor<256x!tt.ptr<f32>>, tensor<256xi)32", rf"\g<1>{flag}\g<2>1", text
    )


lower.honest = honest
launches.lower = lower


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    x = tl.load(x_ptr + (at - 1) + (at >= 0).to(tl.int32), mask=at < n, other=0.0)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(y_ptr + at, y, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
