"""Cross-entropy of rows, float32 logits: each lane keeps a maximum and a sum of its own, joined once a row (sm_90).

Bred on an H200 by an external agent (2026-11-29). `lineage.json` has the versions, `cross_entropy.db.xz` is the
population. Confirmed on hidden cases by judge 29: 1.52 (1.44 to 1.60) of the fastest baseline.

Mechanism
---------
A row is read once, by one program.

* Each lane keeps a maximum and a sum over what it reads, so the loop exchanges nothing; they are joined once.
* Rows longer than 65536: four warps and two loads between rescalings, three steps in flight by cp.async (16 programs a
  multiprocessor); shorter ones: eight warps and four loads, from registers.
* Rows of at most 2048: tiles of 4096 elements, several rows a program.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 29, 2026-11-29; hidden cases are marked. m x n:

| case | us | copy bandwidth | fastest baseline us | |
| --- | --- | --- | --- | --- |
| 4096 x 32000 | 128.4 | 97 % | 187.6 torch.compile | 1.46x |
| 2048 x 128256 | 243.1 | 103 % | 343.6 torch.compile | 1.41x |
| 4096 x 50257, hidden | 208.5 | 94 % | 318.5 torch.compile | 1.53x |
| 1023 x 151936, hidden | 149.5 | 99 % | 214.6 torch.compile | 1.44x |
| 16384 x 1031, hidden | 29.3 | 55 % | 46.9 eager | 1.60x |

Dead ends
---------
Of 7 settings:

* Eight warps whose loads ask to be evicted first, though each element is read once: 3 to 16 % slower; of short rows 3 %
  faster.
* With that hint, against the best: 16 warps 3 to 10 % slower, eight loads between rescalings 4 to 12 %, four warps
  without copies ahead 4 to 31 % (most at n = 50257, where rows begin at any address).
* Copies ahead where rows have 32000 or 50257: 1 and 2 % slower.
"""

import torch
import triton
import triton.language as tl

VECTOR = 4  # elements a thread and load
TILE = 4096  # of short rows
SHORT = 2048
LONG = 65536


@triton.jit
def long_kernel(
    x_ptr, target_ptr, loss_ptr, N: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    L: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    first = x_ptr + row * STRIDE
    target = tl.load(target_ptr + row)
    chosen = tl.load(first + target)
    at = tl.arange(0, UNROLL)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    largest = tl.full([BLOCK], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    STEP: tl.constexpr = UNROLL * BLOCK
    FULL: tl.constexpr = N // STEP * STEP
    for start in tl.range(0, FULL, STEP, num_stages=STAGES):
        x = tl.load(first + start + at)
        new = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp2((largest - new) * L) + tl.sum(tl.exp2((x - new[None, :]) * L), axis=0)
        largest = new
    if FULL < N:
        x = tl.load(first + FULL + at, mask=FULL + at < N, other=float("-inf"))
        new = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp2((largest - new) * L) + tl.sum(tl.exp2((x - new[None, :]) * L), axis=0)
        largest = new
    top = tl.max(largest, axis=0)
    total = tl.sum(total * tl.exp2((largest - top) * L), axis=0)
    tl.store(loss_ptr + row, tl.log(total) + (top - chosen))


@triton.jit
def short_kernel(
    x_ptr, target_ptr, loss_ptr, m, N: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    first = x_ptr + rows.to(tl.int64) * STRIDE
    inside = rows < m
    target = tl.load(target_ptr + rows, mask=inside, other=0)
    chosen = tl.load(first + target, mask=inside, other=0.0)
    mask = inside[:, None] & (cols < N)[None, :]
    x = tl.load(first[:, None] + cols[None, :], mask=mask, other=float("-inf"), eviction_policy="evict_first")
    top = tl.where(inside, tl.max(x, axis=1), 0.0)
    total = tl.where(inside, tl.sum(tl.exp(x - top[:, None]), axis=1), 1.0)
    tl.store(loss_ptr + rows, tl.log(total) + (top - chosen), mask=inside)


def run(logits, target):
    m, n = logits.shape
    loss = torch.empty((m,), dtype=torch.float32, device=logits.device)
    if n <= SHORT:
        block = triton.next_power_of_2(n)
        rows = min(max(1, TILE // block), triton.next_power_of_2(m))
        short_kernel[(triton.cdiv(m, rows),)](
            logits, target, loss, m, N=n, STRIDE=logits.stride(0), ROWS=rows, BLOCK=block,
            num_warps=min(8, max(1, rows * block // 512)),
        )  # fmt: skip
    else:
        warps, unroll, stages = (4, 2, 3) if n > LONG else (8, 4, 1)
        long_kernel[(m,)](
            logits, target, loss, N=n, STRIDE=logits.stride(0), BLOCK=warps * 32 * VECTOR, UNROLL=unroll,
            STAGES=stages, num_warps=warps,
        )  # fmt: skip
    return loss
