"""The text of a product's template in Triton; which matrices templates are for; and `run`, which asks that."""

from __future__ import annotations

from evo_kernel.tasks.lowering.contraction import LEAST

SERVED = '''"""Whether tensor descriptors can serve these: rows begin at multiples of 16 bytes."""
    return a.is_contiguous() and b.is_contiguous() and all(size % 8 == 0 for size in (a.shape[1], *b.shape))'''
PAYS = f'''"""Whether the result is large enough for parts."""
    return min(a.shape[-2], b.shape[-2]) >= {LEAST}'''

FITS = """

def fits(a, b):
    {fits}
"""
RUN = (
    FITS
    + """

def run({arguments}):
    if not (fits({left}, {right}){wholes}):
        return run_plain({arguments})
    out = torch.empty({shape}, dtype={dtype}, device={first}.device)
    product({left}, {right}, {extras}{out})
    return out
"""
)

KERNEL = """

FORMS = (
    # rows, columns and depth of a tile, stages, warps, and the speed of such tiles on an H200
    (128, 256, 64, 3, 8, 1.0),  # ALONE
    (128, 128, 64, 4, 8, 0.9),
    (64, 128, 64, 4, 4, 0.75),
    (64, 64, 128, 5, 4, 0.5),
)
GROUP_M = 8


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, POINTERS, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):
    a_desc = tl.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [n, k], [k, 1], [BLOCK_N, BLOCK_K])  # TURNED
    b_desc = tl.make_tensor_descriptor(b_ptr, [k, n], [n, 1], [BLOCK_K, BLOCK_N])  # STRAIGHT
    c_desc = tl.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [BLOCK_M, BLOCK_N])
    row_tiles, col_tiles = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), row_tiles * col_tiles, tl.num_programs(0), flatten=True):
        group = tile // (GROUP_M * col_tiles)  # GROUP_M rows of tiles at a time, column by column: they share b in L2
        wide = min(row_tiles - group * GROUP_M, GROUP_M)
        row = (group * GROUP_M + tile % (GROUP_M * col_tiles) % wide) * BLOCK_M
        col = tile % (GROUP_M * col_tiles) // wide * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in tl.range(0, k, BLOCK_K, num_stages=STAGES):
            a = a_desc.load([row, start])
            acc = tl.dot(a, b_desc.load([col, start]).T, acc)  # TURNED
            acc = tl.dot(a, b_desc.load([start, col]), acc)  # STRAIGHT
        rows, cols = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
        EPILOGUE
        c_desc.store([row, col], RESULT.to(c_ptr.dtype.element_ty))


def product(a, b, EXTRAS, out):
    (m, k), n = a.shape, out.shape[1]
    processors = torch.cuda.get_device_properties(a.device).multi_processor_count

    def tiles(form):
        return triton.cdiv(m, form[0]) * triton.cdiv(n, form[1])

    form = min(FORMS, key=lambda form: triton.cdiv(tiles(form), processors) * form[0] * form[1] / form[5])
    product_kernel[(min(processors, tiles(form)),)](
        a, b, out, EXTRAS, m, n, k, BLOCK_M=form[0], BLOCK_N=form[1], BLOCK_K=form[2], GROUP_M=GROUP_M,
        STAGES=form[3], num_warps=form[4],
    )
"""
