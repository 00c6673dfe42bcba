"""The text of a convolution's kernel that copies nothing: products in TF32 of what threads load from x itself.

For few products an output: there a copy of x costs more than they do. A tile is outputs that follow each other, of one
picture; each thread loads what its rows meet, as the left operand of wgmma; all filters lie in shared memory. Outputs
of a transposed convolution that lie a stride apart meet taps of their own: those of a row are of one program, and for a
stride of two are stored together. A tile is turned in shared memory, so that whole lines are stored.

IEEE float32 (PARTED) is two parts: the nearest number of TF32, and the rest, which is exact but for a bit. Without the
product of both rests, each product is off by less than 2^-21. Tensor cores round sums toward zero, so each unit has a
sum of its own, which begins with the small products.
"""

DIRECT = '''

MOST_PRODUCTS = 256  # an output has, at most
FEWEST_COPIED = 16  # channels from which x is copied in parts  # PARTED
CHUNK_K = 16


@gluon.constexpr_function
def least(one, other):
    return min(one, other)


@gluon.constexpr_function
def part(ways, residue):
    """Of depth, rows and columns each: what `way` tells, field by field."""
    return ways[18 * residue : 18 * residue + 18]


@gluon.jit
def rounded(x):
    """x and half a unit of TF32, below which tensor cores cut off. Infinity and NaN stay what they are."""  # HALVED
    """The nearest number of TF32."""  # PARTED
    power = (x.to(gl.int32, bitcast=True) & -8388608).to(gl.float32, bitcast=True)  # HALVED
    return power * 0.00048828125 + x  # HALVED
    return ((x.to(gl.int32, bitcast=True) + 4096) & -8192).to(gl.float32, bitcast=True)  # PARTED


@gluon.jit
def reached(at, WAY: gl.constexpr, D: gl.constexpr, SHIFT: gl.constexpr, SIZES: gl.constexpr):
    """A bit a tap along a dimension: whether it meets x."""
    bits = at * 0
    COUNT: gl.constexpr = WAY[D]
    for tap in gl.static_range(COUNT):
        place = at + (WAY[9 + D] + tap * WAY[12 + D])
        bits |= gl.where((place >= 0) & (place < SIZES[D]), 1 << (SHIFT + tap), 0)
    return bits


@gluon.jit
def factors(CHUNK: gl.constexpr, WAY: gl.constexpr, C: gl.constexpr, BLOCK_K: gl.constexpr, LAYOUT: gl.constexpr):
    """Channels and taps of a chunk: of one tap, where channels are many."""
    ALL: gl.constexpr = WAY[0] * WAY[1] * WAY[2]
    k = gl.arange(0, BLOCK_K, LAYOUT)
    if C % BLOCK_K == 0:
        channel, tap = k + CHUNK * BLOCK_K % C, k * 0 + CHUNK * BLOCK_K // C
    else:
        channel, tap = (k + CHUNK * BLOCK_K) // ALL, (k + CHUNK * BLOCK_K) % ALL
    return channel, tap // (WAY[1] * WAY[2]), tap // WAY[2] % WAY[1], tap % WAY[2]


@gluon.jit
def keep(w_ptr, b_smem, col, n, R: gl.constexpr, TAPS: gl.constexpr, MEETING: gl.constexpr):
    """Copies filters, of the taps that outputs of a residue meet, to shared memory."""
    WAY: gl.constexpr = part(WAYS, R)
    W: gl.constexpr = gl.BlockedLayout([1, 1], [32 // BLOCK_K, BLOCK_K], [gl.num_warps(), 1], [1, 0])
    VOLUME: gl.constexpr = TAPS[0] * TAPS[1] * TAPS[2]
    filters = col + gl.arange(0, BLOCK_N, gl.SliceLayout(1, W))
    ALL: gl.constexpr = CHUNKS[len(CHUNKS) - 1]  # PARTED
    for chunk in gl.static_range(CHUNKS[R + 1] - CHUNKS[R]):
        channel, down, high, wide = factors(chunk, WAY, C, BLOCK_K, gl.SliceLayout(0, W))
        at = ((WAY[3] + down * WAY[6]) * TAPS[1] + WAY[4] + high * WAY[7]) * TAPS[2] + WAY[5] + wide * WAY[8]
        inside = (filters < n)[:, None] & (channel < C)[None, :]
        w = gl.load(w_ptr + filters[:, None] * (C * VOLUME) + (channel * VOLUME + at)[None, :], mask=inside, other=0.0)
        b_smem.index(CHUNKS[R] + chunk).store(rounded(w))
        b_smem.index(ALL + CHUNKS[R] + chunk).store(w - rounded(w))  # PARTED


@gluon.jit
def met(x_ptr, tile, R: gl.constexpr, FIRST: gl.constexpr, A: gl.constexpr, MEETING: gl.constexpr):
    """What a tile of outputs of a residue meets: UNIT chunks, or what is left."""
    WAY: gl.constexpr = part(WAYS, R)
    LAST: gl.constexpr = least(CHUNKS[R + 1] - CHUNKS[R], FIRST + UNIT)
    VOLUME: gl.constexpr = SIZES[0] * SIZES[1] * SIZES[2]
    COUNT: gl.constexpr = CELLS[0] * CELLS[1] * CELLS[2]
    TILES: gl.constexpr = (COUNT + ROWS - 1) // ROWS
    rows = gl.minimum(tile % TILES * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, A)), COUNT - 1)
    level = rows // (CELLS[1] * CELLS[2]) * WAY[15]
    i = rows // CELLS[2] % CELLS[1] * WAY[16]
    j = rows % CELLS[2] * WAY[17]
    first = (level * SIZES[1] + i) * SIZES[2] + j
    x_from = x_ptr + (tile // TILES).to(gl.int64) * (C * VOLUME)
    bits = rows * 0
    if PADDED:
        bits = reached(level, WAY, 0, 0, SIZES) | reached(i, WAY, 1, WAY[0], SIZES)
        bits |= reached(j, WAY, 2, WAY[0] + WAY[1], SIZES)
    parts = ()
    for chunk in gl.static_range(FIRST, LAST):
        channel, down, high, wide = factors(chunk, WAY, C, BLOCK_K, gl.SliceLayout(0, A))
        at = (WAY[9] + down * WAY[12]) * SIZES[1] + WAY[10] + high * WAY[13]
        at = at * SIZES[2] + WAY[11] + wide * WAY[14]
        at = first[:, None] + (channel * VOLUME)[None, :] + at[None, :]
        needed = channel * 0
        if PADDED:
            needed = (1 << down) | (1 << (WAY[0] + high)) | (1 << (WAY[0] + WAY[1] + wide))
        needed = gl.where(channel < C, needed, -1)
        x = gl.load(x_from + at, mask=(~bits[:, None] & needed[None, :]) == 0, other=0.0)
        parts = parts + (rounded(x),)  # HALVED
        parts = parts + (x,)  # PARTED
    return parts


@gluon.jit
def multiplied(x_ptr, b_smem, tile, after, parts, R: gl.constexpr, MMA: gl.constexpr, MEETING: gl.constexpr):
    """The product of filters and of what a tile of outputs meets, the first unit of which is loaded.

    The next unit is loaded meanwhile, of this product or of the next one.
    """
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    SIZE: gl.constexpr = CHUNKS[R + 1] - CHUNKS[R]
    ALL: gl.constexpr = CHUNKS[len(CHUNKS) - 1]  # PARTED
    acc = gl.zeros([ROWS, BLOCK_N], gl.float32, MMA)
    for first in gl.static_range(0, SIZE, UNIT):
        before = acc  # PARTED
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, MMA)  # PARTED
        for chunk in gl.static_range(first, least(SIZE, first + UNIT)):
            b = b_smem.index(CHUNKS[R] + chunk).permute((1, 0))
            acc = warpgroup_mma(parts[chunk - first], b, acc, is_async=True)  # HALVED
            high = rounded(parts[chunk - first])  # PARTED
            acc = warpgroup_mma(parts[chunk - first] - high, b, acc, is_async=True)  # PARTED
            b = b_smem.index(ALL + CHUNKS[R] + chunk).permute((1, 0))  # PARTED
            acc = warpgroup_mma(high, b, acc, is_async=True)  # PARTED
        for chunk in gl.static_range(first, least(SIZE, first + UNIT)):  # PARTED
            b = b_smem.index(CHUNKS[R] + chunk).permute((1, 0))  # PARTED
            acc = warpgroup_mma(rounded(parts[chunk - first]), b, acc, is_async=True)  # PARTED
        if first + UNIT < SIZE:
            parts = met(x_ptr, tile, R, first + UNIT, A, MEETING)
        elif R + 2 < len(CHUNKS):
            parts = met(x_ptr, tile, R + 1, 0, A, MEETING)
        else:
            parts = met(x_ptr, after, 0, 0, A, MEETING)
        acc = warpgroup_mma_wait(0, deps=[acc])
        if first > 0:  # PARTED
            acc += before  # PARTED
    return acc, parts


@gluon.jit
def finish_direct(
    acc, held, c_ptr, BESIDE, tile, col, n, down, right, LAYOUT: gl.constexpr, OUTS: gl.constexpr, APART: gl.constexpr,
    BETWEEN: gl.constexpr, CELLS: gl.constexpr, ROWS: gl.constexpr
):
    """What follows the product, and its store: a residue's outputs, or all residues' of a row."""
    COUNT: gl.constexpr = CELLS[0] * CELLS[1] * CELLS[2]
    TILES: gl.constexpr = (COUNT + ROWS - 1) // ROWS
    JOINED: gl.constexpr = acc.shape[0] // ROWS
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, acc.shape[1], gl.SliceLayout(0, LAYOUT))
    channel_stride: gl.constexpr = BETWEEN[2]
    held.store(acc)
    acc = held.load(LAYOUT)
    picture = (tile // TILES).to(gl.int64)
    cell = tile % TILES * ROWS + rows // JOINED
    if APART[0] == 1 and APART[1] == 1 and BETWEEN[1] == OUTS[1] * OUTS[2]:
        offsets = picture * BETWEEN[0] + cell
        written = cell < COUNT
    else:
        i, j = cell // CELLS[2] % CELLS[1] * APART[0] + down, cell % CELLS[2] * APART[1] + rows % JOINED + right
        place = cell // (CELLS[1] * CELLS[2])
        offsets = picture * BETWEEN[0] + place.to(gl.int64) * BETWEEN[1] + (i * OUTS[2] + j)
        written = (cell < COUNT) & (j < OUTS[2])
    inside = written[:, None] & (cols < n)[None, :]
    EPILOGUE
    to = (c_ptr + offsets)[:, None] + (cols * channel_stride)[None, :]
    gl.store(to, RESULT.to(c_ptr.dtype.element_ty), mask=inside)


@gluon.jit
def direct_kernel(
    x_ptr, w_ptr, c_ptr, BESIDE, tiles, n, down, MEETING: gl.constexpr, OUTS: gl.constexpr, TAPS: gl.constexpr,
    APART: gl.constexpr, BETWEEN: gl.constexpr, VECTOR: gl.constexpr
):
    """One or several tiles of outputs; WAYS: for each residue of columns, how its outputs meet depth, rows, columns."""
    WARPS: gl.constexpr = gl.num_warps()
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_N, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_K], gl.float32)
    LANES: gl.constexpr = 32 if VECTOR == 1 else 16
    DOWN: gl.constexpr = ROWS // (LANES * VECTOR)
    OUT: gl.constexpr = gl.BlockedLayout([VECTOR, 1], [LANES, 32 // LANES], [DOWN, WARPS // DOWN], [0, 1])
    RESIDUES: gl.constexpr = len(WAYS) // 18
    HELD: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [0, 1])
    col = gl.program_id(1) * BLOCK_N
    b_smem = gl.allocate_shared_memory(gl.float32, [CHUNKS[RESIDUES], BLOCK_N, BLOCK_K], B)  # HALVED
    b_smem = gl.allocate_shared_memory(gl.float32, [2 * CHUNKS[RESIDUES], BLOCK_N, BLOCK_K], B)  # PARTED
    held = gl.allocate_shared_memory(gl.float32, [ROWS * (2 if RESIDUES == 2 else 1), BLOCK_N], HELD)
    for r in gl.static_range(RESIDUES):
        keep(w_ptr, b_smem, col, n, r, TAPS, MEETING)
    fence_async_shared()
    parts = met(x_ptr, gl.program_id(0), 0, 0, A, MEETING)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        after = gl.minimum(tile + gl.num_programs(0), tiles - 1)
        results = ()
        for r in gl.static_range(RESIDUES):
            acc, parts = multiplied(x_ptr, b_smem, tile, after, parts, r, MMA, MEETING)
            if RESIDUES == 2:
                results = results + (acc,)
            else:
                finish_direct(acc, held, c_ptr, BESIDE, tile, col, n, down, r, OUT, OUTS, APART, BETWEEN, CELLS, ROWS)
        if RESIDUES == 2:
            both = gl.join(results[0], results[1]).permute((0, 2, 1)).reshape([2 * ROWS, BLOCK_N])
            finish_direct(both, held, c_ptr, BESIDE, tile, col, n, down, 0, OUT, OUTS, APART, BETWEEN, CELLS, ROWS)


def way(residue, cells, taps, stride, before, step, apart, every):
    """How outputs of a residue meet x: how many taps do, which is first, and every how many; where the first meets x,
    how far on each next one, and how far on the next output does.
    """
    first = next((tap for tap in range(every) if (residue - before + tap * step) % apart == 0), taps)
    if first >= taps:  # none does: one that meets nothing but zeros
        return 1, 0, 1, -cells * stride, 0, stride
    at = (residue - before + first * step) // apart
    return triton.cdiv(taps - first, every), first, every, at, every * step // apart, stride


def beyond(size, cells, count, first, every, at, step, stride):
    """Whether a tap meets what is not in x."""
    ends = at, at + (count - 1) * step
    return min(ends) < 0 or max(ends) + (cells - 1) * stride >= size


def direct(x, w, EXTRAS, out, geometry):
    """Whether this convolution is computed so; it is then."""
    (_, *sizes, c), (n, *taps, _), outs = x.shape, w.shape, out.shape[1:4]
    names = ("DOWN", "TOP"), ("RIGHT", "LEFT")
    names = [(side, before, f"STEP_{side}", f"APART_{side}", f"EVERY_{side}") for side, before in names]
    places = [(*geometry["DEEP"], 1, 1), *([geometry[name] for name in along] for along in names)]
    apart = places[1][3], places[2][3]
    cells = [triton.cdiv(outs[d], places[d][3]) for d in range(3)]
    ways = [[way(r, cells[d], taps[d], *places[d]) for r in range(places[d][3])] for d in range(3)]
    most = [c * ways[0][0][0] * max(one[0] for one in ways[1]) * one[0] for one in ways[2]]
    if c != w.shape[4] or max(taps) == 1 or max(taps) > 10 or max(most) > MOST_PRODUCTS:  # 30 taps have a bit each
        return False
    if c >= FEWEST_COPIED:  # PARTED
        return False  # PARTED
    block_n = min(64 if len(most) == 2 else 128, max(16, triton.next_power_of_2(n)))
    block_n = min(64, block_n)  # PARTED
    kept = sum(triton.cdiv(one, CHUNK_K) for one in most) * block_n * CHUNK_K * 4  # bytes
    kept *= 2  # PARTED

    def residents(warps):
        return min(12 // warps, 227 * 1024 // (kept + 64 * warps * (1 + (len(most) == 2)) * block_n + 1024))

    warps = max((4, 8), key=lambda warps: warps * residents(warps))
    if not residents(warps):
        return False
    rows, programs = 16 * warps, residents(warps)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    for down in range(min(apart[0], outs[1])):
        each = [(ways[0][0], ways[1][down], one) for one in ways[2]]
        here = cells[0], triton.cdiv(outs[1] - down, apart[0]), cells[2]
        chunks = [0]
        for one in each:
            chunks.append(chunks[-1] + triton.cdiv(c * one[0][0] * one[1][0] * one[2][0], CHUNK_K))
        count = here[0] * here[1] * here[2]
        strides = out.stride(0), out.stride(1) if here[0] > 1 else here[1] * here[2], out.stride(4)
        whole = apart == (1, 1) and strides[1] == here[1] * here[2] and not any(one % 4 for one in (count, *strides))
        tiles = triton.cdiv(count, rows) * len(x)
        direct_kernel[(min(tiles, processors * programs), triton.cdiv(n, block_n))](
            x, w, out, EXTRAS, tiles, n, down, C=c, SIZES=tuple(sizes), CELLS=here,
            WAYS=tuple(number for one in each for field in zip(*one) for number in field), CHUNKS=tuple(chunks),
            PADDED=any(beyond(sizes[d], here[d], *one[d]) for one in each for d in range(3)),
            ROWS=rows, UNIT=4, BLOCK_N=block_n, BLOCK_K=CHUNK_K, OUTS=tuple(outs), TAPS=tuple(taps), APART=apart,
            BETWEEN=strides, VECTOR=4 if whole else 1, num_warps=warps,
            maxnreg=min(248, 2048 // (warps * programs) // 8 * 8),
        )
    return True
'''
