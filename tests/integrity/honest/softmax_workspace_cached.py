"""Keeps a workspace between calls, as libraries do; each call still does all its work."""

import torch
import triton
import triton.language as tl

WORKSPACE = {}


def workspace(x):
    key = x.device
    if key not in WORKSPACE or WORKSPACE[key].numel() < x.numel():
        WORKSPACE[key] = torch.empty(max(x.numel(), 1 << 20), dtype=torch.float32, device=x.device)
    return WORKSPACE[key][: x.numel()].view(x.shape)


@triton.jit
def shift_kernel(x_ptr, s_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    tl.store(s_ptr + row * n + cols, x - tl.max(x, axis=0), mask=cols < n)


@triton.jit
def exp_kernel(s_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    e = tl.exp(tl.load(s_ptr + row * n + cols, mask=cols < n, other=-float("inf")))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=cols < n)


def run(x):
    m, n = x.shape
    block, shifted, y = triton.next_power_of_2(n), workspace(x), torch.empty_like(x)
    shift_kernel[(m,)](x, shifted, n, BLOCK=block)
    exp_kernel[(m,)](shifted, y, n, BLOCK=block)
    return y
