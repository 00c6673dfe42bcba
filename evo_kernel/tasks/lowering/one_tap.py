"""The text of a convolution's kernel for filters of one tap: TMA loads tiles of x, channels by pixels, as they lie.

Nothing is copied. A warp fills a ring with tiles; each of two warp groups reads its pixels of a tile, turned, into
registers: as the left operand of wgmma in TF32, which from shared memory takes rows alone. All filters lie there.
"""

ONE_TAP = '''

@gluon.jit
def produce_pixels(x_desc, x_smem, full, empty, tiles, across, ROWS: gl.constexpr, CHUNKS: gl.constexpr):
    """One warp: loads what both groups multiply, CHUNK channels at a time."""
    SLOTS: gl.constexpr = full.shape[0]
    CHUNK: gl.constexpr = x_smem.shape[1]
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        for chunk in range(CHUNKS):
            barrier = full.index(slot)
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(barrier, 2 * CHUNK * ROWS * 4)
            for g in gl.static_range(2):
                at = [tile // across, chunk * CHUNK, (tile % across * 2 + g) * ROWS]
                load_tile(x_desc, at, barrier, x_smem.index(slot * 2 + g).reshape([1, CHUNK, ROWS]))
            slot, phase = following(slot, phase, SLOTS)


@gluon.jit
def finish_pixels(acc, c_ptr, BESIDE, place, first, pixels, col, n, picture_stride, channel_stride):
    """What follows the product, and its store."""
    rows = first + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
    cols = col + gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))
    offsets = place.to(gl.int64) * picture_stride + rows
    inside = (rows < pixels)[:, None] & (cols < n)[None, :]
    EPILOGUE
    to = (c_ptr + offsets)[:, None] + (cols * channel_stride)[None, :]
    gl.store(to, RESULT.to(c_ptr.dtype.element_ty), mask=inside)


@gluon.jit
def consume_pixels(
    c_ptr, BESIDE, x_smem, w_smem, full, empty, tiles, across, pixels, n, picture_stride, channel_stride,
    G: gl.constexpr, ROWS: gl.constexpr, CHUNKS: gl.constexpr
):
    """Warp group G: its pixels of each tile, by all filters."""
    SLOTS: gl.constexpr = full.shape[0]
    BLOCK_N: gl.constexpr = w_smem.shape[1]
    COLS: gl.constexpr = w_smem.shape[0] // CHUNKS
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 8])
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        parts = ()
        for _ in gl.static_range(CHUNKS):
            mbarrier.wait(full.index(slot), phase)
            parts = parts + (rounded(x_smem.index(slot * 2 + G).permute((1, 0)).load(gl.DotOperandLayout(0, MMA, 1))),)
            fence_async_shared()
            mbarrier.arrive(empty.index(slot), count=1)
            slot, phase = following(slot, phase, SLOTS)
        for block in gl.static_range(COLS):
            acc = gl.zeros([ROWS, BLOCK_N], gl.float32, MMA)
            for chunk in gl.static_range(CHUNKS):
                w = w_smem.index(block * CHUNKS + chunk).permute((1, 0))
                acc = warpgroup_mma(parts[chunk], w, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            first = (tile % across * 2 + G) * ROWS
            col = block * BLOCK_N
            finish_pixels(acc, c_ptr, BESIDE, tile // across, first, pixels, col, n, picture_stride, channel_stride)


@gluon.jit
def one_tap_kernel(
    x_desc, w_ptr, c_ptr, BESIDE, tiles, across, pixels, n, picture_stride, channel_stride,
    C: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLS: gl.constexpr, CHUNK: gl.constexpr,
    SLOTS: gl.constexpr
):
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    CHUNKS: gl.constexpr = (C + CHUNK - 1) // CHUNK
    X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CHUNK, ROWS], gl.float32)
    W: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, CHUNK], gl.float32)
    FILTERS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])
    x_smem = gl.allocate_shared_memory(gl.float32, [SLOTS * 2, CHUNK, ROWS], X)
    w_smem = gl.allocate_shared_memory(gl.float32, [COLS * CHUNKS, BLOCK_N, CHUNK], W)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], barriers)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    for part in gl.static_range(COLS * CHUNKS):
        row = part // CHUNKS * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, FILTERS))
        channel = part % CHUNKS * CHUNK + gl.arange(0, CHUNK, gl.SliceLayout(0, FILTERS))
        inside = (row < n)[:, None] & (channel < C)[None, :]
        w = gl.load(w_ptr + (row * C)[:, None] + channel[None, :], mask=inside, other=0.0)
        w_smem.index(part).store(rounded(w))
    fence_async_shared()
    gl.warp_specialize([
        (consume_pixels, (
            c_ptr, BESIDE, x_smem, w_smem, full, empty, tiles, across, pixels, n, picture_stride, channel_stride,
            0, ROWS, CHUNKS
        )),
        (consume_pixels, (
            c_ptr, BESIDE, x_smem, w_smem, full, empty, tiles, across, pixels, n, picture_stride, channel_stride,
            1, ROWS, CHUNKS
        )),
        (produce_pixels, (x_desc, x_smem, full, empty, tiles, across, ROWS, CHUNKS)),
    ], [4, 1], [232, 24])


def one_tap(x, w, EXTRAS, out, geometry):
    """Whether this convolution is computed so; it is then."""
    (count, *sizes, c), n = x.shape, len(w)
    pixels, plain = sizes[0] * sizes[1] * sizes[2], dict(DOWN=1, RIGHT=1, TOP=0, LEFT=0, APART_DOWN=1, APART_RIGHT=1)
    if w.shape[1:4] != (1, 1, 1) or c != w.shape[4] or pixels % 4:
        return False
    if geometry["DEEP"][:2] != (1, 0) or any(geometry[name] != value for name, value in plain.items()):
        return False
    if sizes[0] > 1 and out.stride(1) != sizes[1] * sizes[2]:
        return False
    block_n = min(128, max(16, triton.next_power_of_2(n)))
    cols, chunks, rows = triton.cdiv(n, block_n), triton.cdiv(c, 32), 64
    slots = (225 * 1024 - cols * chunks * block_n * 32 * 4) // (2 * 32 * rows * 4)
    if chunks > 8 or slots < 4:  # more registers, or shared memory, than there are
        return False
    across = triton.cdiv(pixels, 2 * rows)
    tiles = across * count
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    planes = x.permute(0, 4, 1, 2, 3).flatten(2)
    one_tap_kernel[(min(processors, tiles),)](
        descriptor(planes, [1, 32, rows]), w, out, EXTRAS, tiles, across, pixels, n, out.stride(0), out.stride(4),
        C=c, ROWS=rows, BLOCK_N=block_n, COLS=cols, CHUNK=32, SLOTS=min(slots, 12), num_warps=4,
    )
    return True
'''
