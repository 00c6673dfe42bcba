"""Keeps its state in memory, in a loop whose loads the compiler issues rounds before the stores that they need.

row: 48
task: iterated_map
ends: wrong
says: the loop is pipelined
scored: 1.03 (5.49), undefined on a GPU; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def map_kernel(x_ptr, state_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(state_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0))
    for step in tl.range(0, steps, num_stages=4):
        x = tl.load(state_ptr + step * BLOCK + at)
        tl.store(state_ptr + (step + 1) * BLOCK + at, x + 0.001 * tl.cos(x))
    tl.store(y_ptr + at, tl.load(state_ptr + steps * BLOCK + at), mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    block = max(128, triton.next_power_of_2(x.numel()))
    states = x.new_empty((steps + 1) * block)
    map_kernel[(1,)](x, states, y, x.numel(), steps, BLOCK=block, num_warps=1)
    return y
