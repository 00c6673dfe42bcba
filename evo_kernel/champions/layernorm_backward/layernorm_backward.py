"""LayerNorm backward, float32: programs that stay hold weight and sums of columns in registers (sm_90).

Bred on an H200 by an external agent (2026-11-29). `lineage.json` has the versions, `layernorm_backward.db.xz` is the
population. Confirmed on hidden cases by judge 30: 1.53 (1.18 to 1.74) of the fastest baseline.

Mechanism
---------
x and dy are read once and dx is written once; gradients of weight and bias are sums over all rows, without atomics.

* Programs stay: each keeps the weight and its sums of columns in registers for all its rows, and writes the sums once.
  A second launch adds them, in a fixed order.
* The next rows come by cp.async while these are computed (STAGES), where rows are whole blocks.
* Rows longer than 8192: two programs share rows. Both read them whole (the second time from the L2) for two means, but
  store and sum one half of the columns, whose sums fit in registers.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 30, 2026-11-29; hidden cases are marked. m x n:

| case | us | copy bandwidth | fastest baseline us | |
| --- | --- | --- | --- | --- |
| 8192 x 4096 | 108.5 | 88 % | 142.1 torch.compile | 1.31x |
| 16384 x 1024 | 61.6 | 77 % | 74.9 torch.compile | 1.21x |
| 32768 x 768, hidden | 88.5 | 81 % | 104.0 torch.compile | 1.18x |
| 4097 x 5120, hidden | 79.1 | 75 % | 137.8 torch.compile | 1.74x |
| 2048 x 16384, hidden | 137.5 | 69 % | 239.7 fused | 1.74x |

Dead ends
---------
Of 13 settings:

* 8 elements a thread, twice the warps: 49 to 52 % slower where rows are at most 1024; one program of them, not two:
  37 % slower at 8192 x 4096.
* Rows of 16384 with sums of whole rows: 47 % of copy bandwidth, because 32 warps have 64 registers a thread, and spill.
* Tiles of 2048 elements: 16 to 18 % slower where rows are at most 1024. A hint to drop dx, wider programs of the second
  launch: 0 to 3 %.
* Columns in two pieces (768 = 512 + 256), so that fewer lanes are masked: 17 % slower at 32768 x 768, 42 % at
  4097 x 5120.
"""

import torch
import triton
import triton.language as tl

TILE = 4096  # elements at a time, at least
STAGES = 2
COLUMNS = 32  # a program of the second launch
WIDE = 8192  # columns of longer rows are shared by two programs
PER_THREAD = 16


@triton.jit
def rows_kernel(
    x_ptr, w_ptr, dy_ptr, mean_ptr, rstd_ptr, dx_ptr, parts_ptr, m, N: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    w = tl.load(w_ptr + cols, mask=inside, other=0.0)
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, ROWS), tl.num_programs(0), num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        at = rows.to(tl.int64)[:, None] * N + cols[None, :]
        mask = (rows < m)[:, None] & inside[None, :]
        if EVEN:
            x = tl.load(x_ptr + at, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_ptr + at, eviction_policy="evict_first").to(tl.float32)
            rstd = tl.load(rstd_ptr + rows)
            mean = tl.load(mean_ptr + rows)
        else:
            x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            rstd = tl.load(rstd_ptr + rows, mask=rows < m, other=0.0)
            mean = tl.load(mean_ptr + rows, mask=rows < m, other=0.0)
        u = (x - mean[:, None]) * rstd[:, None]
        g = dy * w[None, :]
        mean_g = tl.sum(g, axis=1) / N
        mean_gu = tl.sum(g * u, axis=1) / N
        dx = rstd[:, None] * (g - mean_g[:, None] - u * mean_gu[:, None])
        dweight += dy * u
        dbias += dy
        if EVEN:
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty))
        else:
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    place = parts_ptr + tl.program_id(0).to(tl.int64) * N + cols
    tl.store(place, tl.sum(dweight, axis=0), mask=inside)
    tl.store(place + tl.num_programs(0).to(tl.int64) * N, tl.sum(dbias, axis=0), mask=inside)


@triton.jit
def halves_kernel(
    x_ptr, w_ptr, dy_ptr, mean_ptr, rstd_ptr, dx_ptr, parts_ptr, m, N: tl.constexpr, A: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Two programs a row: each reads all of it, and stores and sums A columns of its own."""
    half = tl.program_id(0) % 2
    first = tl.program_id(0) // 2
    programs = tl.num_programs(0) // 2
    own = half * A + tl.arange(0, A)
    other = (1 - half) * A + tl.arange(0, A)
    own_w = tl.load(w_ptr + own, mask=own < N, other=0.0)
    other_w = tl.load(w_ptr + other, mask=other < N, other=0.0)
    dweight = tl.zeros([A], tl.float32)
    dbias = tl.zeros([A], tl.float32)
    for row in tl.range(first, m, programs, num_stages=2):
        at = row.to(tl.int64) * N
        if EVEN:
            x = tl.load(x_ptr + at + own, eviction_policy="evict_first")
            dy = tl.load(dy_ptr + at + own, eviction_policy="evict_first")
            other_x = tl.load(x_ptr + at + other, eviction_policy="evict_first")
            other_dy = tl.load(dy_ptr + at + other, eviction_policy="evict_first")
        else:
            x = tl.load(x_ptr + at + own, mask=own < N, other=0.0, eviction_policy="evict_first")
            dy = tl.load(dy_ptr + at + own, mask=own < N, other=0.0, eviction_policy="evict_first")
            other_x = tl.load(x_ptr + at + other, mask=other < N, other=0.0, eviction_policy="evict_first")
            other_dy = tl.load(dy_ptr + at + other, mask=other < N, other=0.0, eviction_policy="evict_first")
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        u = (x - mean) * rstd
        g = dy * own_w
        other_g = other_dy * other_w
        mean_g = (tl.sum(g, axis=0) + tl.sum(other_g, axis=0)) / N
        mean_gu = (tl.sum(g * u, axis=0) + tl.sum(other_g * ((other_x - mean) * rstd), axis=0)) / N
        dx = rstd * (g - mean_g - u * mean_gu)
        dweight += dy * u
        dbias += dy
        tl.store(dx_ptr + at + own, dx, mask=own < N)
    place = parts_ptr + first.to(tl.int64) * N + own
    tl.store(place, dweight, mask=own < N)
    tl.store(place + programs.to(tl.int64) * N, dbias, mask=own < N)


@triton.jit
def sum_kernel(parts_ptr, dweight_ptr, dbias_ptr, parts, N: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr):
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.arange(0, PARTS)
    at = rows[:, None] * N + cols[None, :]
    mask = (rows < parts)[:, None] & (cols < N)[None, :]
    total = tl.load(parts_ptr + at, mask=mask, other=0.0)
    tl.store(dweight_ptr + cols, tl.sum(total, axis=0), mask=cols < N)
    total = tl.load(parts_ptr + parts * N + at, mask=mask, other=0.0)
    tl.store(dbias_ptr + cols, tl.sum(total, axis=0), mask=cols < N)


def run(x, weight, dy, mean, rstd):
    m, n = x.shape
    dx = torch.empty_like(x)
    dweight = torch.empty_like(weight)
    dbias = torch.empty_like(weight)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    block = triton.next_power_of_2(n)
    if n > WIDE:
        parts = min(m, processors // 2)
        sums = torch.empty((2, parts, n), dtype=torch.float32, device=x.device)
        halves_kernel[(2 * parts,)](
            x, weight, dy, mean, rstd, dx, sums, m, N=n, A=block // 2, EVEN=block == n,
            num_warps=min(32, block // 2 // PER_THREAD // 32),
        )  # fmt: skip
    else:
        rows = min(max(1, TILE // block), triton.next_power_of_2(m))
        even = block == n and m % rows == 0
        parts = min(triton.cdiv(m, rows), 2 * processors)
        sums = torch.empty((2, parts, n), dtype=torch.float32, device=x.device)
        rows_kernel[(parts,)](
            x, weight, dy, mean, rstd, dx, sums, m, N=n, ROWS=rows, BLOCK=block, EVEN=even,
            STAGES=STAGES if even else 1,  # masked copies cost more than they hide
            num_warps=min(32, max(1, rows * block // (32 if block == 8192 else 16) // 32)),
        )  # fmt: skip
    sum_kernel[(triton.cdiv(n, COLUMNS),)](
        sums, dweight, dbias, parts, N=n, COLUMNS=COLUMNS, PARTS=triton.next_power_of_2(parts), num_warps=4
    )
    return dx, dweight, dbias
