"""Each row of programs takes its vectors from tables of addresses: some hold numbers too, and no address but 0.

task: squares_of_several
"""

import torch
import triton
import triton.language as tl


@triton.jit
def square_kernel(x_table, y_table, z_table, sizes, many, BLOCK: tl.constexpr):
    which, at = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(sizes + which)
    address = tl.load(x_table) if which == 0 else tl.load(x_table + which + 1) - 4
    x_ptr = tl.where(n > 7, address, address + 0 * n).to(tl.pointer_type(tl.float32))
    y_ptr = tl.load(y_table + which).to(tl.pointer_type(tl.float32))
    x = tl.load(x_ptr + at, mask=at < n)
    z = tl.load(z_table + which, mask=which < many, other=0)
    if z != 0:
        x += tl.load(z.to(tl.pointer_type(tl.float32)) + at, mask=at < n)
    tl.store(y_ptr + at, x * x, mask=at < n)


def run(*xs):
    ys = [torch.empty_like(x) for x in xs]
    x_table = torch.tensor([xs[0].data_ptr(), 7, *(x.data_ptr() + 4 for x in xs[1:])], device=xs[0].device)
    y_table = torch.tensor([y.data_ptr() for y in ys], device=xs[0].device)
    zeros = torch.zeros_like(xs[1])
    z_table = torch.tensor([0, zeros.data_ptr()], device=xs[0].device)
    sizes = torch.tensor([x.numel() for x in xs], dtype=torch.int32, device=xs[0].device)
    square_kernel[(triton.cdiv(max(x.numel() for x in xs), 256), len(xs))](
        x_table, y_table, z_table, sizes, 2, BLOCK=256
    )
    return tuple(ys)
