"""Decoupled look-back: sums and prefixes of blocks, each published by a flag of its own.

task: running_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, agg, pre, flag, n, blocks, B: tl.constexpr):
    b = tl.program_id(0)
    r = tl.program_id(1)
    c = b * B + tl.arange(0, B)
    v = tl.load(x + r * n + c, mask=c < n, other=0.0)
    total = tl.sum(v, 0)
    me = r * blocks + b
    tl.store(agg + me, total)
    tl.debug_barrier()
    tl.atomic_xchg(flag + me, 1, sem="release")
    before = 0.0
    at = b - 1
    while at >= 0:
        f = tl.atomic_add(flag + r * blocks + at, 0, sem="acquire")
        while f == 0:
            f = tl.atomic_add(flag + r * blocks + at, 0, sem="acquire")
        if f == 2:
            before += tl.load(pre + r * blocks + at, cache_modifier=".cg")
            at = -1
        else:
            before += tl.load(agg + r * blocks + at, cache_modifier=".cg")
            at -= 1
    tl.store(pre + me, before + total)
    tl.debug_barrier()
    tl.atomic_xchg(flag + me, 2, sem="release")
    tl.store(y + r * n + c, tl.cumsum(v, 0) + before, mask=c < n)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    blocks = triton.cdiv(n, 1024)
    agg = torch.empty((m, blocks), device=x.device)
    pre = torch.empty((m, blocks), device=x.device)
    flag = torch.zeros((m, blocks), dtype=torch.int32, device=x.device)
    k[(blocks, m)](x, y, agg, pre, flag, n, blocks, B=1024)
    return y
