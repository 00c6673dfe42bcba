"""Masked logits are -inf, or the lowest number: no regime makes others of them.

task: masked_logsumexps
purpose: confirm
"""

import triton
import triton.language as tl


@triton.jit
def logsumexps_kernel(x_ptr, bias_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=float("-inf"))
    x += tl.load(bias_ptr + row * n + at, mask=at < n, other=0.0)
    most = tl.max(x, 0)
    tl.store(y_ptr + row, most + tl.log(tl.sum(tl.exp(x - most), 0)))


def run(x, bias):
    y = x.new_empty(x.shape[0])
    logsumexps_kernel[(x.shape[0],)](x, bias, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
