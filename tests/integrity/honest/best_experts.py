"""Maxima of products, of experts that there are.

task: best_experts
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def best_kernel(x_ptr, bias_ptr, weight_ptr, y_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, experts = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N)
    sums = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        at = start + tl.arange(0, K)
        x = tl.load(x_ptr + rows[:, None] * k + at[None, :], mask=rows[:, None] < m, other=0.0)
        weight = tl.load(weight_ptr + experts[None, :] * k + at[:, None], mask=experts[None, :] < n, other=0.0)
        sums = tl.dot(x, weight, sums)
    sums += tl.load(bias_ptr + experts, mask=experts < n, other=0.0).to(tl.float32)[None, :]
    sums = tl.where(experts[None, :] < n, sums, float("-inf"))
    tl.store(y_ptr + rows, tl.max(sums, 1), mask=rows < m)


def run(x, bias, weight):
    (m, k), n = x.shape, weight.shape[0]
    y = torch.empty(m, device=x.device)
    best_kernel[(triton.cdiv(m, 32),)](x, bias, weight, y, m, n, k, M=32, N=64, K=64)
    return y
