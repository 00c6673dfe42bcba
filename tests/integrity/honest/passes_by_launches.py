"""A launch a pass.

task: passes_large
where: slow
"""

import torch
import triton
import triton.language as tl


@triton.jit
def pass_kernel(x_ptr, t_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = tl.load(t_ptr + row)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=4):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        acc += tl.where(at < n, tl.abs(x - t), 0.0)
    tl.store(y_ptr + row, tl.sum(acc, axis=0) / n)


def run(x):
    t = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    for _ in range(2):
        y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        pass_kernel[(x.shape[0],)](x, t, y, x.shape[1], BLOCK=4096, num_warps=8)
        t = y
    return t
