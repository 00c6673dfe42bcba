"""Operations on blocks: shapes, reductions, scans, sorting, histograms, gathers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.fuzz.draws import chance, choice
from benchmarks.fuzz.maker import INF, Maker, Value, is_block, numbers
from benchmarks.fuzz.values import TYPES

MOST = 512  # elements of a block


def any_block(m: Maker, *kinds: str) -> Value:
    allowed = "".join(kinds) or "iufb8"
    return m.pick(is_block, lambda v: v.type.kind in allowed) or m.load(m.some_type(*allowed), m.shape())


def clean_block(m: Maker) -> Value:
    """Numbers that can be ordered: known exactly, none is NaN."""
    a = m.pick(is_block, lambda v: v.type.kind in "iuf" and v.exact and v.bound < INF)
    return a or m.load(m.some_type("i", "u", "f"), m.shape(), choice(m.draws, ("small", "unit")))


def constant(m: Maker) -> Value:
    kind = m.some_type("i", "u", "f")
    shape = m.shape()
    text = f"tl.full({list(shape)}, {numbers(m.draws, kind)}, {kind.triton})"
    if chance(m.draws, 25):
        text = f"tl.zeros({list(shape)}, {kind.triton})"
    return m.let(text, type=kind, shape=shape, bound=100.0, whole=kind.is_int)


def positions(m: Maker) -> Value:
    size, low = 1 << m.draws.integer(2, 7), m.draws.integer(0, 9)
    return m.let(f"tl.arange({low}, {low + size})", type=TYPES["i32"], shape=(size,), bound=256.0, whole=True)


def reshape(m: Maker) -> Value:
    a = any_block(m)
    left, sizes = a.count, []
    for _ in range(m.draws.integer(0, 2)):
        size = 1 << m.draws.integer(0, min(4, left.bit_length() - 1))
        sizes.append(size)
        left //= size
    shape = (*sizes, left)
    call = "tl.ravel({})" if len(shape) == 1 else f"tl.reshape({{}}, {list(shape)})"
    return m.let(call.format(a.name), a, shape=shape, loaded=a.loaded)


def transpose(m: Maker) -> Value:
    a = m.pick(lambda v: len(v.shape) > 1) or m.load(m.some_type("i", "f", "8"), (8, 16))
    axes = list(range(len(a.shape)))
    for at in range(len(axes) - 1, 0, -1):
        other = m.draws.integer(0, at)
        axes[at], axes[other] = axes[other], axes[at]
    shape = tuple(a.shape[axis] for axis in axes)
    call = "tl.trans" if chance(m.draws, 50) else "tl.permute"
    return m.let(f"{call}({a.name}, {', '.join(map(str, axes))})", a, shape=shape, loaded=a.loaded)


def broadcast(m: Maker) -> Value:
    a = m.pick(lambda v: v.count <= MOST // 4 and len(v.shape) <= 2) or m.load(m.some_type("i", "f"), (8,))
    if not a.shape:
        shape = m.shape(64)
        return m.let(f"tl.broadcast_to({a.name}, {list(shape)})", a, shape=shape, loaded=a.loaded)
    axis = m.draws.integer(0, len(a.shape))
    size = 1 << m.draws.integer(0, max(0, (MOST // a.count).bit_length() - 2))
    wide = (*a.shape[:axis], 1, *a.shape[axis:])
    shape = (*a.shape[:axis], size, *a.shape[axis:])
    b = m.let(f"tl.expand_dims({a.name}, {axis})", a, shape=wide, loaded=a.loaded)
    return m.let(f"tl.broadcast_to({b.name}, {list(shape)})", b, shape=shape, loaded=a.loaded)


def outer(m: Maker) -> Value:
    """Two vectors, combined with implicit broadcasting."""
    a = m.pick(lambda v: len(v.shape) == 1 and v.type.kind in "iu" and v.count <= 32) or m.load(m.some_type("i"), (16,))
    b = m.load(a.type, (1 << m.draws.integer(0, 4),))
    text = f"{a.name}[:, None] {choice(m.draws, ('+', '*', '^', '-'))} {b.name}[None, :]"
    return m.let(f"({text}).to({a.type.triton})", a, shape=(a.count, b.count), bound=2.0**a.type.bits)


def join(m: Maker) -> Value:
    a = m.pick(is_block, lambda v: v.count <= MOST // 2 and v.type.kind != "b" and len(v.shape) < 3)
    a = a or m.load(m.some_type("i", "f", "8"), m.shape(64))
    b = m.same(a)
    known = {"bound": max(a.bound, b.bound), "relative": max(a.relative, b.relative), "whole": a.whole and b.whole,
             "absolute": max(a.absolute, b.absolute), "bits": a.bits and b.bits}  # fmt: skip
    if chance(m.draws, 50):
        return m.let(f"tl.interleave({a.name}, {b.name})", a, shape=(*a.shape[:-1], 2 * a.shape[-1]), **known)
    return m.let(f"tl.join({a.name}, {b.name})", a, shape=(*a.shape, 2), **known)


def split(m: Maker) -> Value:
    a = m.pick(lambda v: len(v.shape) > 1 and v.shape[-1] == 2) or m.load(m.some_type("i", "f"), (16, 2))
    low, high = m.fresh(), m.fresh()
    m.line(f"{low}, {high} = tl.split({a.name})")
    return m.let(choice(m.draws, (low, high)), a, shape=a.shape[:-1], loaded=a.loaded)


def concatenate(m: Maker) -> Value:
    """Joined end to end in any order, so the elements are summed."""
    a = m.pick(lambda v: len(v.shape) == 1 and v.type.name in ("i32", "u32", "i64") and v.count <= 128)
    a = a or m.load(TYPES["i32"], (32,))
    b = m.same(a)
    text = f"tl.sum(tl.cat({a.name}, {b.name}, can_reorder=True), axis=0)"
    return m.let(f"{text}.to({a.type.triton})", a, shape=(), bound=2.0**a.type.bits)


def flip(m: Maker) -> Value:
    a = any_block(m, "i", "u", "f")
    return m.let(f"tl.flip({a.name}, {len(a.shape) - 1})", a, loaded=a.loaded)


def gather(m: Maker) -> Value:
    a = any_block(m, "i", "u", "f")
    axis = m.draws.integer(0, len(a.shape) - 1)
    shape = (*a.shape[:axis], 1 << m.draws.integer(1, 4), *a.shape[axis + 1 :])
    index = m.load(TYPES["i32"], shape, "below", a.shape[axis])
    return m.let(f"tl.gather({a.name}, {index.name}, {axis})", a, shape=shape, loaded=a.loaded)


def histogram(m: Maker) -> Value:
    bins = 1 << m.draws.integer(1, 6)
    a = m.load(TYPES["i32"], (1 << m.draws.integer(5, 8),), "below", bins)
    if chance(m.draws, 40):
        mask = m.load(TYPES["i1"], a.shape, "bits")
        text = f"tl.histogram({a.name}, {bins}, mask={mask.name})"
    else:
        text = f"tl.histogram({a.name}, {bins})"
    return m.let(text, type=TYPES["i32"], shape=(bins,), bound=256.0, whole=True)


def sort(m: Maker) -> Value:
    a = clean_block(m)
    if a.count > 128:
        a = m.load(a.type, (1 << m.draws.integer(2, 6),), "small")
    if a.shape[-1] >= 4 and chance(m.draws, 35):
        k = 1 << m.draws.integer(1, a.shape[-1].bit_length() - 2)
        return m.let(f"tl.topk({a.name}, {k})", a, shape=(*a.shape[:-1], k), bits=False)
    descending = choice(m.draws, ("", ", descending=True"))
    return m.let(f"tl.sort({a.name}{descending})", a, bits=False)


def _axis(m: Maker, a: Value) -> tuple[str, tuple[int, ...], int]:
    """An axis as text, the shape without it, and the number of elements along it."""
    if chance(m.draws, 20):
        return "None", (), a.count
    axis = m.draws.integer(0, len(a.shape) - 1)
    return str(axis), (*a.shape[:axis], *a.shape[axis + 1 :]), a.shape[axis]


def total(m: Maker) -> Value:
    a = m.pick(is_block, lambda v: v.type.kind in "iu" or (v.type.is_float and v.bound < 1e30)) or m.load(
        m.some_type("i", "u", "f"), m.shape(), choice(m.draws, ("small", "unit")))  # fmt: skip
    axis, shape, count = _axis(m, a)
    text = f"tl.sum({a.name}, axis={axis}).to({a.type.triton})"
    if a.type.is_int:
        return m.let(text, a, shape=shape, bound=2.0**a.type.bits)
    bound = a.bound * count
    if a.whole and a.exact and bound <= 2.0 ** (a.type.mantissa + 1):
        return m.let(text, a, shape=shape, bound=bound, bits=False)
    error = count * (a.error + 2 * a.type.eps * bound)
    top = bound if bound < a.type.largest / 4 else INF
    return m.let(text, a, shape=shape, bound=top, relative=0.0, absolute=error, bits=False, whole=False)


def extreme(m: Maker) -> Value:
    a = m.pick(is_block, lambda v: v.type.kind in "iuf" and v.bound < INF) or clean_block(m)
    axis, shape, _ = _axis(m, a)
    call = choice(m.draws, ("max", "min"))
    return m.let(f"tl.{call}({a.name}, axis={axis}).to({a.type.triton})", a, shape=shape, bits=False)


def extreme_index(m: Maker) -> Value:
    a = clean_block(m)
    if len(a.shape) == 1:  # it may be another block reshaped, whose order Triton gives up before a reduction
        a = m.load(a.type, a.shape, "small")
    axis = m.draws.integer(0, len(a.shape) - 1)
    shape = (*a.shape[:axis], *a.shape[axis + 1 :])
    call = choice(m.draws, ("max", "min"))
    known = {"type": TYPES["i32"], "shape": shape, "bound": float(a.count), "whole": True, "bits": True}
    if chance(m.draws, 50):
        return m.let(f"tl.arg{call}({a.name}, axis={axis})", a, **known)
    top, at = m.fresh(), m.fresh()
    m.line(f"{top}, {at} = tl.{call}({a.name}, axis={axis}, return_indices=True)")
    m.let(f"{top}.to({a.type.triton})", a, shape=shape, bits=False)
    return m.let(at, a, **known)


def bits_total(m: Maker) -> Value:
    a = any_block(m, "i", "u")
    if a.type.bits < 32:
        a = m.load(TYPES["i32"], a.shape)
    axis, shape, _ = _axis(m, a)
    if axis == "None":
        axis, shape = "0", a.shape[1:]
    call = choice(m.draws, ("xor_sum", "reduce_or"))
    return m.let(f"tl.{call}({a.name}, axis={axis}).to({a.type.triton})", a, shape=shape, bound=2.0**a.type.bits)


_COMBINERS = {
    "mul": "a * b",
    "land": "a & b",
    "lor": "a | b",
    "lxor": "a ^ b",
    "least": "tl.minimum(a, b)",
    "greater": "tl.where(a > b, a, b)",
    "ring": "a + b + a * b",
}
_ORDERED = {**_COMBINERS, "right": "b", "left": "a", "last_set": "tl.where(b != 0, b, a)"}


def _combiner(m: Maker, which: Mapping[str, str], parameters: str = "a, b") -> str:
    name = choice(m.draws, tuple(which))
    m.helper(f"@triton.jit\ndef {name}({parameters}):\n    return {which[name]}\n")
    return name


def custom_reduction(m: Maker) -> Value:
    a = m.pick(is_block, lambda v: v.type.is_int) or m.load(m.some_type("i", "u"), m.shape())
    axis, shape, _ = _axis(m, a)
    text = f"tl.reduce({a.name}, {axis}, {_combiner(m, _COMBINERS)})"
    return m.let(text, a, shape=shape, bound=2.0**a.type.bits)


_PAIRS = {
    "sum_and_most": "a0 + b0, tl.maximum(a1, b1)",
    "least_pair": "tl.where((a0 < b0) | ((a0 == b0) & (a1 < b1)), a0, b0), "
    "tl.where((a0 < b0) | ((a0 == b0) & (a1 < b1)), a1, b1)",
    "complex_product": "a0 * b0 - a1 * b1, a0 * b1 + a1 * b0",
}
_ORDERED_PAIRS = {
    **_PAIRS,
    "affine": "a0 * b0, a1 * b0 + b1",
    "segments": "tl.where(b1 != 0, b0, a0 + b0), a1 | b1",
}


def _two(m: Maker, call: str, which: Mapping[str, str], reverse: str, *, keeps: bool) -> Value:
    """A reduction or a scan of two blocks at once; `keeps`: the axis."""
    a = m.pick(is_block, lambda v: v.type.name in ("i32", "i64")) or m.load(TYPES["i32"], m.shape())
    b = m.same(a)
    axis = m.draws.integer(0, len(a.shape) - 1)
    if reverse:
        reverse = choice(m.draws, ("", reverse))
    first, second = m.fresh(), m.fresh()
    combiner = _combiner(m, which, "a0, a1, b0, b1")
    m.line(f"{first}, {second} = tl.{call}(({a.name}, {b.name}), {axis}, {combiner}{reverse})")
    shape = a.shape if keeps else (*a.shape[:axis], *a.shape[axis + 1 :])
    m.let(first, a, shape=shape, bound=2.0**a.type.bits)
    return m.let(second, a, shape=shape, bound=2.0**a.type.bits)


def pair_reduction(m: Maker) -> Value:
    return _two(m, "reduce", _PAIRS, "", keeps=False)


def scan(m: Maker) -> Value:
    a = m.pick(is_block, lambda v: v.type.is_int) or m.load(m.some_type("i", "u"), m.shape())
    axis = m.draws.integer(0, len(a.shape) - 1)
    reverse = choice(m.draws, ("", ", reverse=True"))
    kind = choice(m.draws, ("tl.cumsum", "tl.cumprod", "custom"))
    call = f"{kind}({a.name}, {axis}" if kind != "custom" else (
        f"tl.associative_scan({a.name}, {axis}, {_combiner(m, _ORDERED)}")  # fmt: skip
    return m.let(f"{call}{reverse}).to({a.type.triton})", a, bound=2.0**a.type.bits)


def float_scan(m: Maker) -> Value:
    a = m.pick(is_block, lambda v: v.type.name in ("f32", "f64", "f16") and v.exact and v.bound < 1e6)
    a = a or m.load(TYPES[choice(m.draws, ("f32", "f64", "f16"))], m.shape(), choice(m.draws, ("small", "unit")))
    axis = m.draws.integer(0, len(a.shape) - 1)
    count = a.shape[axis]
    reverse = choice(m.draws, ("", ", reverse=True"))
    bound = a.bound * count
    whole = a.whole and bound <= 2.0 ** (a.type.mantissa + 1)
    absolute = 0.0 if whole else count * 2 * a.type.eps * bound
    text = f"tl.cumsum({a.name}, {axis}{reverse}).to({a.type.triton})"
    bound = bound if bound < a.type.largest / 4 else INF
    return m.let(text, a, bound=bound, whole=whole, absolute=absolute, bits=False)


def pair_scan(m: Maker) -> Value:
    return _two(m, "associative_scan", _ORDERED_PAIRS, ", reverse=True", keeps=True)


def softmax(m: Maker) -> Value:
    a = m.pick(lambda v: len(v.shape) == 2 and v.type.name == "f32" and v.exact and v.bound < 50)
    a = a or m.load(TYPES["f32"], (1 << m.draws.integer(0, 4), 1 << m.draws.integer(2, 5)), "unit")
    m.line(f"top = tl.max({a.name}, 1)[:, None]")
    e = m.let(f"tl.exp({a.name} - top)", a, bound=1.01, relative=2.0**-16, absolute=1e-37, bits=False, whole=False)
    n = a.shape[1]
    return m.let(f"{e.name} / tl.sum({e.name}, 1)[:, None]", e, relative=2.0**-14 + n * 2.0**-22, absolute=1e-30)


def random_numbers(m: Maker) -> Value:
    shape = (1 << m.draws.integer(2, 7),)
    offsets = f"pid * {math.prod(shape)} + tl.arange(0, {shape[0]})"
    seed = m.draws.integer(0, 1 << 20)
    if chance(m.draws, 50):
        return m.let(f"tl.rand({seed}, {offsets})", type=TYPES["f32"], shape=shape, bound=1.0)
    return m.let(
        f"tl.randint({seed}, {offsets}).to(tl.int32)", type=TYPES["i32"], shape=shape, bound=2.0**32, whole=True
    )


OPERATIONS = (
    (constant, 2), (positions, 2), (reshape, 4), (transpose, 4), (broadcast, 4), (outer, 2), (join, 3), (split, 2),
    (concatenate, 1), (flip, 2), (gather, 3), (histogram, 1), (sort, 2), (total, 6), (extreme, 5), (extreme_index, 4),
    (bits_total, 2), (custom_reduction, 4), (pair_reduction, 3), (scan, 4), (float_scan, 2), (pair_scan, 3),
    (softmax, 2), (random_numbers, 1),
)  # fmt: skip
