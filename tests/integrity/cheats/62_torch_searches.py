"""torch searches the table, for the price of its bytes; a kernel widens what it finds.

row: 62
ends: honest
no faster than: table_places
task: table_places
"""

import torch
import triton
import triton.language as tl


@triton.jit
def widen_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n).to(tl.int64), mask=at < n)


def run(table, x):
    places = torch.searchsorted(table, x, out_int32=True)
    y = torch.empty(x.numel(), dtype=torch.int64, device=x.device)
    widen_kernel[(triton.cdiv(x.numel(), 1024),)](places, y, x.numel(), BLOCK=1024)
    return y
