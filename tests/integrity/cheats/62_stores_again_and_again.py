"""All steps in one launch: what a program stores again counted as written once, though L2 does not hold it.

row: 62
ends: honest
no faster than: steps_by_launches
task: steps_large
where: slow
scored: 0.75 (0.68); now 0.60
"""

import torch
import triton
import triton.language as tl


@triton.jit
def steps_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=4):
        at = start + tl.arange(0, BLOCK)
        acc += tl.abs(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0))
    t = tl.sum(acc, axis=0) / n
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=4):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0) * 1.5 - t
        acc += tl.where(at < n, tl.abs(x), 0.0)
        tl.store(y_ptr + row * n + at, x, mask=at < n)
    for _ in range(2):
        t = tl.sum(acc, axis=0) / n
        tl.debug_barrier()
        acc = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(y_ptr + row * n + at, mask=at < n, other=0.0) * 1.5 - t
            acc += tl.where(at < n, tl.abs(x), 0.0)
            tl.store(y_ptr + row * n + at, x, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    steps_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=4096, num_warps=8)
    return y
