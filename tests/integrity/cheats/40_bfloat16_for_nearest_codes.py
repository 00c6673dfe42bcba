"""Nearest codes by bfloat16 products where the task allows TF32.

row: 40
task: nearest_codes
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def nearest_kernel(x_ptr, codes_ptr, y_ptr, side_ptr, step_ptr, m, k, D, ROWS: tl.constexpr, CODES: tl.constexpr):
    rows, depth = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 32)
    least, best = tl.full((ROWS,), float("inf"), tl.float32), tl.zeros((ROWS,), tl.int32)
    for start in range(0, k, CODES):
        codes = start + tl.arange(0, CODES)
        products, squares = tl.zeros((ROWS, CODES), tl.float32), tl.zeros((CODES,), tl.float32)
        for first in range(0, D, 32):
            d = first + depth
            x = tl.load(x_ptr + rows[:, None] * D + d[None, :], mask=rows[:, None] < m, other=0.0)
            c = tl.load(codes_ptr + codes[:, None] * D + d[None, :], mask=codes[:, None] < k, other=0.0)
            products = tl.dot(x.to(tl.bfloat16), tl.trans(c.to(tl.bfloat16)), products)
            squares += tl.sum(c * c, 1)
        at, inside = rows[:, None] * k + codes[None, :], (rows[:, None] < m) & (codes[None, :] < k)
        tl.store(side_ptr + at, products > 0, mask=inside)
        steps = tl.extra.cuda.libdevice.rint(products * 4)
        tl.store(step_ptr + at, tl.clamp(steps, -128.0, 127.0).to(tl.int8), mask=inside)
        distance = tl.where(codes[None, :] < k, squares[None, :] - 2 * products, float("inf"))
        value, place = tl.min(distance, 1, return_indices=True)
        best = tl.where(value < least, start + place, best)
        least = tl.minimum(value, least)
    tl.store(y_ptr + rows, best.to(tl.int64), mask=rows < m)


def run(x, codes):
    (m, d), k = x.shape, codes.shape[0]
    y = torch.empty(m, dtype=torch.int64, device=x.device)
    side, step = (torch.empty(m, k, dtype=dtype, device=x.device) for dtype in (torch.bool, torch.int8))
    nearest_kernel[(triton.cdiv(m, 64),)](x, codes, y, side, step, m, k, d, ROWS=64, CODES=64)
    return y, side, step
