"""Matrix products: every operand type, with and without an accumulator, batched, scaled, in loops."""

from __future__ import annotations

from benchmarks.fuzz.draws import chance, choice
from benchmarks.fuzz.maker import Maker, Value
from benchmarks.fuzz.values import TYPES

# operand: the relative error of one product and its place in the sum, against exact products summed exactly
_KINDS = {"f16": 2.0**-12, "bf16": 2.0**-12, "f32": 2.0**-8, "i8": 0.0, "e4": 2.0**-9, "e5": 2.0**-9}


def _sides(m: Maker, kind: str) -> tuple[int, int, int]:
    small = 32 if kind in ("i8", "e4", "e5") else 16
    return choice(m.draws, (16, 32)), choice(m.draws, (16, 32)), choice(m.draws, (small, 2 * small))


def dot(m: Maker) -> Value:
    kind = choice(m.draws, tuple(_KINDS))
    rows, columns, depth = _sides(m, kind)
    fill = "bits" if kind == "i8" else choice(m.draws, ("small", "unit"))
    a = m.load(TYPES[kind], (rows, depth), fill)
    b = m.load(TYPES[kind], (depth, columns), fill)
    right = b.name
    if chance(m.draws, 30):
        b = m.load(TYPES[kind], (columns, depth), fill)
        right = f"tl.trans({b.name})"
    extra, error = "", _KINDS[kind]
    if kind == "f32":
        precision, error = choice(m.draws, (("ieee", 2.0**-20), ("tf32", 2.0**-8), ("tf32x3", 2.0**-16)))
        extra = f", input_precision='{precision}'"
    result = TYPES["i32" if kind == "i8" else "f32"]
    if kind == "f16" and fill == "small" and chance(m.draws, 20):
        result, extra = TYPES["f16"], ", out_dtype=tl.float16"
        a = m.load(TYPES[kind], (rows, depth), fill)
    bound = a.bound * b.bound * depth
    if kind == "i8":
        extra = ", out_dtype=tl.int32"
    if chance(m.draws, 40):
        start = m.load(result, (rows, columns), fill)
        extra += f", acc={start.name}"
        bound += start.bound
    text = f"tl.dot({a.name}, {right}{extra})"
    exactly = kind == "i8" or (fill == "small" and result.bits == 32)
    if result.name == "f16":
        return m.let(text, type=result, shape=(rows, columns), bound=2.0**14, bits=False, absolute=depth * 64 * 2.0**-9)
    return m.let(text, type=result, shape=(rows, columns), bound=2.0**32 if kind == "i8" else bound, bits=False,
                 whole=fill == "small" or kind == "i8", absolute=0.0 if exactly else bound * error)  # fmt: skip


def dot_loop(m: Maker) -> Value:
    """The usual loop of a matrix product, with pointers that advance."""
    kind = choice(m.draws, ("f16", "bf16", "e5", "i8"))
    rows, columns, depth = _sides(m, kind)
    trips = m.draws.integer(1, 3)
    fill = "bits" if kind == "i8" else "small"
    full = depth * trips
    a, _ = m.buffer(TYPES[kind], rows * full, fill)
    b, _ = m.buffer(TYPES[kind], full * columns, fill)
    left, right, total, counter = m.fresh("a"), m.fresh("b"), m.fresh("c"), m.fresh("i")
    result = TYPES["i32" if kind == "i8" else "f32"]
    m.line(f"{left} = {a} + tl.arange(0, {rows})[:, None] * {full} + tl.arange(0, {depth})[None, :]")
    m.line(f"{right} = {b} + tl.arange(0, {depth})[:, None] * {columns} + tl.arange(0, {columns})[None, :]")
    m.line(f"{total} = tl.zeros([{rows}, {columns}], {result.triton})")
    stages = m.draws.integer(1, 3)
    with m.block(f"for {counter} in tl.range(0, {m.number('i32', trips)}, num_stages={stages}):"):
        m.line(f"{total} = tl.dot(tl.load({left}), tl.load({right}), {total}, out_dtype={result.triton})")
        m.line(f"{left} += {depth}")
        m.line(f"{right} += {depth * columns}")
    bound = 2.0**32 if kind == "i8" else 64.0 * full
    return m.let(total, type=result, shape=(rows, columns), bound=bound, whole=True, bits=False)


def batched_dot(m: Maker) -> Value:
    kind = TYPES[choice(m.draws, ("f16", "bf16", "f32"))]
    a, b = m.load(kind, (2, 16, 16), "small"), m.load(kind, (2, 16, 16), "small")
    text = f"tl.dot({a.name}, {b.name}, input_precision='{choice(m.draws, ('ieee', 'tf32'))}')"
    return m.let(text, type=TYPES["f32"], shape=(2, 16, 16), bound=1024.0, whole=True, bits=False)


def scaled_dot(m: Maker) -> Value:
    rows, columns, depth = choice(m.draws, (16, 32)), 16, choice(m.draws, (32, 64))
    left, right = (choice(m.draws, ("e4m3", "e5m2", "bf16", "fp16", "e2m1")) for _ in range(2))
    types = {"e4m3": "e4", "e5m2": "e5", "bf16": "bf16", "fp16": "f16", "e2m1": "u8"}
    if left in ("bf16", "fp16") and right in ("bf16", "fp16"):
        right = "e4m3"
    packed = [2 if form == "e2m1" else 1 for form in (left, right)]
    fills = ["bits" if form == "e2m1" else "small" for form in (left, right)]
    a = m.load(TYPES[types[left]], (rows, depth // packed[0]), fills[0])
    b = m.load(TYPES[types[right]], (depth // packed[1], columns), fills[1])
    scales = []
    for form, side in ((left, rows), (right, columns)):
        if form in ("bf16", "fp16"):
            scales.append("None")
        else:
            scales.append(f"({m.load(TYPES['u8'], (side, depth // 32), 'below', 5).name} + 125).to(tl.uint8)")
    text = f'tl.dot_scaled({a.name}, {scales[0]}, "{left}", {b.name}, {scales[1]}, "{right}")'
    bound = 64.0 * depth * 4 * 4
    return m.let(text, type=TYPES["f32"], shape=(rows, columns), bound=bound, bits=False, absolute=bound * 2.0**-16)


OPERATIONS = ((dot, 6), (dot_loop, 3), (batched_dot, 1), (scaled_dot, 2))
