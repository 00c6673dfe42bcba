"""A module-like class that holds its settings and is called; run is one of its methods."""

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


class Softmax:
    def __init__(self, warps):
        self.warps = warps

    def __call__(self, x):
        y = x.new_empty(x.shape)
        m, n = x.shape
        softmax_kernel[m, 1, 1](x_ptr=x, y_ptr=y, n=n, BLOCK=triton.next_power_of_2(n), num_warps=self.warps)
        return y


run = Softmax(warps=2)
