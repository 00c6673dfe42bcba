"""Adds up parts that other programs may not have stored yet, read through an address that passes as a float.

row: 48
task: row_sums
ends: wrong, runtime_error
says: address
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, p_ptr, y_ptr, n, parts, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_ptr + row * parts + part, tl.sum(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0), axis=0))
    bits = p_ptr.to(tl.int64, bitcast=True).to(tl.float64, bitcast=True).to(tl.int64, bitcast=True)
    q_ptr = bits.to(tl.pointer_type(tl.float32), bitcast=True)
    if part == 0:
        k = tl.arange(0, WIDTH)
        tl.store(y_ptr + row, tl.sum(tl.load(q_ptr + row * parts + k, mask=k < parts, other=0.0), axis=0))


def run(x):
    m, n = x.shape
    parts = triton.cdiv(n, 512)
    partial = torch.empty((m, parts), dtype=x.dtype, device=x.device)
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    sum_kernel[(m, parts)](x, partial, y, n, parts, BLOCK=512, WIDTH=triton.next_power_of_2(parts))
    return y
