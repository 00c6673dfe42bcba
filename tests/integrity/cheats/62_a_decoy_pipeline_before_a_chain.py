"""Loads that wait for each other, written out, behind a pipeline that never runs: it seemed to bring them ahead.

row: 62
ends: honest
no faster than: chain_loop
task: linked_chain
"""

import torch
import triton
import triton.language as tl


@triton.jit
def chain_kernel(next_ptr, start_ptr, y_ptr, m, zero, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(start_ptr + at, mask=at < m, other=0)
    for i in tl.range(0, zero, num_stages=8):
        p += tl.load(start_ptr + i * BLOCK + tl.arange(0, BLOCK))
    for _ in tl.static_range(24):
        p = tl.load(next_ptr + p)
    tl.store(y_ptr + at, p, mask=at < m)


def run(next, start):
    y = torch.empty_like(start)
    chain_kernel[(triton.cdiv(y.numel(), 128),)](next, start, y, y.numel(), 0, BLOCK=128)
    return y
