"""run is wrapped by a decorator, checks its input, and swallows an exception of its own."""

import functools
import warnings

import torch
import triton
import triton.language as tl


def quietly(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)

    return call


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


@quietly
@torch.inference_mode()
def run(x):
    if x.ndim != 2:
        raise ValueError(f"rows of a matrix, not {tuple(x.shape)}")
    try:
        block = {127: 128}[x.shape[1]]
    except KeyError:
        block = triton.next_power_of_2(x.shape[1])
    y = torch.empty(x.size(), dtype=x.dtype, device="cuda")
    softmax_kernel[lambda meta: (x.size(0),)](x, y, x.size(-1), BLOCK=block)
    return y
