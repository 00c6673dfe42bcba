"""A second kernel writes the answer long after the first has signalled that it is there.

row: 31
ends: timeout, wrong, rejected
where: slow
deadline: 4
"""

import torch
import triton
import triton.language as tl


@triton.jit
def late_kernel(x_ptr, y_ptr, flag_ptr, n, BLOCK: tl.constexpr):
    while tl.atomic_add(flag_ptr, 0) == 0:
        pass
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=cols < n)


def run(x):
    y = torch.empty_like(x)
    flag = torch.zeros(1, dtype=torch.int32, device=x.device)
    m, n = x.shape
    late_kernel[(m,)](x, y, flag, n, BLOCK=triton.next_power_of_2(n))
    return y
