"""LayerNorm, float32: forms that were not measured yet, by settings (docs/results/h200.md).

FORM 0: a tile of rows a program. 1: programs that stay, rows copied ahead. 2: rows read more than once, by blocks.
"""

import torch
import triton
import triton.language as tl

FORM = 0
TILE = 1024  # elements of a tile, at least
PER_THREAD = 16
COUNT = 1  # tiles of a program one after the other, all loaded first
PROGRAMS_PER_SM = 4
STAGES = 3
CHUNK = 0  # whether a program that stays has neighbouring tiles
BLOCK = 4096
LOOP_WARPS = 8
LOAD = 0  # of HINTS
STORE = 0
LOAD_BY = 0  # of LOADS
STORE_BY = 0  # of STORES
HINTS = ("", "evict_first", "evict_last")
LOADS = ("", ".cg", ".ca")
STORES = ("", ".cg", ".cs")
WIDE = 16384  # longer rows are read by blocks
EPS = tl.constexpr(1e-5)


@triton.jit
def tiles_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, m, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    COUNT: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, LOAD_BY: tl.constexpr, STORE_BY: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    FULL: tl.constexpr = N == BLOCK
    first = tl.program_id(0) * ROWS * COUNT + tl.arange(0, ROWS)
    loaded = ()
    for i in tl.static_range(COUNT):
        rows = first + i * ROWS
        at = x_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :]
        if EVEN:
            loaded += (tl.load(at, eviction_policy=LOAD, cache_modifier=LOAD_BY),)
        else:
            mask = (rows < m)[:, None] & inside[None, :]
            loaded += (tl.load(at, mask=mask, other=0.0, eviction_policy=LOAD, cache_modifier=LOAD_BY),)
    w = tl.load(w_ptr + cols, mask=inside, other=0.0)[None, :]
    b = tl.load(b_ptr + cols, mask=inside, other=0.0)[None, :]
    for i in tl.static_range(COUNT):
        rows = first + i * ROWS
        x = loaded[i].to(tl.float32)
        x = x - (tl.sum(x, axis=1) / N)[:, None]
        if not FULL:
            x = tl.where(inside[None, :], x, 0.0)
        rstd = tl.rsqrt(tl.sum(x * x, axis=1) / N + EPS)
        y = x * rstd[:, None] * w + b
        at = y_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :]
        y = y.to(y_ptr.dtype.element_ty)
        if EVEN:
            tl.store(at, y, eviction_policy=STORE, cache_modifier=STORE_BY)
        else:
            mask = (rows < m)[:, None] & inside[None, :]
            tl.store(at, y, mask=mask, eviction_policy=STORE, cache_modifier=STORE_BY)


@triton.jit
def stay_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, m, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, CHUNK: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, STORE_BY: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    FULL: tl.constexpr = N == BLOCK
    tiles = tl.cdiv(m, ROWS)
    first = tl.program_id(0)
    step = tl.num_programs(0)
    if CHUNK:
        share = tl.cdiv(tiles, step)
        first = first * share
        tiles = tl.minimum(tiles, first + share)
        step = 1
    w = tl.load(w_ptr + cols, mask=inside, other=0.0)[None, :]
    b = tl.load(b_ptr + cols, mask=inside, other=0.0)[None, :]
    for tile in tl.range(first, tiles, step, num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        at = rows.to(tl.int64)[:, None] * N + cols[None, :]
        mask = (rows < m)[:, None] & inside[None, :]
        if EVEN:
            x = tl.load(x_ptr + at, eviction_policy=LOAD).to(tl.float32)
        else:
            x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy=LOAD).to(tl.float32)
        x = x - (tl.sum(x, axis=1) / N)[:, None]
        if not FULL:
            x = tl.where(inside[None, :], x, 0.0)
        rstd = tl.rsqrt(tl.sum(x * x, axis=1) / N + EPS)
        y = x * rstd[:, None] * w + b
        y = y.to(y_ptr.dtype.element_ty)
        if EVEN:
            tl.store(y_ptr + at, y, eviction_policy=STORE, cache_modifier=STORE_BY)
        else:
            tl.store(y_ptr + at, y, mask=mask, eviction_policy=STORE, cache_modifier=STORE_BY)


@triton.jit
def blocks_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr, STORE_BY: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * N
    cols = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        total += tl.load(x_ptr + at + start + cols, mask=start + cols < N, other=0.0, eviction_policy="evict_last")
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        x = tl.load(x_ptr + at + start + cols, mask=start + cols < N, other=0.0, eviction_policy="evict_last") - mean
        squares += tl.where(start + cols < N, x * x, 0.0)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / N + EPS)
    for start in range(0, N, BLOCK):
        inside = start + cols < N
        x = tl.load(x_ptr + at + start + cols, mask=inside, other=0.0, eviction_policy="evict_first")
        w = tl.load(w_ptr + start + cols, mask=inside, other=0.0, eviction_policy="evict_last")
        b = tl.load(b_ptr + start + cols, mask=inside, other=0.0, eviction_policy="evict_last")
        y = ((x - mean) * scale * w + b).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + at + start + cols, y, mask=inside, eviction_policy=STORE, cache_modifier=STORE_BY)


def run(x, weight, bias):
    m, n = x.shape
    y = torch.empty_like(x)
    store, store_by = HINTS[STORE], STORES[STORE_BY]
    if FORM == 2 or n > WIDE:
        blocks_kernel[(m,)](
            x, weight, bias, y, N=n, BLOCK=8192 if n > WIDE else min(BLOCK, triton.next_power_of_2(n)), STORE=store,
            STORE_BY=store_by, num_warps=16 if n > WIDE else LOOP_WARPS,
        )  # fmt: skip
        return y
    block = triton.next_power_of_2(n)
    rows = min(max(1, TILE // block), triton.next_power_of_2(m))
    tiles = triton.cdiv(m, rows)
    warps = min(32, max(1, rows * block // PER_THREAD // 32))
    if FORM == 1:
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        stay_kernel[(min(tiles, PROGRAMS_PER_SM * processors),)](
            x, weight, bias, y, m, N=n, ROWS=rows, BLOCK=block, EVEN=block == n and m % rows == 0,
            STAGES=STAGES, CHUNK=CHUNK, LOAD=HINTS[LOAD], STORE=store, STORE_BY=store_by, num_warps=warps,
        )  # fmt: skip
        return y
    tiles_kernel[(triton.cdiv(tiles, COUNT),)](
        x, weight, bias, y, m, N=n, ROWS=rows, BLOCK=block, EVEN=block == n and m % (rows * COUNT) == 0, COUNT=COUNT,
        LOAD=HINTS[LOAD], STORE=store, LOAD_BY=LOADS[LOAD_BY], STORE_BY=store_by, num_warps=warps,
    )  # fmt: skip
    return y
