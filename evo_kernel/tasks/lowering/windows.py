"""The texts of a convolution's template: windows that TMA cuts out, a product in Gluon; and a kernel that gathers them.

Everything lies channels last; float32 that is channels first is copied so, as parts of float16. The product is that of
`product_gluon`, of windows (outputs by taps and channels) and filters: a tile has a box of outputs (pictures, rows,
columns) for each warp group, so that what it needs for one tap is a box of x too, one copy. A stride's phases are views
of x with a descriptor each. TMA reads zeros beyond x's borders, and leaves out what lies beyond y's. A transposed
convolution is one of a negative padding and dilation, whose outputs lie apart. Depth is folded into channels.
"""

IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n"
NAMES = {
    "PHASES": ("phase_1", "phase_2", "phase_3"),
    "BOX": ("BOX_N", "BOX_H", "BOX_W"),
    "SIDES": ("out_high", "out_wide"),
    "STRIDES": ("out_deep", "picture_stride", "depth_stride", "channel_stride"),
    "GEOMETRY": (
        *("HIGH", "WIDE", "DOWN", "RIGHT", "TOP", "LEFT", "STEP_DOWN", "STEP_RIGHT"),
        *("APART_DOWN", "APART_RIGHT", "EVERY_DOWN", "EVERY_RIGHT"),
    ),
    "MEETING": ("C", "SIZES", "CELLS", "WAYS", "CHUNKS", "PADDED", "ROWS", "UNIT", "BLOCK_N", "BLOCK_K"),
}
"""What these stand for: other phases of x; a box's pictures, rows and columns; the result's rows and columns; of a
result in planes, how many are a volume, and strides. Then, each of rows and of columns: taps of a filter, stride,
padding and dilation; how far apart outputs lie that meet the same taps, and every how many taps they meet. Last, of
`direct`: how a tile meets x."""

GATHER = '''

GATHER_M = 128
GATHER_N = 128
GATHER_K = 32
GATHER_WARPS = 4


@triton.jit
def gather_kernel(
    x_ptr, w_ptr, c_ptr, POINTERS, m, n, high, wide, out_high, out_wide,
    C: tl.constexpr, GEOMETRY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UNROLL: tl.constexpr,
):
    """Outputs by filters, over the flat index of taps and channels: a row of a window is contiguous in x."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    i = rows // out_wide % out_high * DOWN - TOP
    j = rows % out_wide * RIGHT - LEFT
    first = (((rows // out_wide // out_high).to(tl.int64) * high + i) * wide + j) * C
    ROW: tl.constexpr = WIDE * C
    LENGTH: tl.constexpr = HIGH * ROW
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, LENGTH, BLOCK_K, loop_unroll_factor=UNROLL):
        inner = start + tl.arange(0, BLOCK_K)
        down = inner // ROW * STEP_DOWN
        right = inner % ROW // C * STEP_RIGHT
        offsets = down * wide * C + inner % ROW + inner % ROW // C * (STEP_RIGHT - 1) * C
        inside = (rows < m)[:, None] & (inner < LENGTH)[None, :]
        if TOP > 0 or LEFT > 0:
            at_i, at_j = i[:, None] + down[None, :], j[:, None] + right[None, :]
            inside = inside & (at_i >= 0) & (at_i < high) & (at_j >= 0) & (at_j < wide)
        x = tl.load((x_ptr + first)[:, None] + offsets[None, :], mask=inside, other=0.0)
        w_inside = (inner < LENGTH)[:, None] & (cols < n)[None, :]
        w = tl.load(w_ptr + cols[None, :] * LENGTH + inner[:, None], mask=w_inside, other=0.0)
        acc = tl.dot(x, w, acc)
    EPILOGUE
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :], RESULT.to(c_ptr.dtype.element_ty), mask=inside)


def gather(x, w, EXTRAS, out, geometry):
    n, f_high, f_wide, channels = w.shape
    m = out.numel() // n
    block_n = min(GATHER_N, max(16, triton.next_power_of_2(n)))
    steps = triton.cdiv(f_high * f_wide * channels, GATHER_K)
    gather_kernel[(triton.cdiv(m, GATHER_M), triton.cdiv(n, block_n))](
        x, w, out, EXTRAS, m, n, x.shape[1], x.shape[2], out.shape[1], out.shape[2],
        C=channels, **geometry, BLOCK_M=GATHER_M, BLOCK_N=block_n, BLOCK_K=GATHER_K,
        UNROLL=steps if steps <= 8 else 1, num_warps=GATHER_WARPS,
    )
'''

CUT = '''

SLACK = 102  # % of the fewest boxes that cover the outputs
LARGE = 100  # MB of x from which boxes are of few pictures  # BOXES
EXTRA_STEPS = 3  # what a tile takes beyond its products


@gluon.jit
def taps_of(
    residue, SIDE: gl.constexpr, APART: gl.constexpr, EVERY: gl.constexpr, BEFORE: gl.constexpr, STEP: gl.constexpr
):
    """The first tap that outputs of this residue meet, and how many; where they meet none, one beyond the last."""
    first = residue * 0 + SIDE
    for tap in gl.static_range(EVERY):
        first = gl.where((residue - BEFORE + tap * STEP) % APART == 0, tap, first)
    return first, gl.maximum(gl.cdiv(SIDE - first, EVERY), 1)


@gluon.jit
def share_of(row, GEOMETRY: gl.constexpr):
    """Of a row of tiles: its boxes' row, the residues of their outputs, first taps down and right, and how many."""
    down, right = row // APART_RIGHT % APART_DOWN, row % APART_RIGHT
    top, high = taps_of(down, HIGH, APART_DOWN, EVERY_DOWN, TOP, STEP_DOWN)
    left, wide = taps_of(right, WIDE, APART_RIGHT, EVERY_RIGHT, LEFT, STEP_RIGHT)
    return row // (APART_DOWN * APART_RIGHT), down, right, top, left, high * wide


@gluon.jit
def corner_of(box, SIDES, BOX: gl.constexpr, GEOMETRY: gl.constexpr):
    """First picture, row and column of a box of outputs."""
    high, wide = gl.cdiv(out_high, BOX_H * APART_DOWN), gl.cdiv(out_wide, BOX_W * APART_RIGHT)
    return box // (wide * high) * BOX_N, box // wide % high * BOX_H, box % wide * BOX_W


@gluon.jit
def outputs(place, i, j, residue, at, m, SIDES, BOX: gl.constexpr, GEOMETRY: gl.constexpr):
    """The flat indices of a box of outputs; m for those beyond a border."""
    place, i, j = place + at // (BOX_H * BOX_W), i + at // BOX_W % BOX_H, j + at % BOX_W
    i, j = i * APART_DOWN + residue[0], j * APART_RIGHT + residue[1]
    return gl.where((i < out_high) & (j < out_wide), (place * out_high + i) * out_wide + j, m)


@gluon.jit
def load_window(
    phases, barrier, a, at, channel, BLOCK_K: gl.constexpr, BOX: gl.constexpr, GEOMETRY: gl.constexpr
):
    """What a box of outputs meets at one tap."""
    place, i, j, down, right = at
    down += TOP * (DOWN * APART_DOWN - 1)  # from as many whole strides above x: no remainder is negative
    right += LEFT * (RIGHT * APART_RIGHT - 1)
    phase = down % DOWN * RIGHT + right % RIGHT
    i, j = i + down // (DOWN * APART_DOWN) - TOP, j + right // (RIGHT * APART_RIGHT) - LEFT
    at = [place, i, j, channel]
    a = a.reshape([BOX, BLOCK_K])
    for p in gl.static_range(DOWN * RIGHT):
        if phase == p:
            load_tile(phases[p], at, barrier, a)


def box_of(rows, x, sides):
    """Pictures, rows and columns of a box of so many outputs: boxes that cover the outputs with little waste.

    They are of all pictures at one place, or, where x is larger than L2, of few: windows overlap while in L2.  # BOXES
    They are of few pictures and of many columns, which lie side by side.  # PLANES
    """
    shapes = [(h, w) for h in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8, 16) if h * w <= rows]  # BOXES
    shapes = [(h, w) for h in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8, 16, 32, 64, 128) if h * w <= rows]  # PLANES
    boxes = [(rows // (h * w), h, w) for h, w in shapes]
    most = min(count(box, sides) for box in boxes)
    if 2 * x.numel() < LARGE * 1000000:  # BOXES
        return max((box for box in boxes if count(box, sides) == most), key=lambda box: box[0])  # BOXES
    near = (box for box in boxes if 100 * count(box, sides) <= SLACK * most)
    return min(near, key=lambda box: (box[0], -box[2]))


def count(box, sides):
    return triton.cdiv(sides[0], box[0]) * triton.cdiv(sides[1], box[1]) * triton.cdiv(sides[2], box[2])


def depth_of(channels):
    return min((64, 32, 16), key=lambda depth: triton.cdiv(channels, depth) * (depth + 16))


def cut(x, w, EXTRAS, out, geometry):
    if one_tap(x, w, EXTRAS, out, geometry):  # PLANES+HALVED
        return  # PLANES+HALVED
    if direct(x, w, EXTRAS, out, geometry):  # PLANES
        return  # PLANES
    _, out_deep, _, _, _ = out.shape  # PLANES
    picture_stride, depth_stride, _, _, channel_stride = out.stride()  # PLANES
    (x, a_inverse), (w, b_inverse), geometry = in_parts(x, w, out, geometry)  # PLANES
    down, right, apart = geometry["DOWN"], geometry["RIGHT"], (geometry["APART_DOWN"], geometry["APART_RIGHT"])
    (*_, out_high, out_wide, n), phases = out.shape, apart[0] * apart[1]
    channels, taps, m = x.shape[3], w.shape[1] * w.shape[2], out.numel() // n
    sides = m // (out_high * out_wide), triton.cdiv(out_high, apart[0]), triton.cdiv(out_wide, apart[1])
    if channels % 8 or channels < 16 or n % 8 or down > min(2, x.shape[1]) or right > min(2, x.shape[2]):  # BOXES
        return gather(x, w, EXTRAS, out, geometry)  # BOXES
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count

    def tiles(form):
        return triton.cdiv(count(box_of(form[0], x, sides), sides), form[1]) * phases * triton.cdiv(n, form[2])

    depth = depth_of(channels)
    steps = triton.cdiv(channels, depth)

    def cycles(form):
        """1024 multiply-adds each, and 80 a step."""
        step = form[0] * form[1] * form[2] * depth / form[7] / 2048 + 80
        return triton.cdiv(tiles(form), processors) * (steps * taps / phases + EXTRA_STEPS * 64 / depth) * step

    form = min(FORMS, key=cycles)
    rows, groups, block_n, full_depth, slots, parts, outs, _ = form
    if out.dtype == torch.float32:  # BOXES
        slots, outs = slots - 1, 1  # BOXES
    slots = 226 * 1024 // ((groups * rows + block_n) * full_depth * 2)  # PLANES
    parts = 2  # halves: what follows spills less  # PLANES
    box = box_of(rows, x, sides)
    a, *others = [descriptor(x[:, i::down, j::right], [*box, depth]) for i in range(down) for j in range(right)]
    product_kernel[(min(processors, tiles(form)),)](
        a, *(others + 3 * [a])[:3], descriptor(w, [block_n, 1, 1, depth]),
        descriptor(out, [*box, block_n // parts]),  # BOXES
        out, a_inverse, b_inverse,  # PLANES
        EXTRAS, triton.cdiv(count(box, sides), groups) * phases, triton.cdiv(n, block_n), steps, m, n, SIDES, STRIDES,
        BOX_N=box[0], BOX_H=box[1], BOX_W=box[2], **geometry,
        ROWS=rows, GROUPS=groups, BLOCK_N=block_n, BLOCK_K=depth, SLOTS=slots * full_depth // depth, GROUP_M=GROUP_M,
        PARTS=parts, OUTS=outs, num_warps=4,
    )
'''

PLANES = '''

@triton.jit
def largest_kernel(x_ptr, largest_ptr, size, BLOCK: tl.constexpr):
    """The largest finite magnitude in each of several parts of a picture."""
    piece, pieces, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    largest = tl.zeros([BLOCK], tl.float32)
    for first in range(piece * BLOCK, size, pieces * BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.abs(tl.load(x_ptr + picture * size + at, mask=at < size, other=0.0))
        largest = tl.maximum(largest, tl.where(x < float("inf"), x, 0.0))
    tl.store(largest_ptr + picture * pieces + piece, tl.max(largest, axis=0))


@triton.jit
def planes_kernel(
    x_ptr, largest_ptr, parts_ptr, inverse_ptr, channels, deep, high, wide, folded_deep, folded_high, folded_wide,
    depth, groups, DEEP: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    PIECES: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """Planes of a picture times the power of two that brings it to at most 2^15, channels last, in parts; its inverse.

    Of a window DEEP, DOWN and RIGHT of each plane, row and column that is left, all become channels: every how many
    windows begin, how many places they have, how far apart, and where the first begins. Of several groups of channels,
    other pictures' are 0. The first part is what a value rounds to, the second one 2^11 times the rest.
    """
    plane = tl.program_id(1).to(tl.int64)
    picture = plane // folded_deep
    largest = tl.max(tl.load(largest_ptr + picture * PIECES + tl.arange(0, PIECES)), axis=0)
    exponent = tl.minimum(268 - (largest.to(tl.int32, bitcast=True) >> 23), 253)
    power = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(inverse_ptr + plane, ((254 - exponent) << 23).to(tl.float32, bitcast=True))
    blocks = tl.cdiv(folded_wide, BLOCK_W)
    i = tl.program_id(0) // blocks
    j = tl.program_id(0) % blocks * BLOCK_W + tl.arange(0, BLOCK_W)
    to = parts_ptr + ((plane * folded_high + i) * folded_wide + j)[:, None] * depth
    second = tl.num_programs(1).to(tl.int64) * folded_high * folded_wide * depth  # PARTED
    group = picture * groups // (tl.num_programs(1) // folded_deep)
    for first in range(0, depth, BLOCK_C):
        at = first + tl.arange(0, BLOCK_C)
        channel = at // (DEEP[1] * DOWN[1] * RIGHT[1]) - group * channels
        level = plane % folded_deep * DEEP[0] + DEEP[3] + at // (DOWN[1] * RIGHT[1]) % DEEP[1] * DEEP[2]
        row = i * DOWN[0] + DOWN[3] + at // RIGHT[1] % DOWN[1] * DOWN[2]
        col = (j * RIGHT[0] + RIGHT[3])[:, None] + (at % RIGHT[1] * RIGHT[2])[None, :]
        inside = (channel >= 0) & (channel < channels) & (level >= 0) & (level < deep) & (row >= 0) & (row < high)
        inside = inside[None, :] & (col >= 0) & (col < wide)
        x_from = x_ptr + (((picture * channels + channel) * deep + level) * high + row) * wide
        x = tl.load(x_from[None, :] + col, mask=inside, other=0.0) * power
        inside = (j < folded_wide)[:, None] & (at < depth)[None, :]
        first_part = x.to(tl.float16)
        tl.store(to + at[None, :], first_part, mask=inside)
        rest = tl.where(tl.abs(x) < float("inf"), x - first_part.to(tl.float32), 0.0) * 2048.0  # PARTED
        tl.store(to + second + at[None, :], rest.to(tl.float16), mask=inside)  # PARTED


def planes(x, sides, depth, windows, groups):
    """Pictures in float32 as float16, all first parts before the second ones, channels last, and powers' inverses."""
    n, deep, high, wide, channels = x.shape
    pieces = triton.next_power_of_2(min(512, triton.cdiv(2048, n), triton.cdiv(x.numel() // n, 1 << 14)))
    largest = torch.empty((n, pieces), dtype=torch.float32, device=x.device)
    largest_kernel[(pieces, n)](x, largest, x.numel() // n, BLOCK=2048)
    count = n * sides[0]
    parts = torch.empty((2 * count, *sides[1:], depth), dtype=torch.float16, device=x.device)  # PARTED
    parts = torch.empty((count, *sides[1:], depth), dtype=torch.float16, device=x.device)  # HALVED
    inverse = torch.empty(count, dtype=torch.float32, device=x.device)
    block_c = min(64, triton.next_power_of_2(depth))
    block = min(4096 // block_c, max(16, triton.next_power_of_2(sides[2])))
    planes_kernel[(sides[1] * triton.cdiv(sides[2], block), count)](
        x, largest, parts, inverse, channels, deep, high, wide, *sides, depth, groups, *windows, PIECES=pieces,
        BLOCK_W=block, BLOCK_C=block_c, num_warps=8,
    )
    return parts, inverse


def folds(size, outs, taps, stride, before, step, apart):
    """How a dimension may be folded, its places becoming channels: a window as `planes_kernel` has it, how many there
    are, how many parts of so many taps a filter has, and the stride, padding and dilation that are left.

    It is left as it is, or each stride becomes one, or all that an output meets.
    """
    if stride <= min(2, size):
        yield (1, 1, 1, 0), size, taps, stride, before, step
    if step == 1:
        shift = before % stride
        parts = triton.cdiv(taps, stride)
        yield (stride, min(stride, taps), 1, -shift), triton.cdiv(size + shift, stride), parts, 1, before // stride, 1
    if apart == 1:
        yield (stride, taps, step, -before), outs, 1, 1, 0, 1


def in_parts(x, w, out, geometry):
    """Pictures and filters as float16, and how these now meet: folded where that makes the product shorter."""
    names = ("HIGH", "DOWN", "TOP", "STEP_DOWN"), ("WIDE", "RIGHT", "LEFT", "STEP_RIGHT")
    places = [(*(geometry[name] for name in along[1:]), geometry["APART" + along[3][4:]]) for along in names]
    places.insert(0, (*geometry.pop("DEEP", (1, 0, 1)), 1))
    ways = [list(folds(x.shape[d], out.shape[d], w.shape[d], *places[d - 1])) for d in (1, 2, 3)]

    def depth(ways):
        return max(16, triton.cdiv(x.shape[4] * ways[0][0][1] * ways[1][0][1] * ways[2][0][1], 8) * 8)

    def price(ways):
        block = depth_of(depth(ways))
        copied = depth(ways) * ways[1][1] * ways[2][1] / (out.shape[2] * out.shape[3])
        return ways[1][2] * ways[2][2] * triton.cdiv(depth(ways), block) * (block + 16) + 3 * copied

    ways = min(((ways[0][-1], down, right) for down in ways[1] for right in ways[2]), key=price)
    kept = {name: number for along, way in zip(names, ways[1:]) for name, number in zip(along, way[2:])}
    pictures = planes(x, [way[1] for way in ways], depth(ways), [way[0] for way in ways], 1)
    windows = [(*way[0][:2], 1, 0) for way in ways]
    filters = planes(w, [way[2] for way in ways], depth(ways), windows, x.shape[4] // w.shape[4])
    return pictures, filters, geometry | kept
'''

SHAPED = '''

def convolve(multiply, x, w, EXTRAS, geometry, dtype):
    """x is (pictures, rows, columns, channels), w (filters, rows, columns, channels), the result as x is."""
    sides = [
        (x.shape[dim] + 2 * geometry[before] - geometry[step] * (w.shape[dim] - 1) - 1) // geometry[stride] + 1
        for dim, stride, before, step in ((1, "DOWN", "TOP", "STEP_DOWN"), (2, "RIGHT", "LEFT", "STEP_RIGHT"))
    ]
    out = torch.empty((len(x), *sides, len(w)), dtype=dtype, device=x.device)
    geometry |= dict(HIGH=w.shape[1], WIDE=w.shape[2], APART_DOWN=1, APART_RIGHT=1, EVERY_DOWN=1, EVERY_RIGHT=1)
    multiply(x, w, EXTRAS, out, geometry)
    return out
'''

CONVOLVE = '''

def geometry({arguments}):
    """Strides, paddings and dilations."""
{places}

def run({arguments}):
    return convolve({multiply}, {left}, {right}, {extras}geometry({arguments}), {dtype}){turned}
'''
