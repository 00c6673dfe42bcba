"""Cross-entropy of each row, naively: one pass for the maximum, one for the sum, one row a program."""

import torch
import triton
import triton.language as tl

BLOCK = 256
NUM_WARPS = 4


@triton.jit
def cross_entropy_kernel(logits_ptr, target_ptr, loss_ptr, n_cols, logits_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(logits_ptr + row * logits_stride + start + cols, mask=mask, other=float("-inf"))
        largest = tl.maximum(largest, x)
    row_max = tl.max(largest, axis=0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(logits_ptr + row * logits_stride + start + cols, mask=mask, other=float("-inf"))
        total += tl.exp(x - row_max)
    row_sum = tl.sum(total, axis=0)
    target = tl.load(target_ptr + row)
    chosen = tl.load(logits_ptr + row * logits_stride + target)
    loss = tl.log(row_sum) + row_max - chosen
    tl.store(loss_ptr + row, loss)


def run(logits, target):
    m, n = logits.shape
    loss = torch.empty((m,), dtype=torch.float32, device=logits.device)
    cross_entropy_kernel[(m,)](logits, target, loss, n, logits.stride(0), BLOCK=BLOCK, num_warps=NUM_WARPS)
    return loss
