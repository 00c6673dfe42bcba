"""Never ends on the device.

row: 60
ends: timeout
where: slow
deadline: 4
"""

import torch
import triton
import triton.language as tl


@triton.jit
def endless_kernel(x_ptr, y_ptr):
    while tl.load(x_ptr, volatile=True) != 123.25:
        tl.store(y_ptr, 0.0)


def run(x):
    y = torch.empty_like(x)
    endless_kernel[(1,)](x, y)
    return y
