"""Tensor descriptors made on the host.

task: half_matmul
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul_kernel(a_desc, b_desc, c_desc, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        acc = tl.dot(a_desc.load([row, start]), b_desc.load([start, col]), acc)
    c_desc.store([row, col], acc.to(tl.bfloat16))


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    a_desc = TensorDescriptor(a, a.shape, a.stride(), [64, 32])
    b_desc = TensorDescriptor.from_tensor(b, [32, 32])
    c_desc = TensorDescriptor.from_tensor(c, [64, 32])
    matmul_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 32))](a_desc, b_desc, c_desc, k, BM=64, BN=32, BK=32)
    return c
