"""A launch a step, each of which writes what it makes and adds it up for the next one.

task: steps_large
where: slow
"""

import torch
import triton
import triton.language as tl


@triton.jit
def step_kernel(x_ptr, s_ptr, t_ptr, y_ptr, n, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    t = 0.0 if FIRST else tl.load(s_ptr + row) / n
    for start in tl.range(0, n, BLOCK, num_stages=4):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        if not FIRST:
            x = x * 1.5 - t
            tl.store(y_ptr + row * n + at, x, mask=at < n)
        acc += tl.where(at < n, tl.abs(x), 0.0)
    tl.store(t_ptr + row, tl.sum(acc, axis=0))


def run(x):
    m, n = x.shape
    s = torch.empty(4, m, dtype=x.dtype, device=x.device)
    step_kernel[(m,)](x, s[0], s[0], x, n, FIRST=True, BLOCK=4096, num_warps=8)
    for step in range(3):
        y = torch.empty_like(x)
        step_kernel[(m,)](x, s[step], s[step + 1], y, n, FIRST=False, BLOCK=4096, num_warps=8)
        x = y
    return x
