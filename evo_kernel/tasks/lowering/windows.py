"""The texts of a convolution's template: windows that TMA cuts out, a product in Gluon; and a kernel that gathers them.

Everything lies channels last; float32 that is channels first is copied so, as parts of float16. The product is that of
`product_gluon`, of windows (outputs by taps and channels) and filters: a tile has a box of outputs (pictures, rows,
columns) for each warp group, so that what it needs for one tap is a box of x too, one copy. A stride's phases are views
of x with a descriptor each. TMA reads zeros beyond x's borders, and leaves out what lies beyond y's.
"""

IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n"
NAMES = {
    "PHASES": ("phase_1", "phase_2", "phase_3"),
    "BOX": ("BOX_N", "BOX_H", "BOX_W"),
    "SIDES": ("out_high", "out_wide"),
    "GEOMETRY": ("WIDE", "DOWN", "RIGHT", "TOP", "LEFT", "STEP_DOWN", "STEP_RIGHT"),
}
"""What these stand for: other phases of x; a box's pictures, rows and columns; the result's rows and columns; a
filter's columns, then stride, padding and dilation, each of rows and of columns."""

GATHER = '''

GATHER_M = 128
GATHER_N = 128
GATHER_K = 32
GATHER_WARPS = 4


@triton.jit
def gather_kernel(
    x_ptr, w_ptr, c_ptr, POINTERS, m, n, high, wide, out_high, out_wide,
    C: tl.constexpr, HIGH: tl.constexpr, GEOMETRY: tl.constexpr,
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
        C=channels, HIGH=f_high, **geometry, BLOCK_M=GATHER_M, BLOCK_N=block_n, BLOCK_K=GATHER_K,
        UNROLL=steps if steps <= 8 else 1, num_warps=GATHER_WARPS,
    )
'''

CUT = '''

SLACK = 102  # % of the fewest boxes that cover the outputs
LARGE = 100  # MB of x from which boxes are of few pictures  # BOXES
EXTRA_STEPS = 3  # what a tile takes beyond its products


@gluon.jit
def corner_of(box, SIDES, BOX: gl.constexpr):
    """First picture, row and column of a box of outputs."""
    high, wide = gl.cdiv(out_high, BOX_H), gl.cdiv(out_wide, BOX_W)
    return box // (wide * high) * BOX_N, box // wide % high * BOX_H, box % wide * BOX_W


@gluon.jit
def outputs(place, i, j, at, m, SIDES, BOX: gl.constexpr):
    """The flat indices of a box of outputs; m for those beyond a border."""
    place, i, j = place + at // (BOX_H * BOX_W), i + at // BOX_W % BOX_H, j + at % BOX_W
    return gl.where((i < out_high) & (j < out_wide), (place * out_high + i) * out_wide + j, m)


@gluon.jit
def load_window(
    phases, barrier, a, corner, tap, channel, BLOCK_K: gl.constexpr, BOX: gl.constexpr, GEOMETRY: gl.constexpr
):
    """What a box of outputs meets at one tap."""
    place, i, j = corner
    down = tap // WIDE * STEP_DOWN + TOP * (DOWN - 1)  # from as many whole strides above x: no remainder is negative
    right = tap % WIDE * STEP_RIGHT + LEFT * (RIGHT - 1)
    phase = down % DOWN * RIGHT + right % RIGHT
    at = [place, i + down // DOWN - TOP, j + right // RIGHT - LEFT, channel]
    a = a.reshape([BOX, BLOCK_K])
    for p in gl.static_range(DOWN * RIGHT):
        if phase == p:
            load_tile(phases[p], at, barrier, a)


def box_of(rows, x, out):
    """Pictures, rows and columns of a box of so many outputs: boxes that cover the outputs with little waste.

    They are of all pictures at one place, or, where x is larger than L2, of few: windows overlap while in L2.  # BOXES
    They are of few pictures and of many columns, which lie side by side.  # PLANES
    """
    sides = [(h, w) for h in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8, 16) if h * w <= rows]  # BOXES
    sides = [(h, w) for h in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8, 16, 32, 64) if h * w <= rows]  # PLANES
    boxes = [(rows // (h * w), h, w) for h, w in sides]
    most = min(count(box, out) for box in boxes)
    if 2 * x.numel() < LARGE * 1000000:  # BOXES
        return max((box for box in boxes if count(box, out) == most), key=lambda box: box[0])  # BOXES
    near = (box for box in boxes if 100 * count(box, out) <= SLACK * most)
    return min(near, key=lambda box: (box[0], -box[2]))


def count(box, out):
    return triton.cdiv(out.shape[0], box[0]) * triton.cdiv(out.shape[1], box[1]) * triton.cdiv(out.shape[2], box[2])


def cut(x, w, EXTRAS, out, geometry):
    (x, a_inverse), (w, b_inverse), geometry = in_parts(x, w, geometry)  # PLANES
    down, right = geometry["DOWN"], geometry["RIGHT"]
    channels, n, taps = x.shape[3], out.shape[3], w.shape[1] * w.shape[2]
    if channels % 8 or channels < 16 or n % 8 or down > min(2, x.shape[1]) or right > min(2, x.shape[2]):  # BOXES
        return gather(x, w, EXTRAS, out, geometry)  # BOXES
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count

    def tiles(form):
        return triton.cdiv(count(box_of(form[0], x, out), out), form[1]) * triton.cdiv(n, form[2])

    depth = min((64, 32, 16), key=lambda depth: triton.cdiv(channels, depth) * (depth + 16))
    steps = taps * triton.cdiv(channels, depth)

    def cycles(form):
        """1024 multiply-adds each, and 80 a step."""
        step = form[0] * form[1] * form[2] * depth / form[7] / 2048 + 80
        return triton.cdiv(tiles(form), processors) * (steps + EXTRA_STEPS * 64 / depth) * step

    form = min(FORMS, key=cycles)
    rows, groups, block_n, full_depth, slots, parts, outs, _ = form
    if out.dtype == torch.float32:  # BOXES
        slots, outs = slots - 1, 1  # BOXES
    slots = 226 * 1024 // ((groups * rows + block_n) * full_depth * 2)  # PLANES
    out_high, out_wide = out.shape[1:3]
    box = box_of(rows, x, out)
    a, *phases = [descriptor(x[:, i::down, j::right], [*box, depth]) for i in range(down) for j in range(right)]
    product_kernel[(min(processors, tiles(form)),)](
        a, *(phases + 3 * [a])[:3], descriptor(w.flatten(1, 2), [block_n, 1, depth]),
        descriptor(out, [*box, block_n // parts]),  # BOXES
        out, a_inverse, b_inverse,  # PLANES
        EXTRAS, triton.cdiv(count(box, out), groups), triton.cdiv(n, block_n), steps, out.numel() // n, n, SIDES,
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
    x_ptr, largest_ptr, parts_ptr, inverse_ptr, channels, high, wide, folded_high, folded_wide, depth,
    FOLD_H: tl.constexpr, FOLD_W: tl.constexpr, TAKEN_H: tl.constexpr, TAKEN_W: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, PIECES: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """A picture times the power of two that brings it to at most 2^15, channels last, in parts, and its inverse.

    The first ones of each FOLD_H rows and FOLD_W columns become channels. The first part is what a value rounds to, the
    second one 2^11 times the rest.
    """
    picture = tl.program_id(1).to(tl.int64)
    largest = tl.max(tl.load(largest_ptr + picture * PIECES + tl.arange(0, PIECES)), axis=0)
    exponent = tl.minimum(268 - (largest.to(tl.int32, bitcast=True) >> 23), 253)
    power = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(inverse_ptr + picture, ((254 - exponent) << 23).to(tl.float32, bitcast=True))
    blocks = tl.cdiv(folded_wide, BLOCK_W)
    i = tl.program_id(0) // blocks
    j = tl.program_id(0) % blocks * BLOCK_W + tl.arange(0, BLOCK_W)
    to = parts_ptr + ((picture * folded_high + i) * folded_wide + j)[:, None] * depth
    second = tl.num_programs(1).to(tl.int64) * folded_high * folded_wide * depth  # PARTED
    for first in range(0, depth, BLOCK_C):
        at = first + tl.arange(0, BLOCK_C)
        channel = at // (TAKEN_H * TAKEN_W)
        row = i * FOLD_H - TOP + at // TAKEN_W % TAKEN_H
        col = (j * FOLD_W - LEFT)[:, None] + (at % TAKEN_W)[None, :]
        inside = ((channel < channels) & (row >= 0) & (row < high))[None, :] & (col >= 0) & (col < wide)
        x_from = x_ptr + picture * channels * high * wide + channel * high * wide + row * wide
        x = tl.load(x_from[None, :] + col, mask=inside, other=0.0) * power
        inside = (j < folded_wide)[:, None] & (at < depth)[None, :]
        first_part = x.to(tl.float16)
        tl.store(to + at[None, :], first_part, mask=inside)
        rest = tl.where(tl.abs(x) < float("inf"), x - first_part.to(tl.float32), 0.0) * 2048.0  # PARTED
        tl.store(to + second + at[None, :], rest.to(tl.float16), mask=inside)  # PARTED


def planes(x, fold, taken, shift, depth):
    """Pictures in float32 as float16, all first parts before the second ones, channels last, and powers' inverses."""
    n, high, wide, channels = x.shape
    pieces = triton.next_power_of_2(min(512, triton.cdiv(2048, n), triton.cdiv(high * wide * channels, 1 << 14)))
    largest = torch.empty((n, pieces), dtype=torch.float32, device=x.device)
    largest_kernel[(pieces, n)](x, largest, high * wide * channels, BLOCK=2048)
    sides = triton.cdiv(high + shift[0], fold[0]), triton.cdiv(wide + shift[1], fold[1])
    parts = torch.empty((2 * n, *sides, depth), dtype=torch.float16, device=x.device)  # PARTED
    parts = torch.empty((n, *sides, depth), dtype=torch.float16, device=x.device)  # HALVED
    inverse = torch.empty(n, dtype=torch.float32, device=x.device)
    block_c = min(64, triton.next_power_of_2(depth))
    block = min(4096 // block_c, max(16, triton.next_power_of_2(sides[1])))
    planes_kernel[(sides[0] * triton.cdiv(sides[1], block), n)](
        x, largest, parts, inverse, channels, high, wide, *sides, depth, *fold, *taken, *shift, PIECES=pieces,
        BLOCK_W=block, BLOCK_C=block_c, num_warps=8,
    )
    return parts, inverse


def in_parts(x, w, geometry):
    """Pictures and filters as float16, and how these now meet.

    A stride is folded where that makes the product shorter: its rows and columns become channels.
    """
    strides, sides = (geometry["DOWN"], geometry["RIGHT"]), w.shape[1:3]
    folds = [(1, 1)] if all(stride <= min(2, size) for stride, size in zip(strides, x.shape[1:3])) else []
    folds += [strides] if geometry["STEP_DOWN"] == geometry["STEP_RIGHT"] == 1 else []

    def taken(fold):
        return min(fold[0], sides[0]), min(fold[1], sides[1])

    def depth(fold):
        return max(16, triton.cdiv(x.shape[3] * taken(fold)[0] * taken(fold)[1], 8) * 8)

    def taps(fold):
        return triton.cdiv(sides[0], fold[0]) * triton.cdiv(sides[1], fold[1])

    fold = min(folds, key=lambda fold: taps(fold) * depth(fold))
    shift = geometry["TOP"] % fold[0], geometry["LEFT"] % fold[1]
    geometry = dict(
        geometry, WIDE=triton.cdiv(sides[1], fold[1]), DOWN=strides[0] // fold[0], RIGHT=strides[1] // fold[1],
        TOP=geometry["TOP"] // fold[0], LEFT=geometry["LEFT"] // fold[1],
    )
    pictures = planes(x, fold, taken(fold), shift, depth(fold))
    return pictures, planes(w, fold, taken(fold), (0, 0), depth(fold)), geometry
'''

SHAPED = '''

def convolve(multiply, x, w, EXTRAS, geometry, dtype):
    """x is (pictures, rows, columns, channels), w (filters, rows, columns, channels), the result as x is."""
    sides = [
        (x.shape[dim] + 2 * geometry[before] - geometry[step] * (w.shape[dim] - 1) - 1) // geometry[stride] + 1
        for dim, stride, before, step in ((1, "DOWN", "TOP", "STEP_DOWN"), (2, "RIGHT", "LEFT", "STEP_RIGHT"))
    ]
    out = torch.empty((len(x), *sides, len(w)), dtype=dtype, device=x.device)  # BOXES
    out = torch.empty((len(x), len(w), *sides), dtype=dtype, device=x.device).permute(0, 2, 3, 1)  # PLANES
    multiply(x, w, EXTRAS, out, dict(geometry, WIDE=w.shape[2]))
    return out
'''

CONVOLVE = '''

def geometry({arguments}):
    """Strides, paddings and dilations."""
{places}

def run({arguments}):
    return convolve({multiply}, {left}, {right}, {extras}geometry({arguments}), {dtype}){turned}
'''
