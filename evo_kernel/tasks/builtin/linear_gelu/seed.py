"""Linear layer with bias and tanh GELU, naively: a matrix product into a float32 buffer, then bias and GELU."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
BLOCK_K = 32
NUM_WARPS = 4
GELU_BLOCK = 256
GELU_NUM_WARPS = 4


@triton.jit
def linear_kernel(
    x_ptr, weight_ptr, sum_ptr, m, n, k, x_stride_m, x_stride_k, weight_stride_n, weight_stride_k,
    sum_stride_m, sum_stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(1)
    pid_n = tl.program_id(0)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        x_mask = (rows[:, None] < m) & (start + inner[None, :] < k)
        x = tl.load(x_ptr + rows[:, None] * x_stride_m + (start + inner[None, :]) * x_stride_k, mask=x_mask, other=0.0)
        weight_mask = (start + inner[:, None] < k) & (cols[None, :] < n)
        weight_offsets = (start + inner[:, None]) * weight_stride_k + cols[None, :] * weight_stride_n
        weight = tl.load(weight_ptr + weight_offsets, mask=weight_mask, other=0.0)
        acc = tl.dot(x, weight, acc)
    sum_mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(sum_ptr + rows[:, None] * sum_stride_m + cols[None, :] * sum_stride_n, acc, mask=sum_mask)


@triton.jit
def bias_gelu_kernel(sum_ptr, bias_ptr, y_ptr, n_elements, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    total = tl.load(sum_ptr + offsets, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + offsets % n, mask=mask, other=0.0).to(tl.float32)
    v = total + bias
    u = 0.7978845608028654 * (v + 0.044715 * v * v * v)
    y = v / (1.0 + tl.exp(-2.0 * u))
    tl.store(y_ptr + offsets, y, mask=mask)


def run(x, weight, bias):
    m, k = x.shape
    n = weight.shape[0]
    total = torch.empty((m, n), dtype=torch.float32, device=x.device)
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    linear_kernel[(triton.cdiv(n, BLOCK_N), triton.cdiv(m, BLOCK_M))](
        x, weight, total, m, n, k, x.stride(0), x.stride(1), weight.stride(0), weight.stride(1),
        total.stride(0), total.stride(1), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=NUM_WARPS,
    )  # fmt: skip
    bias_gelu_kernel[(triton.cdiv(m * n, GELU_BLOCK),)](
        total, bias, y, m * n, n, BLOCK=GELU_BLOCK, num_warps=GELU_NUM_WARPS
    )
    return y
