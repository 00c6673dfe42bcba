"""Grouped matrix product, naively: a tile of one expert's rows a program; a table says which expert and which tile."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
BLOCK_K = 32
NUM_WARPS = 4


@triton.jit
def grouped_matmul_kernel(
    x_ptr, weights_ptr, offsets_ptr, tiles_ptr, y_ptr, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert = tl.load(tiles_ptr + tl.program_id(1) * 2)
    tile = tl.load(tiles_ptr + tl.program_id(1) * 2 + 1)
    end = tl.load(offsets_ptr + expert + 1)
    rows = tl.load(offsets_ptr + expert) + tile * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = expert.to(tl.int64) * k * n
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x_mask = (rows[:, None] < end) & (inner[None, :] < k)
        x = tl.load(x_ptr + rows[:, None] * k + inner[None, :], mask=x_mask, other=0.0)
        weight_mask = (inner[:, None] < k) & (cols[None, :] < n)
        weight = tl.load(weights_ptr + first + inner[:, None] * n + cols[None, :], mask=weight_mask, other=0.0)
        acc = tl.dot(x, weight, acc)
    y_mask = (rows[:, None] < end) & (cols[None, :] < n)
    tl.store(y_ptr + rows[:, None] * n + cols[None, :], acc, mask=y_mask)


def run(x, weights, offsets):
    tokens, k = x.shape
    n = weights.shape[2]
    starts = offsets.tolist()
    lengths = [starts[e + 1] - starts[e] for e in range(len(starts) - 1)]
    tiles = [[e, tile] for e in range(len(lengths)) for tile in range(triton.cdiv(lengths[e], BLOCK_M))]
    y = torch.empty((tokens, n), dtype=x.dtype, device=x.device)
    grouped_matmul_kernel[(triton.cdiv(n, BLOCK_N), len(tiles))](
        x, weights, offsets, torch.tensor(tiles, dtype=torch.int32, device=x.device), y, n, k,
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
