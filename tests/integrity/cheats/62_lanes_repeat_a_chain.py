"""Of 1024 lanes 512 follow each chain: their warps, which all wait for the same, seemed to hide what each other takes.

row: 62
ends: honest
no faster than: chain_loop_one_warp
task: linked_chain
scored: 1.31; now 0.98
"""

import torch
import triton
import triton.language as tl


@triton.jit
def chain_kernel(next_ptr, start_ptr, y_ptr, m, CHAINS: tl.constexpr):
    at = tl.program_id(0) * CHAINS + tl.arange(0, 1024) // (1024 // CHAINS)
    p = tl.load(start_ptr + at, mask=at < m, other=0)
    for _ in range(24):
        p = tl.load(next_ptr + p)
    tl.store(y_ptr + at, p, mask=at < m)


def run(next, start):
    y = torch.empty_like(start)
    chain_kernel[(triton.cdiv(y.numel(), 2),)](next, start, y, y.numel(), CHAINS=2, num_warps=32)
    return y
