"""LayerNorm backward, naively: a kernel over rows for dx, and one over columns for dweight and dbias. No atomics."""

import torch
import triton
import triton.language as tl

BLOCK = 256
NUM_WARPS = 4
COLUMN_BLOCK = 64
COLUMN_NUM_WARPS = 2


@triton.jit
def rows_kernel(x_ptr, weight_ptr, dy_ptr, mean_ptr, rstd_ptr, dx_ptr, n_cols, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    sums = tl.zeros([BLOCK], tl.float32)
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * x_stride + start + cols, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row * x_stride + start + cols, mask=mask, other=0.0)
        weight = tl.load(weight_ptr + start + cols, mask=mask, other=0.0)
        sums += dy * weight
        products += dy * weight * ((x - mean) * rstd)
    mean_g = tl.sum(sums, axis=0) / n_cols
    mean_gu = tl.sum(products, axis=0) / n_cols
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * x_stride + start + cols, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row * x_stride + start + cols, mask=mask, other=0.0)
        weight = tl.load(weight_ptr + start + cols, mask=mask, other=0.0)
        dx = rstd * (dy * weight - mean_g - (x - mean) * rstd * mean_gu)
        tl.store(dx_ptr + row * x_stride + start + cols, dx, mask=mask)


@triton.jit
def columns_kernel(
    x_ptr, dy_ptr, mean_ptr, rstd_ptr, dweight_ptr, dbias_ptr, n_rows, n_cols, x_stride, BLOCK: tl.constexpr
):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    dweight = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    for row in range(0, n_rows):
        x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row * x_stride + cols, mask=mask, other=0.0)
        dweight += dy * ((x - tl.load(mean_ptr + row)) * tl.load(rstd_ptr + row))
        dbias += dy
    tl.store(dweight_ptr + cols, dweight, mask=mask)
    tl.store(dbias_ptr + cols, dbias, mask=mask)


def run(x, weight, dy, mean, rstd):
    m, n = x.shape
    dx = torch.empty_like(x)
    dweight = torch.empty_like(weight)
    dbias = torch.empty_like(weight)
    rows_kernel[(m,)](x, weight, dy, mean, rstd, dx, n, x.stride(0), BLOCK=BLOCK, num_warps=NUM_WARPS)
    columns_kernel[(triton.cdiv(n, COLUMN_BLOCK),)](
        x, dy, mean, rstd, dweight, dbias, m, n, x.stride(0), BLOCK=COLUMN_BLOCK, num_warps=COLUMN_NUM_WARPS
    )
    return dx, dweight, dbias
