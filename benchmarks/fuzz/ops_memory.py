"""Operations on memory: masked, strided and indirect accesses, descriptors, block pointers, atomics."""

from __future__ import annotations

import math

from benchmarks.fuzz.draws import chance, choice
from benchmarks.fuzz.maker import INF, Maker, Value, is_block, is_int
from benchmarks.fuzz.programs import Output
from benchmarks.fuzz.values import TYPES, Type


def _anything(kind: Type) -> dict[str, object]:
    return {"bound": 2.0**kind.bits if kind.is_int else INF, "whole": kind.is_int, "loaded": True}


def masked_load(m: Maker) -> Value:
    kind, shape = m.some_type("i", "u", "f"), m.shape()
    count = math.prod(shape)
    total = count * m.programs
    name, _ = m.buffer(kind, total, choice(m.draws, ("edge", "bits", "small")))
    limit = m.number("i32", m.draws.integer(0, total)) if chance(m.draws, 60) else str(m.draws.integer(0, total))
    at = m.fresh("at")
    m.line(f"{at} = pid * {count} + {m.index(shape)}")
    other = "0" if kind.is_int else choice(m.draws, ("0.0", "float('-inf')", "1.5"))
    if chance(m.draws, 20):
        other = f"tl.full({list(shape)}, 3, {kind.triton})"
    cache = choice(m.draws, ("", "", ", cache_modifier='.cg'", ", eviction_policy='evict_last'"))
    return m.let(
        f"tl.load({name} + {at}, mask={at} < {limit}, other={other}{cache})", type=kind, shape=shape, **_anything(kind)
    )


def strided_load(m: Maker) -> Value:
    kind, shape = m.some_type("i", "u", "f", "8"), m.shape()
    stride, offset = m.draws.integer(1, 5), m.draws.integer(0, 9)
    count = math.prod(shape)
    name, _ = m.buffer(kind, (count - 1) * stride + 1 + offset + m.programs, "bits")
    step = m.number("i32", stride) if chance(m.draws, 50) else str(stride)
    text = f"tl.load({name} + {offset} + pid + {m.index(shape)} * {step})"
    if chance(m.draws, 30):
        base = m.fresh("base")
        m.line(f"{base} = {name} + {offset}")
        text = f"tl.load(({base} + pid) + {m.index(shape)}.to(tl.int64) * {step})"
    return m.let(text, type=kind, shape=shape, **_anything(kind))


def indirect_load(m: Maker) -> Value:
    kind, size = m.some_type("i", "u", "f"), m.draws.integer(3, 100)
    name, _ = m.buffer(kind, size, choice(m.draws, ("edge", "bits", "small")))
    index = m.pick(is_block, is_int)
    if index is None or chance(m.draws, 50):
        index = m.load(TYPES["i32"], m.shape(), "below", size)
        at = index.name
    else:
        at = f"((({index.name}).to(tl.uint32)) % {size}).to(tl.int32)"
    return m.let(f"tl.load({name} + {at})", type=kind, shape=index.shape, **_anything(kind))


def scalar_load(m: Maker) -> Value:
    return m.load(m.some_type("i", "u", "f"), ())


def scalar_parameter(m: Maker) -> Value:
    kind = TYPES[choice(m.draws, ("i32", "i64", "f32", "f64", "u32", "u64", "i16", "i8"))]
    if kind.is_float:
        number: int | float = choice(m.draws, (0.5, -1.25, 3.0, 100.0))
    else:
        low = 0 if kind.kind == "u" else -(1 << (min(kind.bits, 40) - 1))
        number = m.draws.integer(low, (1 << (min(kind.bits, 40) - 1)) - 1)
    name = m.number(kind.code, number)
    return m.let(f"{name}", type=kind, shape=(), bound=max(1.0, abs(float(number))), whole=kind.is_int, loaded=True)


def masked_copy(m: Maker) -> None:
    """A load without `other`, whose masked lanes never reach memory."""
    kind, shape = m.some_type("i", "f"), m.shape()
    count = math.prod(shape)
    source, _ = m.buffer(kind, count * m.programs, "small")
    target, buffer = m.buffer(kind, count * m.programs, "filler")
    m.outputs.append(Output(buffer))
    at, mask = m.fresh("at"), m.fresh("mask")
    m.line(f"{at} = pid * {count} + {m.index(shape)}")
    m.line(f"{mask} = {at} % {m.draws.integer(2, 7)} != 0")
    m.line(f"tl.store({target} + {at}, tl.load({source} + {at}, mask={mask}) * 2, mask={mask})")


def descriptor_load(m: Maker) -> Value:
    """A tile of a matrix by a descriptor made on the device; what lies outside is 0."""
    kind = TYPES[choice(m.draws, ("f32", "f16", "i32", "bf16", "i8", "f64", "i64"))]
    rows, columns = 1 << m.draws.integer(0, 4), max(1 << m.draws.integer(2, 5), 16 // kind.bytes)
    height = m.draws.integer(max(1, rows // 2), rows + 9)
    width = columns * m.draws.integer(1, 2) + (m.draws.integer(0, 1) * 16 // kind.bytes)
    real = m.draws.integer(max(1, columns // 2), width)
    name, _ = m.buffer(kind, height * width, "edge" if kind.is_float else "bits")
    desc = m.fresh("desc")
    padding = ", padding_option='nan'" if kind.is_float and chance(m.draws, 20) else ""
    m.line(
        f"{desc} = tl.make_tensor_descriptor({name}, shape=[{height}, {real}], strides=[{width}, 1], "
        f"block_shape=[{rows}, {columns}]{padding})"
    )
    row, column = m.draws.integer(-2, rows), m.draws.integer(0, columns)
    column -= column % (16 // kind.bytes)  # a GPU has no instruction for blocks that begin in between
    value = m.let(f"{desc}.load([{row} + pid, {column}])", type=kind, shape=(rows, columns), **_anything(kind))
    if chance(m.draws, 40):
        _descriptor_store(m, value)
    return value


def _descriptor_store(m: Maker, value: Value) -> None:
    rows, columns = value.shape
    height = max(1, rows - m.draws.integer(0, 1))
    name, buffer = m.buffer(value.type, height * m.programs * columns, "filler")
    m.outputs.append(Output(buffer, value.relative, value.absolute))
    desc = m.fresh("desc")
    m.line(
        f"{desc} = tl.make_tensor_descriptor({name} + pid * {height * columns}, shape=[{height}, {columns}], "
        f"strides=[{columns}, 1], block_shape=[{rows}, {columns}])"
    )
    m.line(f"{desc}.store([0, 0], {value.name})")


def block_pointer_load(m: Maker) -> Value:
    kind = m.some_type("i", "f")
    rows, columns = 1 << m.draws.integer(0, 4), 1 << m.draws.integer(1, 5)
    height, width = m.draws.integer(rows, rows + 9), m.draws.integer(columns, columns + 9)
    name, _ = m.buffer(kind, height * width, "edge")
    block = m.fresh("block")
    strides = f"[{width}, 1]" if chance(m.draws, 60) else f"[1, {height}]"
    m.line(
        f"{block} = tl.make_block_ptr({name}, shape=[{height}, {width}], strides={strides}, "
        f"offsets=[{m.draws.integer(0, rows)}, {m.draws.integer(0, columns)}], "
        f"block_shape=[{rows}, {columns}], order=[1, 0])"
    )
    if chance(m.draws, 50):
        m.line(f"{block} = tl.advance({block}, [1, {m.draws.integer(0, 3)}])")
    text = f"tl.load({block}, boundary_check=(0, 1), padding_option='zero')"
    return m.let(text, type=kind, shape=(rows, columns), **_anything(kind))


def shared_atomic(m: Maker) -> None:
    """Many programs and lanes on few elements: the result is independent of the order."""
    kind = TYPES[choice(m.draws, ("i32", "u32", "i64", "u64", "f32", "f16", "f64"))]
    size = m.draws.integer(1, 8)
    name, buffer = m.buffer(kind, size, "small")
    m.outputs.append(Output(buffer))
    names = ("add",) if kind.is_float else ("add", "and", "or", "xor", "max", "min")
    value = m.load(kind, (1 << m.draws.integer(2, 6),), "small" if kind.is_float else None)
    index = m.load(TYPES["i32"], value.shape, "below", size)
    extra = choice(m.draws, ("", ", sem='relaxed'", ", sem='acq_rel'", ", sem='release', scope='gpu'"))
    if chance(m.draws, 40):
        extra += f", mask={m.load(TYPES['i1'], value.shape, 'bits').name}"
    m.line(f"tl.atomic_{choice(m.draws, names)}({name} + {index.name}, {value.name}{extra})")


def own_atomic(m: Maker) -> Value:
    """Every lane on an element of its own: what was there before comes back."""
    kind = TYPES[choice(m.draws, ("i32", "u32", "i64", "u64", "f32", "f64"))]
    shape = (1 << m.draws.integer(2, 6),)
    name, buffer = m.buffer(kind, shape[0] * m.programs, "small")
    m.outputs.append(Output(buffer))
    at = f"{name} + pid * {shape[0]} + {m.index(shape)}"
    value = m.load(kind, shape, "small")
    known = {"bound": 2.0**kind.bits if kind.is_int else 64.0, "whole": True}
    if chance(m.draws, 25) and kind.is_int:
        compare = m.load(kind, shape, "small")
        return m.let(f"tl.atomic_cas({at}, {compare.name}, {value.name})", value, **known)
    names = ("add", "xchg", "max", "min") if kind.is_float else ("add", "xchg", "max", "min", "and", "or", "xor")
    if kind.bits == 64 and kind.is_float:
        names = ("add", "xchg")
    return m.let(f"tl.atomic_{choice(m.draws, names)}({at}, {value.name})", value, bits=False, **known)


def scalar_atomic(m: Maker) -> None:
    name, buffer = m.buffer(TYPES["i32"], 4, "small")
    m.outputs.append(Output(buffer))
    call = choice(m.draws, ("add", "max", "or", "xor"))
    m.line(f"tl.atomic_{call}({name} + pid % 4, {m.load(TYPES['i32'], ()).name})")


def in_place(m: Maker) -> None:
    """A program reads its own elements, writes them, and reads them again."""
    kind, shape = m.some_type("i", "u"), m.shape(64)
    count = math.prod(shape)
    name, buffer = m.buffer(kind, count * m.programs, "bits")
    m.outputs.append(Output(buffer))
    at = m.fresh("at")
    m.line(f"{at} = {name} + pid * {count} + {m.index(shape)}")
    m.line(f"tl.store({at}, (tl.load({at}) + 1).to({kind.triton}))")
    m.line(f"tl.store({at}, (tl.load({at}) * 3).to({kind.triton}))")


def hinted_load(m: Maker) -> Value:
    kind = m.some_type("i", "f")
    size = 1 << m.draws.integer(4, 7)
    name, _ = m.buffer(kind, 16 * m.programs + size, "edge")
    start = m.number("i32", 16 * m.draws.integer(0, 1))
    m.line(f"tl.assume({start} >= 0)")
    at = m.fresh("at")
    m.line(f"{at} = tl.multiple_of(pid * 16 + {start} - {start}, 16) + tl.arange(0, {size})")
    m.line(f"{at} = tl.max_contiguous({at}, {size})")
    return m.let(f"tl.load({name} + {at})", type=kind, shape=(size,), **_anything(kind))


OPERATIONS = (
    (masked_load, 5), (strided_load, 4), (indirect_load, 4), (scalar_load, 2), (scalar_parameter, 2), (masked_copy, 2),
    (descriptor_load, 3), (block_pointer_load, 3), (shared_atomic, 3), (own_atomic, 3), (scalar_atomic, 1),
    (in_place, 2), (hinted_load, 1),
)  # fmt: skip
