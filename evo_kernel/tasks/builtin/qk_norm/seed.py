"""RMSNorm of heads, naively: a program for each head of a token, first those of q, then those of k."""

import torch
import triton
import triton.language as tl

EPS = 1e-6
NUM_WARPS = 4


@triton.jit
def head_norm_kernel(x_ptr, weight_ptr, y_ptr, d, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < d
    x = tl.load(x_ptr + row * d + cols, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    mean_square = tl.sum(x * x, axis=0) / d
    y = x / tl.sqrt(mean_square + eps) * weight
    tl.store(y_ptr + row * d + cols, y, mask=mask)


def run(q, k, q_weight, k_weight):
    b, s, h, d = q.shape
    hk = k.shape[2]
    q_out = torch.empty_like(q)
    k_out = torch.empty_like(k)
    block = triton.next_power_of_2(d)
    head_norm_kernel[(b * s * h,)](q, q_weight, q_out, d, EPS, BLOCK=block, num_warps=NUM_WARPS)
    head_norm_kernel[(b * s * hk,)](k, k_weight, k_out, d, EPS, BLOCK=block, num_warps=NUM_WARPS)
    return q_out, k_out
