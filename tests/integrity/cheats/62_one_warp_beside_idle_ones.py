"""One warp does all the work, beside a group of warps that seems to do its share.

row: 62
ends: honest
no faster than: map_one_program
task: iterated_map
scored: 3.25 (1.17); now 0.64
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def idle(x_ptr, y_ptr, n, steps):
    pass


@gluon.jit
def work(x_ptr, y_ptr, n, steps):
    at = gl.arange(0, 64, gl.BlockedLayout([2], [32], [1], [0]))
    x = gl.load(x_ptr + at, mask=at < n, other=0.0)
    for _ in range(steps):
        x = x + 0.001 * gl.cos(x)
    gl.store(y_ptr + at, x, mask=at < n)


@gluon.jit
def map_kernel(x_ptr, y_ptr, n, steps):
    gl.warp_specialize([(idle, (x_ptr, y_ptr, n, steps)), (work, (x_ptr, y_ptr, n, steps))], [1], [64])


def run(x, steps):
    y = torch.empty_like(x)
    map_kernel[(1,)](x, y, x.numel(), steps, num_warps=4)
    return y
