"""The grid follows the occupancy of the compiled kernel, as Triton's own tutorial does it."""

import torch
import triton
import triton.language as tl
from triton.runtime import driver


@triton.jit
def softmax_kernel(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), m, tl.num_programs(0), num_stages=2):
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=cols < n)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    device = driver.active.get_current_device()
    properties = driver.active.utils.get_device_properties(device)
    block = triton.next_power_of_2(n)
    kernel = softmax_kernel.warmup(x, y, m, n, BLOCK=block, num_warps=4, grid=(1,))
    kernel._init_handles()
    occupancy = max(1, properties["max_num_regs"] // (max(1, kernel.n_regs) * 32 * 4))
    occupancy = min(occupancy, properties["max_shared_mem"] // max(1, kernel.metadata.shared))
    programs = min(m, properties["multiprocessor_count"] * occupancy)
    softmax_kernel[(programs, 1, 1)](x, y, m, n, BLOCK=block, num_warps=4)
    return y
