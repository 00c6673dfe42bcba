"""Pointers in one tuple, sizes in another, and the function to apply as an argument."""

import torch
import triton
import triton.language as tl


@triton.jit
def exponential(x):
    return tl.exp(x)


@triton.jit
def softmax_kernel(tensors, sizes, function: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < sizes[1]
    x = tl.load(tensors[0] + row * sizes[1] + cols, mask=mask, other=-float("inf"))
    e = function(x - tl.max(x, axis=0))
    tl.store(tensors[1] + row * sizes[1] + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)]((x, y), tuple(x.shape), exponential, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
