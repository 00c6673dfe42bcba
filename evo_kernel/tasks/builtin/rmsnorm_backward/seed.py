"""RMSNorm backward, naively: a kernel over rows for dx, and one over columns for dweight. No atomics."""

import torch
import triton
import triton.language as tl

BLOCK = 256
NUM_WARPS = 4
COLUMN_BLOCK = 64
COLUMN_NUM_WARPS = 2


@triton.jit
def rows_kernel(x_ptr, weight_ptr, dy_ptr, rstd_ptr, dx_ptr, n_cols, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    rstd = tl.load(rstd_ptr + row)
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * x_stride + start + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * x_stride + start + cols, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        products += dy * weight * (x * rstd)
    mean = tl.sum(products, axis=0) / n_cols
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * x_stride + start + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * x_stride + start + cols, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        dx = rstd * (dy * weight - x * rstd * mean)
        tl.store(dx_ptr + row * x_stride + start + cols, dx, mask=mask)


@triton.jit
def columns_kernel(x_ptr, dy_ptr, rstd_ptr, dweight_ptr, n_rows, n_cols, x_stride, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(0, n_rows):
        x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
        total += dy * (x * tl.load(rstd_ptr + row))
    tl.store(dweight_ptr + cols, total, mask=mask)


def run(x, weight, dy, rstd):
    m, n = x.shape
    dx = torch.empty_like(x)
    dweight = torch.empty_like(weight)
    rows_kernel[(m,)](x, weight, dy, rstd, dx, n, x.stride(0), BLOCK=BLOCK, num_warps=NUM_WARPS)
    columns_kernel[(triton.cdiv(n, COLUMN_BLOCK),)](
        x, dy, rstd, dweight, m, n, x.stride(0), BLOCK=COLUMN_BLOCK, num_warps=COLUMN_NUM_WARPS
    )
    return dx, dweight
