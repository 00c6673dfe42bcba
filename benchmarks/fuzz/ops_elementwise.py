"""Operations on elements: arithmetic, bits, comparisons, casts, functions of mathematics."""

from __future__ import annotations

from benchmarks.fuzz.draws import chance, choice
from benchmarks.fuzz.maker import INF, Maker, Value, exact, is_float, is_int, numbers
from benchmarks.fuzz.values import EIGHTS, FLOATS, TYPES, Type


def int_operand(m: Maker) -> Value:
    return m.pick(is_int) or m.load(m.some_type("i", "u"), m.shape())


def float_operand(m: Maker, *types: str, clean: bool = True) -> Value:
    """A float; `clean`: known exactly."""
    found = m.pick(is_float, lambda v: not types or v.type.name in types, *((exact,) if clean else ()))
    return found or m.load(TYPES[choice(m.draws, types)] if types else m.some_type("f"), m.shape())


def int_arithmetic(m: Maker) -> Value:
    a = int_operand(m)
    b = m.same(a).name if chance(m.draws, 75) else numbers(m.draws, a.type)
    operation = choice(m.draws, ("+", "-", "*", "&", "|", "^"))
    return m.let(f"({a.name} {operation} {b}).to({a.type.triton})", a, **_any(a.type))


def int_division(m: Maker) -> Value:
    a = int_operand(m)
    b = m.same(a)
    safe = f"{b.name} == 0" if a.type.kind == "u" else f"({b.name} == 0) | ({b.name} == -1)"
    divisor = m.let(f"tl.where({safe}, 3, {b.name}).to({a.type.triton})", b, **_any(b.type))
    operation = choice(m.draws, ("//", "%"))
    return m.let(f"({a.name} {operation} {divisor.name}).to({a.type.triton})", a, **_any(a.type))


def int_ceiling_division(m: Maker) -> Value:
    a = int_operand(m)
    return m.let(f"tl.cdiv({a.name}, {m.draws.integer(2, 9)}).to({a.type.triton})", a, **_any(a.type))


def int_shift(m: Maker) -> Value:
    a = int_operand(m)
    by = f"({m.same(a).name} & {a.type.bits - 1})" if chance(m.draws, 60) else str(m.draws.integer(0, a.type.bits - 1))
    return m.let(f"({a.name} {choice(m.draws, ('<<', '>>'))} {by}).to({a.type.triton})", a, **_any(a.type))


def int_unary(m: Maker) -> Value:
    a = int_operand(m)
    return m.let(f"({choice(m.draws, ('-{}', '~{}', 'tl.abs({} | 1)'))})".format(a.name), a, **_any(a.type))


def int_high(m: Maker) -> Value:
    kinds = ("i32", "u32", "i64", "u64")
    a = m.pick(lambda v: v.type.name in kinds) or m.load(TYPES[choice(m.draws, kinds)], m.shape())
    return m.let(f"tl.umulhi({a.name}, {m.same(a).name}).to({a.type.triton})", a, **_any(a.type))


def int_bits(m: Maker) -> Value:
    a = m.pick(lambda v: v.type.name in ("i32", "i64")) or m.load(TYPES["i32"], m.shape())
    call = choice(m.draws, ("popc", "clz", "ffs") if a.type.bits == 64 else ("popc", "clz", "ffs", "brev", "mulhi"))
    second = f", {m.same(a).name}" if call == "mulhi" else ""
    value = f"libdevice.{call}({a.name}{second})"
    return m.let(value, a, type=TYPES["i32"], **_any(TYPES["i32"]))


def float_arithmetic(m: Maker) -> Value | None:
    a = float_operand(m)
    b = m.same(a, exact) if chance(m.draws, 80) else None
    operation = choice(m.draws, ("+", "-", "*"))
    other = b.bound if b else 8.0
    bound = a.bound * other if operation == "*" else a.bound + other
    absolute = 0.0
    if m.fused and operation != "*" and not (a.loaded and (b is None or b.loaded)):
        absolute = 4 * a.type.eps * bound
    if absolute == INF or bound > a.type.largest / 4:
        bound = INF
    if m.fused and absolute >= INF:
        return None
    whole = a.whole and b is not None and b.whole and bound <= 2.0 ** (a.type.mantissa + 1)
    text = f"{a.name} {operation} {b.name if b else numbers(m.draws, a.type)}"
    return m.let(f"({text}).to({a.type.triton})", a, bound=bound, whole=whole, bits=bound < INF, absolute=absolute)


def inexact_arithmetic(m: Maker) -> Value | None:
    """A value with an error, scaled, shifted, compared with a bound."""
    a = m.pick(is_float, lambda v: not v.exact, lambda v: v.bound < 1e6)
    if a is None:
        return None
    eps = 2 * a.type.eps
    return choice(
        m.draws,
        (
            lambda: m.let(f"(-{a.name})", a, bits=False),
            lambda: m.let(f"tl.abs({a.name})", a, bits=False),
            lambda: m.let(f"({a.name} * 0.75).to({a.type.triton})", a, relative=a.relative + eps, bits=False),
            lambda: m.let(f"({a.name} + 2.5).to({a.type.triton})", a, relative=0.0, bits=False, whole=False,
                          absolute=a.error + eps * (a.bound + 2.5), bound=a.bound + 2.5),
            lambda: m.let(f"tl.maximum({a.name}, 0.25).to({a.type.triton})", a, bits=False, bound=max(a.bound, 0.25)),
        ),
    )()  # fmt: skip


def float_fma(m: Maker) -> Value:
    a = float_operand(m, "f32", "f64")
    b, c = m.same(a, exact), m.same(a, exact)
    return m.let(f"tl.fma({a.name}, {b.name}, {c.name})", a, bound=INF, whole=False, bits=False)


def float_unary(m: Maker) -> Value:
    a = float_operand(m)
    return m.let(choice(m.draws, ("(-{})", "tl.abs({})")).format(a.name), a, bits=a.bound < INF)


def float_rounding(m: Maker) -> Value:
    a = float_operand(m, "f32", "f64")
    call = choice(m.draws, ("tl.floor", "tl.ceil", "libdevice.rint", "libdevice.trunc", "libdevice.round"))
    return m.let(f"{call}({m.zero_free(a)})", a, bits=False, whole=a.bound <= 2.0**20)


def extremes(m: Maker) -> Value:
    a = m.pick(lambda v: (is_float(v) or is_int(v)) and v.exact) or m.load(m.some_type("f", "i", "u"), m.shape())
    b = m.same(a, exact)
    call = choice(m.draws, ("minimum", "maximum"))
    if a.type.is_int:
        return m.let(f"tl.{call}({a.name}, {b.name})", a, **_any(a.type))
    if a.type.name == "f64":  # of a signaling NaN, anything
        a, b = (m.let(f"tl.where({v.name} == {v.name}, {v.name}, 1.0)", v, bits=False) for v in (a, b))
    mode = choice(m.draws, ("", ", propagate_nan=tl.PropagateNan.ALL", ", propagate_nan=tl.PropagateNan.NONE"))
    whole = a.whole and b.whole
    text = f"tl.{call}({a.name}, {b.name}{mode}).to({a.type.triton})"
    return m.let(text, a, bound=max(a.bound, b.bound), bits=False, whole=whole)


def clamp(m: Maker) -> Value:
    a = float_operand(m)
    mode = choice(m.draws, ("", ", propagate_nan=tl.PropagateNan.ALL"))
    if not mode:  # of NaN, either bound: the result is undefined
        a = m.let(f"tl.where({a.name} == {a.name}, {a.name}, 1.0).to({a.type.triton})", a, bits=False)
    return m.let(f"tl.clamp({a.name}, -2.0, 3.0{mode}).to({a.type.triton})", a, bits=False, whole=a.whole)


def comparison(m: Maker) -> Value:
    a = m.pick(lambda v: v.exact and v.type.kind in "iuf") or m.load(m.some_type("f", "i", "u"), m.shape())
    b = m.same(a, exact).name if chance(m.draws, 70) else numbers(m.draws, a.type)
    operation = choice(m.draws, ("<", "<=", "==", "!=", ">", ">="))
    return m.let(f"({a.name} {operation} {b})", a, type=TYPES["i1"], bound=1.0, bits=True, whole=False)


def logic(m: Maker) -> Value:
    a = m.pick(lambda v: v.type.kind == "b") or comparison(m)
    if chance(m.draws, 25):
        return m.let(f"(~{a.name})", a)
    return m.let(f"({a.name} {choice(m.draws, ('&', '|', '^'))} {m.same(a).name})", a)


def where(m: Maker) -> Value:
    a = m.pick(lambda v: v.type.kind not in "b8") or m.load(m.some_type("f", "i", "u"), m.shape())
    b = m.same(a)
    condition = m.pick(lambda v: v.type.kind == "b" and v.shape == a.shape) or m.let(
        f"({m.load(TYPES['i32'], a.shape).name} > 0)", a, type=TYPES["i1"], bound=1.0, bits=True, relative=0.0,
        absolute=0.0, whole=False)  # fmt: skip
    return m.let(f"tl.where({condition.name}, {a.name}, {b.name})", a, **_either(a, b))


def cast(m: Maker) -> Value:
    a = m.pick(lambda v: v.type.kind in "iub") or m.load(m.some_type("i", "u"), m.shape())
    to = m.some_type("i", "u", "f", "f")
    if to.is_int:
        return m.let(f"{a.name}.to({to.triton})", a, type=to, **_any(to))
    whole = a.bound <= 2.0 ** (to.mantissa + 1)
    # Wide integers become narrow floats in two roundings on some paths.
    relative = 0.0 if whole or to.bits >= 32 else 2.1 * to.eps
    bound = a.bound if a.bound < to.largest / 4 else INF
    return m.let(f"{a.name}.to({to.triton})", a, type=to, bound=bound, whole=whole, relative=relative, bits=whole)


def float_cast(m: Maker) -> Value:
    a = m.pick(is_float) or m.load(m.some_type("f"), m.shape())
    to = choice(m.draws, [t for t in FLOATS if t != a.type])
    if not a.exact and (to.bits < a.type.bits or a.bound == INF):
        to = TYPES["f64"] if a.type.bits < 64 else a.type
    narrow = to.mantissa < a.type.mantissa
    twice = narrow and a.type.bits == 64 and to.bits == 16  # through float32 on some paths
    mode = ', fp_downcast_rounding="rtz"' if to.bits == 16 and a.type.name == "f32" and chance(m.draws, 30) else ""
    relative = a.relative + (2.1 * to.eps if twice else 0.0)
    absolute = a.absolute + (2.0**-24 if twice and to.name == "f16" else 0.0)
    bound = a.bound if a.bound < to.largest / 4 else INF
    whole = a.whole and a.bound <= 2.0 ** (to.mantissa + 1)
    return m.let(f"{a.name}.to({to.triton}{mode})", a, type=to, bound=bound, relative=relative, absolute=absolute,
                 whole=whole, bits=bound < INF and not narrow and a.bits)  # fmt: skip


def float_to_int(m: Maker) -> Value:
    a = float_operand(m)
    to = m.some_type("i", "u")
    top = {8: 100.0, 16: 30000.0, 32: 2.0e9, 64: 8.0e18}[to.bits]
    top = min(top, 60000.0 if a.type.name == "f16" else top)
    low = "0.0" if to.kind == "u" else f"{-top}"
    clean = m.let(f"tl.where({a.name} == {a.name}, {a.name}, 0.0).to({a.type.triton})", a, bits=False)
    both = "tl.minimum(tl.maximum({}, {}), {})" if a.type.bits == 64 else "tl.clamp({}, {}, {})"
    cut = m.let(f"{both.format(clean.name, low, top)}.to({a.type.triton})", clean, bits=False)
    return m.let(f"{cut.name}.to({to.triton})", a, type=to, **_any(to))


def eight_bit_cast(m: Maker) -> Value:
    if chance(m.draws, 50):
        a = m.pick(lambda v: v.type.kind == "8") or m.load(choice(m.draws, EIGHTS), m.shape(least=4))
        to = choice(m.draws, [t for t in FLOATS if t.name != "f64"])
        return m.let(f"{a.name}.to({to.triton})", a, type=to, bits=a.bound < INF)
    a = m.pick(lambda v: is_float(v) and v.exact and v.type.name != "f64" and v.bound <= 400) or m.load(
        TYPES[choice(m.draws, ("f32", "f16", "bf16"))], m.shape(least=4), choice(m.draws, ("unit", "small"))
    )  # fmt: skip
    to = choice(m.draws, EIGHTS)
    return m.let(f"{a.name}.to({to.triton})", a, type=to, whole=False, bits=False)


def bitcast(m: Maker) -> Value | None:
    a = m.pick(lambda v: v.bits and v.exact and v.type.kind != "b")
    if a is None:
        return None
    kinds = [t for t in TYPES.values() if t.bits == a.type.bits and t != a.type]
    to = choice(m.draws, kinds)
    known = _any(to) if to.is_int else {"bound": INF, "whole": False, "bits": True}
    return m.let(f"{a.name}.to({to.triton}, bitcast=True)", a, type=to, **known)


def float_division(m: Maker) -> Value:
    """An exact division by a number that is neither tiny nor huge, or a fast one."""
    a = float_operand(m, "f32", "f64", "f16", "bf16")
    b = m.same(a, exact)
    safe = f"tl.where((tl.abs({b.name}) > 1e-4) & (tl.abs({b.name}) < 1e4), {b.name}, 3.0).to({a.type.triton})"
    d = m.let(safe, b, bound=1e4, bits=False)
    bound = a.bound * 1.1e4
    bound = bound if bound < a.type.largest / 4 else INF
    if a.type.name == "f32" and chance(m.draws, 40):
        return m.let(f"tl.div_rn({a.name}, {d.name})", a, bound=bound, bits=False, whole=False)
    if a.type.name == "f64":
        return m.let(f"{a.name} / {d.name}", a, bound=bound, bits=False, whole=False)
    relative, absolute = (2.0**-21, 2.0**-126) if a.type.name == "f32" else (2.1 * a.type.eps, 2.0**-24)
    return m.let(f"({a.name} / {d.name}).to({a.type.triton})", a, bound=bound, relative=relative, absolute=absolute,
                 bits=False, whole=False)  # fmt: skip


# name: (argument's text, relative error, absolute error, bound of the result), for float32; see the PTX manual and the
# tables of the CUDA programming guide, with a factor of four or more for the paths that Triton takes.
_ALL = "propagate_nan=tl.PropagateNan.ALL"  # else NaN comes out as either bound
_NEAR = f"tl.clamp({{}}, -20.0, 20.0, {_ALL})"
_NEAR_DOUBLE = "tl.minimum(tl.maximum(tl.where({0} == {0}, {0}, 0.5), -20.0), 20.0)"  # 3.6 does not lower the other
_ABOVE = "(tl.abs({}) + 1e-3)"
_MATH = {
    "tl.exp": (_NEAR, 2.0**-17, 1e-37, 6e8), "tl.exp2": (_NEAR, 2.0**-20, 1e-37, 2.0**21),
    "tl.log": (_ABOVE, 2.0**-20, 2.0**-20, 100.0), "tl.log2": (_ABOVE, 2.0**-20, 2.0**-20, 140.0),
    "tl.sin": (_NEAR, 2.0**-20, 2.0**-17, 1.01), "tl.cos": (_NEAR, 2.0**-20, 2.0**-17, 1.01),
    "tl.sqrt": (_ABOVE, 2.0**-21, 1e-37, INF), "tl.rsqrt": (_ABOVE, 2.0**-20, 1e-37, 40.0),
    "tl.erf": ("{}", 2.0**-20, 1e-7, 1.01), "tl.sigmoid": (_NEAR, 2.0**-17, 1e-9, 1.01),
    "tl.sqrt_rn": (_ABOVE, 2.0**-22, 0.0, INF), "libdevice.tanh": ("{}", 2.0**-19, 1e-7, 1.01),
    "libdevice.atan": ("{}", 2.0**-20, 1e-7, 1.6), "libdevice.log1p": (_ABOVE, 2.0**-19, 1e-7, 100.0),
    "libdevice.expm1": (_NEAR, 2.0**-17, 1e-7, 6e8), "libdevice.cbrt": (_ABOVE, 2.0**-20, 1e-7, INF),
    "libdevice.exp10": (f"tl.clamp({{}}, -8.0, 8.0, {_ALL})", 2.0**-17, 1e-30, 1.1e8),
    "libdevice.sinh": (f"tl.clamp({{}}, -8.0, 8.0, {_ALL})", 2.0**-18, 1e-6, 2000.0),
    "libdevice.cosh": (f"tl.clamp({{}}, -8.0, 8.0, {_ALL})", 2.0**-18, 1e-6, 2000.0),
    "libdevice.asin": (f"tl.clamp({{}}, -1.0, 1.0, {_ALL})", 2.0**-18, 2.0**-18, 1.6),
    "libdevice.acos": (f"tl.clamp({{}}, -1.0, 1.0, {_ALL})", 2.0**-18, 2.0**-18, 3.2),
    "libdevice.log10": (_ABOVE, 2.0**-20, 2.0**-20, 50.0),
    "libdevice.tan": (f"tl.clamp({{}}, -1.0, 1.0, {_ALL})", 2.0**-18, 1e-6, 2.0),
}  # fmt: skip
_DOUBLE = ("tl.exp", "tl.exp2", "tl.log", "tl.log2", "tl.sin", "tl.cos", "tl.sqrt", "tl.rsqrt", "tl.erf",
           "libdevice.tanh", "libdevice.atan", "libdevice.log1p")  # fmt: skip


def mathematics(m: Maker) -> Value:
    a = float_operand(m, "f32", "f32", "f32", "f64")
    call = choice(m.draws, _DOUBLE if a.type.bits == 64 else tuple(_MATH))
    text, relative, absolute, bound = _MATH[call]
    if a.type.bits == 64:
        relative, absolute = (2.0**-50, 0.0) if call == "tl.sqrt" else (2.0**-46, 2.0**-46)
    clean = m.let(m.zero_free(a), a, bits=False)
    if call == "tl.erf" or text == "{}":
        argument = clean.name
    else:
        argument = (_NEAR_DOUBLE if text == _NEAR and a.type.bits == 64 else text).format(clean.name)
    value = m.let(f"{call}({argument})", a, relative=relative, absolute=absolute, bits=False, whole=False,
                  bound=INF if a.bound == INF else bound)  # fmt: skip
    return value


def mathematics_of_two(m: Maker) -> Value:
    a = float_operand(m, "f32")
    b = m.same(a, exact)
    call, relative = choice(m.draws, (("copysign", 0.0), ("fdim", 0.0), ("hypot", 2.0**-20), ("nextafter", 0.0),
                                      ("atan2", 2.0**-19), ("pow", 2.0**-17), ("fmod", 0.0)))  # fmt: skip
    first = m.let(
        f"tl.where({a.name} == {a.name}, tl.clamp({m.zero_free(a)}, -50.0, 50.0), 1.0)", a, bound=50.0, bits=False
    )
    second = m.let(
        f"tl.where({b.name} == {b.name}, tl.clamp({m.zero_free(b)}, -4.0, 4.0), 1.0)", b, bound=4.0, bits=False
    )
    text = (
        f"tl.abs({first.name}) + 0.5" if call == "pow" else f"{first.name} + 0.125" if call == "atan2" else first.name
    )
    other = f"tl.abs({second.name}) + 0.5" if call == "fmod" else second.name
    if call == "nextafter":
        text = f"{text} * 1.0"
    exactly = relative == 0
    absolute = 2e-37 if call == "nextafter" else 0.0 if exactly else 1e-6  # of 0: a denormal number, or 0
    value = f"libdevice.{call}({text}, {other})"
    return m.let(value, a, relative=relative, absolute=absolute, bits=False, whole=False, bound=7e6)


def predicates(m: Maker) -> Value:
    a = float_operand(m, "f32", "f64")
    call = choice(m.draws, ("isnan", "isinf", "finitef" if a.type.bits == 32 else "isnan"))
    return m.let(f"(libdevice.{call}({a.name}) != 0)", a, type=TYPES["i1"], bound=1.0, bits=True, whole=False)


def _any(type: Type) -> dict[str, object]:
    """What is known of any integer of a type."""
    return {"bound": 2.0**type.bits, "whole": True, "bits": True, "relative": 0.0, "absolute": 0.0}


def _either(a: Value, b: Value) -> dict[str, object]:
    """What is known of a value that is one of two."""
    return {
        "bound": max(a.bound, b.bound),
        "relative": max(a.relative, b.relative),
        "absolute": max(a.absolute, b.absolute),
        "bits": a.bits and b.bits,
        "whole": a.whole and b.whole,
    }


OPERATIONS = (
    (int_arithmetic, 10), (int_division, 4), (int_ceiling_division, 1), (int_shift, 4), (int_unary, 2), (int_high, 2),
    (int_bits, 1), (float_arithmetic, 10), (inexact_arithmetic, 3), (float_fma, 3), (float_unary, 2),
    (float_rounding, 2),
    (extremes, 5), (clamp, 2), (comparison, 4), (logic, 2), (where, 5), (cast, 5), (float_cast, 4), (float_to_int, 3),
    (eight_bit_cast, 3), (bitcast, 3), (float_division, 4), (mathematics, 7), (mathematics_of_two, 2), (predicates, 1),
)  # fmt: skip
