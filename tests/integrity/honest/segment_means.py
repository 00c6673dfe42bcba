"""Segment means in float64: empty outputs, and norms of tiny numbers that are 0, made the judge raise.

task: segment_means
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def means_kernel(x_ptr, ends_ptr, means_ptr, rest_ptr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    segment, at = tl.program_id(0), tl.arange(0, ROWS)
    column = tl.arange(0, 4)[None, :]
    first = tl.load(ends_ptr + segment - 1, mask=segment > 0, other=0)
    end = tl.load(ends_ptr + segment)
    total = tl.zeros((4,), tl.float64)
    for start in range(first, end, ROWS):
        row = (start + at)[:, None]
        inside = (row < end) & (column < WIDTH)
        total += tl.sum(tl.load(x_ptr + row * WIDTH + column, mask=inside, other=0.0), 0)
    mean = (total / (end - first).to(tl.float64))[None, :]
    tl.store(means_ptr + segment * WIDTH + column, mean, mask=column < WIDTH)
    for start in range(first, end, ROWS):
        row = (start + at)[:, None]
        inside = (row < end) & (column < WIDTH)
        x = tl.load(x_ptr + row * WIDTH + column, mask=inside)
        tl.store(rest_ptr + row * WIDTH + column, x - mean, mask=inside)


def run(x, ends):
    means, rest = x.new_empty(ends.shape[0], x.shape[1]), torch.empty_like(x)
    means_kernel[(ends.shape[0],)](x, ends, means, rest, WIDTH=x.shape[1], ROWS=16)
    return means, rest
