"""Makes programs with one fault: a value that is undefined and stored, or an access that no right program makes.

The executor must find each. They are not launched: what a GPU computes for them means nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.fuzz.draws import Draws, Seeded, choice
from benchmarks.fuzz.generate import finished
from benchmarks.fuzz.maker import Maker, Value
from benchmarks.fuzz.programs import Program
from benchmarks.fuzz.values import TYPES


def _reaches_a_store(m: Maker, value: Value) -> None:
    """Perhaps through an operation that depends on it."""
    if value.type.is_int and m.draws.integer(0, 1):
        value = m.let(f"({value.name} ^ 5).to({value.type.triton})", value)
    elif m.draws.integer(0, 1) and len(value.shape) == 1:
        value = m.let(f"tl.flip({value.name}, 0)", value)
    m.store(value)


def division_by_zero(m: Maker) -> None:
    a = m.load(m.some_type("i", "u"), (64,), "edge")
    b = m.load(a.type, a.shape, "below", 3)
    _reaches_a_store(m, m.let(f"{a.name} {choice(m.draws, ('//', '%'))} {b.name}", a))


def quotient_too_large(m: Maker) -> None:
    a = m.load(TYPES[choice(m.draws, ("i32", "i64"))], (16,), "small")
    low = m.let(f"tl.full([16], {-(1 << (a.type.bits - 1))}, {a.type.triton})", a)
    minus = m.let(f"tl.where({a.name} > 0, -1, 1).to({a.type.triton})", a)
    _reaches_a_store(m, m.let(f"{low.name} // {minus.name}", a))


def shift_too_far(m: Maker) -> None:
    a = m.load(TYPES[choice(m.draws, ("i32", "u32", "i64", "i16"))], (64,), "bits")
    by = m.load(a.type, a.shape, "below", a.type.bits + 20)
    _reaches_a_store(m, m.let(f"{a.name} {choice(m.draws, ('<<', '>>'))} {by.name}", a))


def cast_out_of_range(m: Maker) -> None:
    a = m.load(TYPES[choice(m.draws, ("f32", "f64", "f32"))], (128,), "bits")
    to = m.some_type("i", "u")
    _reaches_a_store(m, m.let(f"{a.name}.to({to.triton})", a, type=to))


def masked_lane_stored(m: Maker) -> None:
    kind = m.some_type("i", "u", "f")
    name, _ = m.buffer(kind, 64, "small")
    limit = m.number("i32", m.draws.integer(0, 63))
    text = f"tl.load({name} + tl.arange(0, 64), mask=tl.arange(0, 64) < {limit})"
    _reaches_a_store(m, m.let(text, type=kind, shape=(64,)))


def branch_on_masked_lane(m: Maker) -> None:
    name, _ = m.buffer(TYPES["i32"], 8, "small")
    flag = m.let(f"tl.load({name} + pid, mask=pid > 7)", type=TYPES["i32"], shape=())
    with m.block(f"if {flag.name} > 0:"):
        m.store(m.load(TYPES["i32"], (16,)))


def read_out_of_bounds(m: Maker) -> None:
    kind, size = m.some_type("i", "u", "f"), 1 << m.draws.integer(2, 7)
    name, _ = m.buffer(kind, size * m.programs, "bits")
    shift = choice(m.draws, (1, -1))
    m.store(m.let(f"tl.load({name} + {shift} + pid * {size} + tl.arange(0, {size}))", type=kind, shape=(size,)))


def write_out_of_bounds(m: Maker) -> None:
    value = m.load(m.some_type("i", "u", "f"), (32,))
    name, _ = m.buffer(value.type, 32 * m.programs - 1, "filler")
    m.line(f"tl.store({name} + pid * 32 + tl.arange(0, 32), {value.name})")


def far_away(m: Maker) -> None:
    """An offset that overflows 32 bits."""
    name, _ = m.buffer(TYPES["f32"], 64, "bits")
    big = m.number("i32", 1 << 30)
    m.store(m.let(f"tl.load({name} + {big} * 2 + tl.arange(0, 64))", type=TYPES["f32"], shape=(64,)))


def two_writers(m: Maker) -> None:
    kind = m.some_type("i", "f")
    name, _ = m.buffer(kind, 64 * m.programs, "filler")
    at = f"pid * {m.draws.integer(0, 63)} + tl.arange(0, 64)"
    m.line(f"tl.store({name} + {at}, (tl.arange(0, 64) + pid).to({kind.triton}))")


def reads_what_another_writes(m: Maker) -> None:
    name, _ = m.buffer(TYPES["i32"], 32 * (m.programs + 1), "small")
    x = m.let(f"tl.load({name} + (pid + 1) * 32 + tl.arange(0, 32))", type=TYPES["i32"], shape=(32,))
    m.line(f"tl.store({name} + pid * 32 + tl.arange(0, 32), {x.name} + 1)")


def two_lanes_write(m: Maker) -> None:
    name, _ = m.buffer(TYPES["i32"], 8 * m.programs, "filler")
    m.line(f"tl.store({name} + pid * 8 + tl.arange(0, 64) % 8, tl.arange(0, 64) + pid)")


def unwritten(m: Maker) -> None:
    kind = m.some_type("i", "u", "f")
    name, _ = m.buffer(kind, 32 * m.programs, "unwritten")
    _reaches_a_store(m, m.let(f"tl.load({name} + pid * 32 + tl.arange(0, 32))", type=kind, shape=(32,)))


def misaligned_descriptor(m: Maker) -> None:
    """Base, stride or column that is no multiple of 16 bytes."""
    kind = TYPES[choice(m.draws, ("f32", "f16", "i32", "i8"))]
    name, _ = m.buffer(kind, 8 * 64 + 1, "small")
    base, stride, column = choice(m.draws, ((1, 64, 0), (0, 63, 0), (0, 64, 1), (0, 64, -1)))
    step, desc = m.number("i32", stride), m.fresh("desc")
    m.line(
        f"{desc} = tl.make_tensor_descriptor({name} + {base}, shape=[8, 60], strides=[{step}, 1], block_shape=[8, 32])"
    )
    m.store(m.let(f"{desc}.load([0, {column}])", type=kind, shape=(8, 32)))


FAULTS: tuple[Callable[[Maker], None], ...] = (
    division_by_zero, quotient_too_large, shift_too_far, cast_out_of_range, masked_lane_stored, branch_on_masked_lane,
    read_out_of_bounds, write_out_of_bounds, far_away, two_writers, reads_what_another_writes, two_lanes_write,
    unwritten, misaligned_descriptor,
)  # fmt: skip


def undefined_from_seed(seed: int) -> Program:
    return undefined(Seeded(seed), seed)


def undefined(draws: Draws, seed: int = 0) -> Program:
    """One program with one fault, which its `undefined` names."""
    m = Maker(draws, choice(draws, ((3, 1, 1), (2, 2, 1), (4, 1, 1))), fused=False)
    m.line("pid = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)")
    fault = choice(draws, FAULTS)
    fault(m)
    return finished(m, seed, fault.__name__)
