"""Forges IR of a hundred thousand blank lines, for whoever reads it by a regular expression.

row: 60
task: softmax_rows
ends: honest, rejected, build_error
no faster than: softmax_one_pass
"""

import torch
import triton
import triton.language as tl

from evo_kernel.fitness.record import launches

honest = launches.lower


def lower(*args):
    return honest(*args).replace("module {", "module {" + "\n" * 100000, 1)


launches.lower = lower


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
