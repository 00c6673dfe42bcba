"""RMSNorm backward, bfloat16: programs that stay hold weight and column sums in registers (sm_90).

Bred on an H200 by an external agent (2026-11-29). `lineage.json` has the versions, `rmsnorm_backward.db.xz` is the
population. Confirmed on hidden cases by judge 29: 1.50 (1.24 to 2.08) of the fastest baseline.

Mechanism
---------
x and dy are read once and dx is written once; the weight's gradient is a sum over all rows, without atomics.

* Programs stay: each keeps the weight and its sums of columns in registers for all its rows, and writes the sums once
  (float32). A second launch adds them, in a fixed order.
* The next rows come by cp.async while these are computed (STAGES).
* Rows of at most 4096 elements: tiles of 4096 elements, two programs a multiprocessor; longer ones: a row a tile, one
  program, whose registers fill the multiprocessor.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 29, 2026-11-29; hidden cases are marked. m x n:

| case | us | copy bandwidth | fastest baseline us | |
| --- | --- | --- | --- | --- |
| 8192 x 4096 | 58.7 | 81 % | 86.6 torch.compile | 1.47x |
| 4096 x 8192 | 59.8 | 80 % | 107.9 torch.compile | 1.80x |
| 16384 x 2048, hidden | 58.7 | 81 % | 76.4 torch.compile | 1.30x |
| 4097 x 5120, hidden | 46.8 | 64 % | 97.5 fused | 2.08x |
| 32768 x 1024, hidden | 60.6 | 79 % | 75.0 torch.compile | 1.24x |

Dead ends
---------
Of 11 settings, without pieces:

* Two stages: 21 to 47 % slower than three; no copies ahead: 11 to 17 %.
* 8 elements a thread, twice the warps: 0 to 12 % slower, but 2 % faster at 4097 x 5120 with four stages.
* Two programs where rows are longer than 4096: 7 to 8 % slower. One with tiles of 8192 where shorter: 0 to 5 %.
* Hints to keep or drop x, dy or dx, wider programs of the second launch: nothing.
* Columns in two pieces (5120 = 4096 + 1024), so that fewer lanes are masked: 5 % faster at 4097 x 5120, 2 % slower at
  the other hidden sizes.
"""

import torch
import triton
import triton.language as tl

TILE = 4096  # elements at a time, at least
PER_THREAD = 16
STAGES = 3
COLUMNS = 32  # a program of the second launch


@triton.jit
def rows_kernel(
    x_ptr, w_ptr, dy_ptr, rstd_ptr, dx_ptr, dweight_parts_ptr, m, N: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    w = tl.load(w_ptr + cols, mask=inside, other=0.0)
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, ROWS), tl.num_programs(0), num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        at = rows.to(tl.int64)[:, None] * N + cols[None, :]
        mask = (rows < m)[:, None] & inside[None, :]
        if EVEN:
            x = tl.load(x_ptr + at, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_ptr + at, eviction_policy="evict_first").to(tl.float32)
            rstd = tl.load(rstd_ptr + rows)
        else:
            x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            rstd = tl.load(rstd_ptr + rows, mask=rows < m, other=0.0)
        u = x * rstd[:, None]
        g = dy * w.to(tl.float32)[None, :]
        mean_gu = tl.sum(g * u, axis=1) / N
        dx = rstd[:, None] * (g - u * mean_gu[:, None])
        dweight += dy * u
        if EVEN:
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty))
        else:
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    place = tl.program_id(0).to(tl.int64) * N + cols
    tl.store(dweight_parts_ptr + place, tl.sum(dweight, axis=0), mask=inside)


@triton.jit
def sum_kernel(dweight_parts_ptr, dweight_ptr, parts, N: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr):
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.arange(0, PARTS)
    at = rows[:, None] * N + cols[None, :]
    mask = (rows < parts)[:, None] & (cols < N)[None, :]
    total = tl.load(dweight_parts_ptr + at, mask=mask, other=0.0)
    tl.store(dweight_ptr + cols, tl.sum(total, axis=0).to(dweight_ptr.dtype.element_ty), mask=cols < N)


def run(x, weight, dy, rstd):
    m, n = x.shape
    dx = torch.empty_like(x)
    dweight = torch.empty_like(weight)
    block = triton.next_power_of_2(n)
    rows = min(max(1, TILE // block), triton.next_power_of_2(m))
    warps = min(32, max(1, rows * block // PER_THREAD // 32))
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    per_sm = 1 if block > TILE else 2
    even = block == n and m % rows == 0
    stages = STAGES
    programs = min(triton.cdiv(m, rows), per_sm * sms)
    dweight_parts = torch.empty((programs, n), dtype=torch.float32, device=x.device)
    rows_kernel[(programs,)](
        x, weight, dy, rstd, dx, dweight_parts, m, N=n, ROWS=rows, BLOCK=block, EVEN=even,
        STAGES=stages, num_warps=warps,
    )  # fmt: skip
    sum_kernel[(triton.cdiv(n, COLUMNS),)](
        dweight_parts, dweight, programs, N=n, COLUMNS=COLUMNS, PARTS=triton.next_power_of_2(programs), num_warps=4
    )
    return dx, dweight
