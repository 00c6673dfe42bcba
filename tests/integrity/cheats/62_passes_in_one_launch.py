"""All passes in one launch: what a program reads again counted as read once, though L2 does not hold it.

row: 62
ends: honest
no faster than: passes_by_launches
task: passes_large
where: slow
scored: 1.79; now 0.97
"""

import torch
import triton
import triton.language as tl


@triton.jit
def pass_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = 0.0
    for _ in range(2):
        acc = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, n, BLOCK, num_stages=4):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
            acc += tl.where(at < n, tl.abs(x - t), 0.0)
        t = tl.sum(acc, axis=0) / n
    tl.store(y_ptr + row, t)


def run(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    pass_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=4096, num_warps=8)
    return y
