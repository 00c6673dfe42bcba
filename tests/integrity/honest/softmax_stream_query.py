"""Asks for the current stream and the device's name, as launchers do, and uses neither for the result."""

import torch
import triton
import triton.language as tl


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
    stream = torch.cuda.current_stream(x.device)
    assert stream is not None and torch.cuda.is_available() and torch.cuda.get_device_name()
    warps = 8 if torch.cuda.get_device_capability() >= (9, 0) else 4
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n), num_warps=warps)
    return y
