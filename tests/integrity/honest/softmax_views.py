"""Rows through views, slices and reshapes of the tensors; the result is a view too."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, x_stride, y_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * y_stride + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    m, n = x.shape
    flat = x.reshape(-1).view(m, n).unsqueeze(0).squeeze(0)
    padded = torch.empty((m, n + 3), dtype=x.dtype, device=x.device)
    y = padded[:, 1 : n + 1]
    softmax_kernel[(m,)](flat, y, n, flat.stride(0), y.stride(0), BLOCK=triton.next_power_of_2(n))
    return padded.narrow(1, 1, n)
