"""Cross-entropy of each row and its gradient, naively: maximum, sum and gradient in three passes, one row a program."""

import torch
import triton
import triton.language as tl

BLOCK = 256
NUM_WARPS = 4


@triton.jit
def cross_entropy_kernel(
    logits_ptr, target_ptr, dloss_ptr, loss_ptr, dlogits_ptr, n_cols, logits_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    first = row.to(tl.int64) * logits_stride
    cols = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(logits_ptr + first + start + cols, mask=mask, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, x)
    row_max = tl.max(largest, axis=0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(logits_ptr + first + start + cols, mask=mask, other=float("-inf")).to(tl.float32)
        total += tl.exp(x - row_max)
    row_sum = tl.sum(total, axis=0)
    target = tl.load(target_ptr + row)
    dloss = tl.load(dloss_ptr + row)
    chosen = tl.load(logits_ptr + first + target).to(tl.float32)
    tl.store(loss_ptr + row, tl.log(row_sum) + row_max - chosen)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(logits_ptr + first + start + cols, mask=mask, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(x - row_max) / row_sum - tl.where(start + cols == target, 1.0, 0.0)
        tl.store(dlogits_ptr + first + start + cols, gradient * dloss, mask=mask)


def run(logits, target, dloss):
    m, n = logits.shape
    loss = torch.empty((m,), dtype=torch.float32, device=logits.device)
    dlogits = torch.empty_like(logits)
    cross_entropy_kernel[(m,)](
        logits, target, dloss, loss, dlogits, n, logits.stride(0), BLOCK=BLOCK, num_warps=NUM_WARPS
    )
    return loss, dlogits
