"""Paged decode attention, bfloat16, one query a sequence, heads of 64 or 128: chunks of keys, in Triton (sm_90).

Bred on an H200 by an external agent (2026-11-28). `lineage.json` has both versions, `decode_attention.db.xz` is the
population. Confirmed on hidden cases by judge 23: 2.06 (1.51 to 3.15) of FlexAttention, the fastest baseline. PyTorch
2.11 does not hand out FlashAttention's paged kernel, so it was not compared.

Mechanism
---------
Decoding is bound by reading keys and values once. A program takes up to 2048 keys of one sequence, for all query heads
that share a key head, so each key is read once; a second kernel joins the chunks by their maxima.

* Products the other way round: scores are keys x queries, and the output is values^T x weights. So keys and values are
  left operands of wgmma, which takes them from shared memory as cp.async put them there; the 4 or 8 queries of a group
  are padded to 16. On the left, queries would be padded to 64.
* A block of 64 keys lies in one page, so one number of a page is loaded a block, and addresses are affine.
* Six blocks in flight at d = 128 (104 KB, two programs a multiprocessor), three at d = 64 (more programs instead).
* Neighbouring programs read neighbouring heads of the same rows: 2 KB of consecutive memory.

Measured
--------
NVIDIA H200, torch 2.11, Triton 3.6, judge 23, 2026-11-28; hidden cases are marked. b x h (heads of keys) x s x d, page:

| case | us | copy bandwidth | FlexAttention us | copies, then SDPA us | |
| --- | --- | --- | --- | --- | --- |
| 64 x 32 (8) x 8192 x 128, 256 | 393.2 | 99 % | 640.3 | 1504.6 | 1.63x |
| 8 x 32 (8) x 32768 x 128, 64 | 194.1 | 94 % | 501.5 | 773.4 | 2.58x |
| 128 x 32 (8) x 4096 x 128, 64, hidden | 409.2 | 96 % | 616.7 | 1559.2 | 1.51x |
| 1 x 32 (4) x 131072 x 128, 256, hidden | 83.2 | 77 % | 154.1 | 235.0 | 1.85x |
| 33 x 16 (4) x 12289 x 64, 64, hidden | 98.8 | 76 % | 311.2 | 343.5 | 3.15x |

Dead ends
---------
* Eight warps: 30 % slower. Blocks of 128 keys: 27 % slower with pages of 256; of 32: 1 to 17 %; of 16: 17 to 49 %.
* Chunks of 512 and 1024: 7 and 3 % slower where sequences are few; of 4096: 6 % where they are many.
* Six blocks in flight at d = 64: 17 % slower than three.
* Where all programs run at once (one or two long sequences), a quarter of the bandwidth is left unused; chunks of 1024
  and 4096 are 10 % slower there.
"""

import torch
import triton
import triton.language as tl

BLOCK_N = 64  # keys at a time, of one page
CHUNK = 2048  # keys a program
LOOP_STAGES = 6  # blocks in flight at d = 128
NUM_WARPS = 4


@triton.jit
def part_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, part_ptr, max_ptr, sum_ptr, heads, key_heads, scale,
    table_stride, stride_page, stride_row, parts,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, G: tl.constexpr,
    GROUP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A chunk of one sequence, for the query heads that share a key head: weighted sums (D, G), maxima and sums."""
    key_head = tl.program_id(0)
    chunk = tl.program_id(1)
    sequence = tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    first = chunk * CHUNK
    if first < length:
        end = tl.minimum(first + CHUNK, length)
        dims = tl.arange(0, D)
        group = tl.arange(0, G)
        cols = tl.arange(0, BLOCK_N)
        head = sequence * heads + key_head * GROUP + group
        q = tl.load(q_ptr + head[None, :] * D + dims[:, None], mask=group[None, :] < GROUP, other=0.0)
        largest = tl.full([G], float("-inf"), tl.float32)
        total = tl.zeros([G], tl.float32)
        acc = tl.zeros([D, G], tl.float32)
        row_table = table_ptr + sequence * table_stride
        inner = cols[:, None] * stride_row + key_head * D + dims[None, :]
        for start in tl.range(first, end, BLOCK_N, num_stages=STAGES):
            page = tl.load(row_table + start // PAGE).to(tl.int64)
            offsets = page * stride_page + start % PAGE * stride_row + inner
            mask = (start + cols < end)[:, None]
            k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
            v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
            s = tl.where(mask, tl.dot(k, q) * scale, float("-inf"))
            new = tl.maximum(largest, tl.max(s, axis=0))
            p = tl.exp2(s - new[None, :])
            decay = tl.exp2(largest - new)
            total = total * decay + tl.sum(p, axis=0)
            acc = tl.dot(tl.trans(v), p.to(v.dtype), acc * decay[None, :])
            largest = new
        place = (sequence * parts + chunk) * heads + key_head * GROUP + group
        tl.store(max_ptr + place, largest, mask=group < GROUP)
        tl.store(sum_ptr + place, total, mask=group < GROUP)
        tl.store(part_ptr + place[None, :] * D + dims[:, None], acc, mask=group[None, :] < GROUP)


@triton.jit
def join_kernel(
    part_ptr, max_ptr, sum_ptr, lengths_ptr, o_ptr, heads, parts, D: tl.constexpr, CHUNK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Joins the parts of one query head by their maxima."""
    sequence = tl.program_id(1)
    head = tl.program_id(0)
    used = tl.cdiv(tl.load(lengths_ptr + sequence), CHUNK)
    dims = tl.arange(0, D)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for start in range(0, used, AT_ONCE):
        chunk = start + tl.arange(0, AT_ONCE)
        mask = chunk < used
        place = (sequence * parts + chunk) * heads + head
        m = tl.load(max_ptr + place, mask=mask, other=float("-inf"))
        s = tl.load(sum_ptr + place, mask=mask, other=0.0)
        part = tl.load(part_ptr + place[:, None] * D + dims[None, :], mask=mask[:, None], other=0.0)
        new = tl.maximum(largest, tl.max(m, axis=0))
        weight = tl.exp2(m - new)
        decay = tl.exp2(largest - new)
        total = total * decay + tl.sum(weight * s, axis=0)
        acc = acc * decay + tl.sum(part * weight[:, None], axis=0)
        largest = new
    tl.store(o_ptr + (sequence * heads + head) * D + dims, (acc / total).to(o_ptr.dtype.element_ty))


def run(q, k_pages, v_pages, table, lengths):
    sequences, heads, d = q.shape
    page, key_heads = k_pages.shape[1:3]
    parts = triton.cdiv(table.shape[1] * page, CHUNK)
    o = torch.empty_like(q)
    part = torch.empty((sequences, parts, heads, d), dtype=torch.float32, device=q.device)
    largest = torch.empty((sequences, parts, heads), dtype=torch.float32, device=q.device)
    total = torch.empty((sequences, parts, heads), dtype=torch.float32, device=q.device)
    group = heads // key_heads
    part_kernel[(key_heads, parts, sequences)](
        q, k_pages, v_pages, table, lengths, part, largest, total, heads, key_heads, d**-0.5 * 1.4426950408889634,
        table.stride(0), k_pages.stride(0), k_pages.stride(1), parts,
        D=d, PAGE=page, BLOCK_N=min(BLOCK_N, page), CHUNK=CHUNK, G=max(16, triton.next_power_of_2(group)),
        GROUP=group, STAGES=LOOP_STAGES * d // 128, num_warps=NUM_WARPS,
    )  # fmt: skip
    join_kernel[(heads, sequences)](
        part, largest, total, lengths, o, heads, parts, D=d, CHUNK=CHUNK, AT_ONCE=16, num_warps=4
    )
    return o
