"""The texts of a convolution's template: windows that TMA cuts out, a product in Gluon; and a kernel that gathers them.

Everything lies channels last. The product is that of `product_gluon`, of windows (outputs by taps and channels) and
filters: a tile has a box of outputs (pictures, rows, columns) for each warp group, so that what it needs for one tap is
a box of x too, one copy. A stride's phases are views of x with a descriptor each. TMA reads zeros beyond x's borders,
and leaves out what lies beyond y's.
"""

IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n"
NAMES = {
    "PHASES": ("phase_1", "phase_2", "phase_3"),
    "BOX": ("BOX_N", "BOX_H", "BOX_W"),
    "GEOMETRY": ("WIDE", "DOWN", "RIGHT", "TOP", "LEFT", "STEP_DOWN", "STEP_RIGHT"),
}
"""What these stand for: other phases of x; a box's pictures, rows and columns; a filter's columns, then stride, padding
and dilation, each of rows and of columns."""

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


def convolve(multiply, x, w, EXTRAS, geometry, dtype):
    """x is (pictures, rows, columns, channels), w (filters, rows, columns, channels), the result as x is."""
    sides = [
        (x.shape[dim] + 2 * geometry[before] - geometry[step] * (w.shape[dim] - 1) - 1) // geometry[stride] + 1
        for dim, stride, before, step in ((1, "DOWN", "TOP", "STEP_DOWN"), (2, "RIGHT", "LEFT", "STEP_RIGHT"))
    ]
    out = torch.empty((len(x), *sides, len(w)), dtype=dtype, device=x.device)
    multiply(x, w, EXTRAS, out, dict(geometry, WIDE=w.shape[2]))
    return out
'''

CUT = '''

SLACK = 102  # % of the fewest boxes that cover the outputs
LARGE = 100  # MB of x from which boxes are of few pictures
EXTRA_STEPS = 3  # what a tile takes beyond its products


@gluon.jit
def corner_of(box, c_desc, BOX: gl.constexpr):
    """First picture, row and column of a box of outputs."""
    high, wide = gl.cdiv(c_desc.shape[1], BOX_H), gl.cdiv(c_desc.shape[2], BOX_W)
    return box // (wide * high) * BOX_N, box // wide % high * BOX_H, box % wide * BOX_W


@gluon.jit
def outputs(place, i, j, at, m, c_desc, BOX: gl.constexpr):
    """The flat indices of a box of outputs; m for those beyond a border."""
    place, i, j = place + at // (BOX_H * BOX_W), i + at // BOX_W % BOX_H, j + at % BOX_W
    high, wide = c_desc.shape[1], c_desc.shape[2]
    return gl.where((i < high) & (j < wide), (place * high + i) * wide + j, m)


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

    They are of all pictures at one place; where x is larger than L2, of few, whose windows overlap while in L2.
    """
    sides = [(h, w) for h in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8, 16) if h * w <= rows]
    boxes = [(rows // (h * w), h, w) for h, w in sides]
    most = min(count(box, out) for box in boxes)
    if 2 * x.numel() < LARGE * 1000000:
        return max((box for box in boxes if count(box, out) == most), key=lambda box: box[0])
    near = (box for box in boxes if 100 * count(box, out) <= SLACK * most)
    return min(near, key=lambda box: (box[0], -box[2]))


def count(box, out):
    return triton.cdiv(out.shape[0], box[0]) * triton.cdiv(out.shape[1], box[1]) * triton.cdiv(out.shape[2], box[2])


def cut(x, w, EXTRAS, out, geometry):
    down, right = geometry["DOWN"], geometry["RIGHT"]
    channels, n, taps = x.shape[3], w.shape[0], w.shape[1] * w.shape[2]
    if channels % 8 or channels < 16 or n % 8 or down > min(2, x.shape[1]) or right > min(2, x.shape[2]):
        return gather(x, w, EXTRAS, out, geometry)
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
    if out.dtype == torch.float32:
        slots, outs = slots - 1, 1
    box = box_of(rows, x, out)
    a, *phases = [descriptor(x[:, i::down, j::right], [*box, depth]) for i in range(down) for j in range(right)]
    product_kernel[(min(processors, tiles(form)),)](
        a, *(phases + 3 * [a])[:3], descriptor(w.view(n, taps, channels), [block_n, 1, depth]),
        descriptor(out, [*box, block_n // parts]), EXTRAS, triton.cdiv(count(box, out), groups),
        triton.cdiv(n, block_n), steps, out.numel() // n, n, BOX_N=box[0], BOX_H=box[1], BOX_W=box[2], **geometry,
        ROWS=rows, GROUPS=groups, BLOCK_N=block_n, BLOCK_K=depth, SLOTS=slots * full_depth // depth, GROUP_M=GROUP_M,
        PARTS=parts, OUTS=outs, num_warps=4,
    )
'''

CONVOLVE = '''

def geometry({arguments}):
    """Strides, paddings and dilations."""
{places}

def run({arguments}):
    return convolve({multiply}, {left}, {right}, {extras}geometry({arguments}), {dtype}){turned}
'''
