"""Cross-entropy of rows and its gradient, bfloat16 logits: few programs that stay, so the L2 keeps their rows (sm_90).

Bred on an H200 by an external agent (2026-11-29). `lineage.json` has the versions, `cross_entropy_backward.db.xz` is
the population. Confirmed on hidden cases by judge 28: 2.99 (2.84 to 3.16) of torch.compile, the fastest baseline.

Mechanism
---------
The gradient needs the row's sum first, so each row is read twice; the second time must come from the L2.

* Programs stay and take a row at a time: 132 rows of 128256 are 34 MB, of 50 MB of L2. Loads of the first pass ask to
  be kept, those of the second and stores to go first. The second pass runs backwards, from what came last.
* Each lane keeps a maximum and a sum of its own, joined once a row; two loads of 16 bytes between rescalings.
* One program of 32 warps a multiprocessor; for rows of at most 64 KB (v <= 32768) two of 16 warps, so that one loads
  while the other joins its lanes.
* Where rows begin at any address (v not a multiple of 8), whole aligned vectors are read and written as such, and up to
  seven elements on either side apart: 8192 x 50257 took 823 us with accesses of 2 bytes.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 28, 2026-11-29; hidden cases are marked. m x v:

| case | us | copy bandwidth | fastest baseline us | |
| --- | --- | --- | --- | --- |
| 4096 x 128256 | 686.0 | 73 % | 2129 torch.compile | 3.10x |
| 8192 x 32000 | 330.6 | 75 % | 925.0 torch.compile | 2.80x |
| 2048 x 151936, hidden | 428.2 | 69 % | 1273 torch.compile | 2.97x |
| 1023 x 128256, hidden | 172.8 | 72 % | 546.4 torch.compile | 3.16x |
| 8192 x 50257, hidden | 670.9 | 58 % | 1908 torch.compile | 2.84x |

Sizes beside these were not measured.

Dead ends
---------
Of 7 settings, without the wide accesses:

* A program a row: 8 % slower at 4096 x 128256, 3 % at 8192 x 32000: rows leave the L2 before their second pass.
* A row of 32000 in registers, read once: 13 % slower. Loads ahead by cp.async: 28 to 54 %.
* One program of 16 warps: 22 to 30 % slower; with four loads between rescalings 1 to 15 % (128 registers a thread).
"""

import torch
import triton
import triton.language as tl

SHORT = 32768  # elements of a row
UNROLL = 2  # loads between rescalings
VECTOR = 8  # elements a load


@triton.jit
def add(x, largest, total):
    """Maxima and sums of lanes, with the loads of x (UNROLL, BLOCK) added."""
    L: tl.constexpr = 1.4426950408889634
    new = tl.maximum(largest, tl.max(x, axis=0))
    total = total * tl.exp2((largest - new) * L) + tl.sum(tl.exp2((x - new[None, :]) * L), axis=0)
    return new, total


@triton.jit
def rows_kernel(
    x_ptr, target_ptr, dloss_ptr, loss_ptr, dx_ptr, m, N: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    L: tl.constexpr = 1.4426950408889634
    STEP: tl.constexpr = UNROLL * BLOCK
    at = tl.arange(0, UNROLL)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    sides = tl.arange(0, 2 * VECTOR)
    for row in range(tl.program_id(0), m, tl.num_programs(0)):
        here = row.to(tl.int64) * N
        begin = tl.cdiv(here, VECTOR) * VECTOR  # of the row's whole vectors
        count = N
        skipped = 0
        if N % VECTOR:
            skipped = (begin - here).to(tl.int32)
            count = tl.maximum((here + N) // VECTOR * VECTOR - begin, 0).to(tl.int32)
        full = count // STEP * STEP
        first = x_ptr + begin
        out = dx_ptr + begin
        target = tl.load(target_ptr + row).to(tl.int32)
        dloss = tl.load(dloss_ptr + row)
        chosen = tl.load(x_ptr + here + target).to(tl.float32)
        target -= skipped
        largest = tl.full([BLOCK], -3.0e38, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, full, STEP):
            x = tl.load(first + start + at, eviction_policy="evict_last").to(tl.float32)
            largest, total = add(x, largest, total)
        if N % STEP:
            rest = full + at < count
            x = tl.load(first + full + at, mask=rest, other=float("-inf"), eviction_policy="evict_last")
            largest, total = add(x.to(tl.float32), largest, total)
        top = tl.max(largest, axis=0)
        if N % VECTOR:  # elements before the first whole vector and behind the last
            side = tl.where(sides < VECTOR, sides - skipped, count + sides - VECTOR)
            beside = tl.where(sides < VECTOR, side < 0, True) & (side < N - skipped)
            edge = tl.load(first + side, mask=beside, other=float("-inf")).to(tl.float32)
            top = tl.maximum(top, tl.max(edge, axis=0))
        total = tl.sum(total * tl.exp2((largest - top) * L), axis=0)
        if N % VECTOR:
            total += tl.sum(tl.exp2((edge - top) * L), axis=0)
        tl.store(loss_ptr + row, tl.log(total) + (top - chosen))
        scale = dloss / total
        if N % VECTOR:
            g = tl.exp2((edge - top) * L) * scale - tl.where(side == target, dloss, 0.0)
            tl.store(out + side, g.to(tl.bfloat16), mask=beside)
        if N % STEP:
            rest = full + at < count
            x = tl.load(first + full + at, mask=rest, other=0.0, eviction_policy="evict_first").to(tl.float32)
            g = tl.exp2((x - top) * L) * scale - tl.where(full + at == target, dloss, 0.0)
            tl.store(out + full + at, g.to(tl.bfloat16), mask=rest, eviction_policy="evict_first")
        for back in range(0, full, STEP):
            start = full - STEP - back
            x = tl.load(first + start + at, eviction_policy="evict_first").to(tl.float32)
            g = tl.exp2((x - top) * L) * scale - tl.where(at == target - start, dloss, 0.0)
            tl.store(out + start + at, g.to(tl.bfloat16), eviction_policy="evict_first")


def run(logits, target, dloss):
    m, n = logits.shape
    loss = torch.empty((m,), dtype=torch.float32, device=logits.device)
    dlogits = torch.empty_like(logits)
    per_sm, warps = (2, 16) if n <= SHORT else (1, 32)
    programs = min(m, per_sm * torch.cuda.get_device_properties(logits.device).multi_processor_count)
    rows_kernel[(programs,)](
        logits, target, dloss, loss, dlogits, m, N=n, BLOCK=warps * 32 * VECTOR, UNROLL=UNROLL,
        VECTOR=VECTOR, num_warps=warps,
    )  # fmt: skip
    return loss, dlogits
