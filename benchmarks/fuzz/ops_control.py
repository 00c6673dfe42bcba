"""Control flow and calls: loops, branches, functions, inline assembly."""

from __future__ import annotations

from benchmarks.fuzz.draws import chance, choice, weighted
from benchmarks.fuzz.maker import INF, Make, Maker, Value, exact, is_block, is_int
from benchmarks.fuzz.values import TYPES


def scalar_int(m: Maker, most: int = 6) -> str:
    """A small scalar from 0 to `most`: a constant, a parameter, of the program's id, or from memory."""
    return choice(
        m.draws,
        (
            lambda: str(m.draws.integer(0, most)),
            lambda: m.number("i32", m.draws.integer(0, most)),
            lambda: f"(pid + {m.draws.integer(0, 3)}) % {most + 1}",
            lambda: m.load(TYPES["i32"], (), "below", most + 1).name,
        ),
    )()


def condition(m: Maker) -> str:
    a = m.pick(lambda v: v.shape == () and v.type.kind in "iub")
    if a is not None and chance(m.draws, 40):
        return f"{a.name} != 0" if a.type.kind != "b" else a.name
    return choice(
        m.draws,
        (
            lambda: f"pid % 2 == {m.draws.integer(0, 1)}",
            lambda: f"{m.number('i32', m.draws.integer(0, 9))} > {m.draws.integer(0, 9)}",
            lambda: f"{m.load(TYPES['i32'], (), 'small').name} > {m.draws.integer(-4, 4)}",
            lambda: f"({m.load(TYPES['i32'], (), 'small').name} > 0) & (pid < {max(1, m.programs // 2)})",
        ),
    )()


def _carried(m: Maker) -> Value:
    """A variable that loops and branches may change: known exactly."""
    start = m.pick(exact, lambda v: v.type.kind in "iuf", lambda v: v.count <= 256)
    start = start or m.load(m.some_type("i", "u", "f"), m.shape(64))
    text = f"{start.name} * 1" if start.type.is_int else start.name
    unknown = {"bound": 2.0**start.type.bits, "whole": True} if start.type.is_int else {
        "bound": INF, "whole": False, "bits": False}  # fmt: skip
    return m.let(f"({text}).to({start.type.triton})", start, **unknown)


def _update(m: Maker, variable: Value, counter: str | None) -> str:
    """An expression for the variable's next value."""
    other = m.same(variable, exact)
    kind = variable.type.triton
    if variable.type.is_int:
        forms = [
            "({0} * 3 + {1})",
            "({0} ^ {1})",
            "tl.maximum({0}, {1})",
            "({0} - {1})",
            "tl.where({0} > {1}, {1}, {0})",
        ]
        if counter:
            forms += (
                ["({0} + {2})", "({0} * 5 ^ {2})"] if variable.type.kind == "i" and variable.type.bits >= 32 else []
            )
    else:
        forms = ["({0} * 0.5)", "tl.where({0} > {1}, {1}, {0})"]
        forms += [] if m.fused else ["({0} + {1})", "({0} * 0.5 - {1})"]
    text = choice(m.draws, forms).format(variable.name, other.name, counter)
    return f"{text}.to({kind})"


def _body(m: Maker, variable: Value, counter: str | None) -> None:
    for _ in range(m.draws.integer(0, 2)):
        weighted(m.draws, m.inner)(m)
    m.line(f"{variable.name} = {_update(m, variable, counter)}")


def counted_loop(m: Maker) -> Value | None:
    if m.depth > 2:
        return None
    variable = _carried(m)
    low, step = m.draws.integer(0, 2), m.draws.integer(1, 2)
    high = scalar_int(m)
    start = scalar_int(m, 2) if chance(m.draws, 30) else str(low)
    extra = choice(m.draws, ("", "", ", num_stages=2", ", num_stages=3", ", loop_unroll_factor=2"))
    head = f"range({start}, {high}, {step})" if not extra else f"tl.range({start}, {high}, {step}{extra})"
    if chance(m.draws, 15):
        head = f"tl.static_range({m.draws.integer(0, 3)})"
    counter = m.fresh("i")
    with m.block(f"for {counter} in {head}:"):
        _body(m, variable, counter)
    return variable


def while_loop(m: Maker) -> Value | None:
    if m.depth > 2:
        return None
    variable = _carried(m)
    count = m.fresh("left")
    m.line(f"{count} = {scalar_int(m)} + 0 * pid")
    extra = "" if chance(m.draws, 60) else f" and pid < {m.programs}"
    with m.block(f"while {count} > 0{extra}:"):
        _body(m, variable, None)
        m.line(f"{count} = {count} - 1" if chance(m.draws, 60) else f"{count} = {count} >> 1")
    return variable


def branch(m: Maker) -> Value | None:
    if m.depth > 3:
        return None
    variable = _carried(m)
    with m.block(f"if {condition(m)}:"):
        _body(m, variable, None)
        if chance(m.draws, 20):
            branch(m)
    if chance(m.draws, 70):
        with m.block("else:"):
            _body(m, variable, None)
    return variable


def pointer_loop(m: Maker) -> Value | None:
    """A pointer that advances, and a sum or exclusive-or of what it passes."""
    if m.depth > 2:
        return None
    kind, shape = m.some_type("i", "u"), m.shape(64)
    steps, count = m.draws.integer(1, 5), max(1, m.draws.integer(1, 16))
    size = 1
    for side in shape:
        size *= side
    name, _ = m.buffer(kind, size + steps * count + m.programs, "bits")
    trips = choice(m.draws, (str(steps), f"tl.minimum(pid + 1, {steps})"))
    at, total, counter = m.fresh("at"), m.fresh("total"), m.fresh("i")
    m.line(f"{at} = {name} + pid + {m.index(shape)}")
    m.line(f"{total} = tl.zeros({list(shape)}, {kind.triton})")
    with m.block(f"for {counter} in range({trips}):"):
        m.line(f"{total} = ({total} {choice(m.draws, ('+', '^'))} tl.load({at})).to({kind.triton})")
        m.line(f"{at} += {count}")
    return m.let(total, type=kind, shape=shape, bound=2.0**kind.bits, whole=True)


def two_variables(m: Maker) -> Value | None:
    if m.depth > 2:
        return None
    a = _carried(m)
    if not a.type.is_int or a.type.bits < 32:
        return None
    b, counter = m.let(f"{a.name} + 1", a), m.fresh("i")
    with m.block(f"for {counter} in range({scalar_int(m)}):"):
        m.line(f"{a.name}, {b.name} = {b.name}, ({a.name} + {b.name}).to({a.type.triton})")
    return b


def store_in_branch(m: Maker) -> None:
    value = m.pick(exact, lambda v: v.type.kind in "iuf")
    if value is None or m.depth > 2:
        return
    with m.block(f"if {condition(m)}:"):
        m.store(value)


def call(m: Maker) -> Value:
    """A function of the module, inlined or not, on integers."""
    a = m.pick(is_int, lambda v: v.type.bits >= 32) or m.load(TYPES["i32"], m.shape())
    b = m.same(a)
    name = "mix" if a.shape or chance(m.draws, 50) else "mix_apart"
    if name == "mix":
        m.helper("@triton.jit\ndef mix(a, b, c: tl.constexpr):\n    x = a * c + b\n    return x ^ (x >> 3), x - b\n")
    else:
        m.helper(
            "@triton.jit(noinline=True)\ndef mix_apart(a, b, c):\n    x = a * c + b\n    return x ^ (x >> 3), x - b\n"
        )
    first, second = m.fresh(), m.fresh()
    m.line(f"{first}, {second} = {name}({a.name}, {b.name}, {m.draws.integer(1, 9)})")
    m.let(f"{first}.to({a.type.triton})", a, bound=2.0**a.type.bits)
    return m.let(f"{second}.to({a.type.triton})", a, bound=2.0**a.type.bits)


def branching_call(m: Maker) -> Value:
    """A function with a loop and a branch in it, on a scalar."""
    a = m.pick(lambda v: v.shape == () and v.type.name == "i32") or m.load(TYPES["i32"], ())
    inline = choice(m.draws, ("", "(noinline=True)"))
    m.helper(
        f"@triton.jit{inline}\ndef collatz(x, n):\n    steps = 0\n    while (x > 1) & (steps < n):\n"
        "        if x % 2 == 0:\n            x = x // 2\n        else:\n            x = 3 * x + 1\n"
        "        steps += 1\n    return steps * 1000 + x % 1000\n"
    )
    return m.let(f"collatz({a.name} & 255, {m.draws.integer(1, 20)})", a, bound=2.0**32)


# name: (PTX, constraints, operands)
_ASSEMBLY = (
    ("add.s32 $0, $1, $2;", "=r,r,r", 2),
    ("xor.b32 $0, $1, $2;", "=r,r,r", 2),
    ("sub.s32 $0, $1, $2;", "=r,r,r", 2),
    ("mul.lo.s32 $0, $1, $2;", "=r,r,r", 2),
    ("min.s32 $0, $1, $2;", "=r,r,r", 2),
    ("max.u32 $0, $1, $2;", "=r,r,r", 2),
    ("and.b32 $0, $1, $2;", "=r,r,r", 2),
    ("or.b32 $0, $1, $2;", "=r,r,r", 2),
    ("popc.b32 $0, $1;", "=r,r", 1),
    ("not.b32 $0, $1;", "=r,r", 1),
    ("brev.b32 $0, $1;", "=r,r", 1),
    ("shl.b32 $0, $1, 3;", "=r,r", 1),
    ("mov.b32 $0, $1;", "=r,r", 1),
)


def assembly(m: Maker) -> Value:
    a = m.pick(is_block, lambda v: v.type.name == "i32") or m.load(TYPES["i32"], m.shape())
    text, constraints, operands = choice(m.draws, _ASSEMBLY)
    names = a.name if operands == 1 else f"{a.name}, {m.same(a).name}"
    asm = f'tl.inline_asm_elementwise("{text}", "{constraints}", [{names}], dtype=tl.int32, is_pure=True, pack=1)'
    return m.let(asm, a, bound=2.0**32)


OPERATIONS: tuple[tuple[Make, int], ...] = (
    (counted_loop, 8), (while_loop, 4), (branch, 6), (pointer_loop, 4), (two_variables, 2), (store_in_branch, 3),
    (call, 3), (branching_call, 2), (assembly, 2),
)  # type: ignore[assignment]  # fmt: skip
