"""Stores indices three rounds before their use; compiled code copies them four rounds early, as what they point at.

row: 48
task: lagged_sums
ends: wrong, runtime_error
says: the loop is pipelined
scored: 0.39 (0.46); an H200 reads where no buffer is; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, places_ptr, y_ptr, n, LAG: tl.constexpr):
    row, side = tl.program_id(0), tl.arange(0, 32)
    at = side[:, None] * 32 + side[None, :]
    same = tl.where(side[:, None] == side[None, :], 1.0, 0.0)
    places_ptr += row * (n + LAG * 1024) + at
    for part in range(LAG):
        tl.store(places_ptr + part * 1024, row * n + part * 1024 + at)
    tl.debug_barrier()
    total = tl.zeros((32, 32), dtype=tl.float32)
    for start in range(0, n, 1024):
        place = tl.load(places_ptr + start)
        total = tl.dot(tl.load(x_ptr + place), same, 0.5 * total, input_precision="ieee")
        tl.store(places_ptr + start + LAG * 1024, place + LAG * 1024)
        tl.store(y_ptr + row * n + start + at, total)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    places = torch.empty(m * (n + 3 * 1024), dtype=torch.int32, device=x.device)
    sums_kernel[(m,)](x, places, y, n, LAG=3, num_stages=5)
    return y
