"""bfloat16 operands for TF32, where all products are above zero: errors of truncated operands add up there.

row: 40
ends: wrong
task: positive_layers
scored: 1.36 (1.37); now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def layers_kernel(x_ptr, v_ptr, w_ptr, y_ptr, N: tl.constexpr, K: tl.constexpr):
    rows, inner, columns = tl.program_id(0) * 16 + tl.arange(0, 16), tl.arange(0, K), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * K + inner[None, :])
    v = tl.load(v_ptr + inner[:, None] * N + columns[None, :])
    hidden = tl.maximum(tl.dot(x.to(tl.bfloat16), v.to(tl.bfloat16)) - 16, 0.0)
    w = tl.load(w_ptr + columns[:, None] * K + inner[None, :])
    product = tl.dot(hidden.to(tl.bfloat16), w.to(tl.bfloat16))
    tl.store(y_ptr + rows[:, None] * K + inner[None, :], product)


def run(x, v, w):
    (m, k), n = x.shape, v.shape[1]
    y = torch.empty_like(x)
    layers_kernel[(m // 16,)](x, v, w, y, N=n, K=k)
    return y
