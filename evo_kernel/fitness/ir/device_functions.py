"""CUDA's math library (libdevice), and inline assembly of a single PTX instruction, as torch functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from evo_kernel.fitness.ir.contractions import contracted, fused
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import Lanes, any_undefined
from evo_kernel.fitness.ir.module import Operation


def tf32(data: torch.Tensor) -> torch.Tensor:
    """float32 rounded to 10 bits of mantissa, halves away from zero (PTX: cvt.rna.tf32)."""
    bits = (data.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return torch.where(data.isfinite(), bits.view(torch.float32), data)


def without_denormals(x: torch.Tensor) -> torch.Tensor:
    """With zeros for denormal float32; instructions on float64 know denormals."""
    return torch.where(x.abs() < _LEAST_NORMAL, x * 0.0, x) if x.dtype is torch.float32 else x


_LEAST_NORMAL = torch.finfo(torch.float32).smallest_normal


def flushed(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function whose float32 instructions take denormal operands for zeros (PTX: .ftz)."""
    return lambda *operands: function(*map(without_denormals, operands))


def flushing(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function as .ftz instructions of float32: denormal operands and results are zeros."""
    return lambda *values: without_denormals(function(*map(without_denormals, values)))


_VECTORS = 32
"""Elements that torch computes at a time, at most; what is left, and what lies with gaps, it computes one by one."""


def alike(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function, equal for equal operands: some of torch's differ in the last bit where they take one at a time, so
    that a result would depend on the programs that are executed together."""

    def whole(*values: torch.Tensor) -> torch.Tensor:
        rows = [value.reshape(-1) for value in torch.broadcast_tensors(*values)]
        shape, count = np.broadcast_shapes(*(value.shape for value in values)), len(rows[0])
        if rest := -count % _VECTORS:
            rows = [torch.nn.functional.pad(row, (0, rest)) for row in rows]
        return function(*(row.contiguous() for row in rows))[:count].view(shape)

    return whole


exp2, raised = alike(torch.exp2), alike(torch.pow)
_made_exp2 = alike(torch.exp2_)
flushed_exp2 = flushing(exp2)
"""Triton compiles exp2 of float32 to ex2.approx.ftz."""


def exponential(x: torch.Tensor) -> torch.Tensor:
    """e^x as Triton compiles it: of float32 ex2.approx of a rounded product, whose error grows with x. libdevice's has
    an error of its own."""
    return _made_exp2(x * math.log2(math.e)) if x.dtype is torch.float32 else torch.exp(x)


def _zeros_apart(
    extreme: Callable[..., torch.Tensor], of_zeros: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """A maximum or minimum for which -0.0 is below +0.0, as it is for instructions and for LLVM (PTX ISA, section
    9.7.3; IEEE 754-2019, section 9.6). torch returns either."""

    def apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = extreme(x, y)
        zero = result == 0
        return torch.where(zero & (x == y), of_zeros(x, y), result) if bool(zero.any()) else result

    return apart


def _larger_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def _smaller_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -(-x - y)


maximum, minimum = _zeros_apart(torch.maximum, _larger_zero), _zeros_apart(torch.minimum, _smaller_zero)
fmax, fmin = _zeros_apart(torch.fmax, _larger_zero), _zeros_apart(torch.fmin, _smaller_zero)


def quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x / y as the compiler has it: of float32 div.full, x times the reciprocal by its instruction (of y scaled, where
    that is no normal number), so that an exact quotient may come out below an integer."""
    if x.dtype is not torch.float32:
        return x / y
    product = x * _reciprocal(y)
    plain = product.isfinite() & (y.abs() < 2.0**126)
    return product if bool(plain.all()) else torch.where(plain, product, x / y)


def remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x - trunc(x / y) * y with the roundings of the compiler's instructions; no remainder where x / y is large."""
    a, b = (v.float() if v.element_size() < 4 else v for v in (x, y))
    return torch.where(b.isinf(), a, fused(-torch.trunc(a / b), b, a)).to(x.dtype)


def inverse_root(x: torch.Tensor) -> torch.Tensor:
    """1 / sqrt(x), of float32 by the instruction."""
    return _inverse_root(without_denormals(x))


def _inverse_root(x: torch.Tensor) -> torch.Tensor:
    return _off_by_one(x, torch.rsqrt(x), 0x7FFFFF)


def _reciprocal(x: torch.Tensor) -> torch.Tensor:
    """Exact for at most five digits: of the integers, an H200 gives too little for 33, 37, 61, ..."""
    return _off_by_one(x, torch.reciprocal(x), 0x7FFFF)


def _off_by_one(x: torch.Tensor, exact: torch.Tensor, digits: int) -> torch.Tensor:
    """A result of float32 by an instruction that is off by one in the last place for some operands: here for half of
    those that have any of these digits, so that a kernel that counts on an exact result is found."""
    if x.dtype is not torch.float32:
        return exact
    bits = x.contiguous().view(torch.int32)
    off = (bits * -0x61C88647 >> 20) % 4 - 1  # -1 to 2
    off = torch.where((off < 2) & (bits & digits != 0) & exact.isfinite(), off, 0)
    return (exact.contiguous().view(torch.int32) + off).view(torch.float32)


def half_away(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest integer, halves away from zero. (Truncating x + 0.5 would round twice.)"""
    whole = torch.trunc(x)
    return torch.where((x - whole).abs() >= 0.5, whole + torch.copysign(torch.ones_like(x), x), whole)


def _bits_set(x: torch.Tensor) -> torch.Tensor:
    """Sums of pairs of bits, of fours, and of bytes."""
    bits = 8 * x.element_size()
    wide = x if bits >= 32 else x.int() & (1 << bits) - 1
    ones = ((1 << max(bits, 32)) - 1) // 0xFF  # of each byte
    wide = wide - (wide >> 1 & ones * 0x55)
    wide = (wide & ones * 0x33) + (wide >> 2 & ones * 0x33)
    return ((wide + (wide >> 4) & ones * 0x0F) * ones >> max(bits, 32) - 8).to(x.dtype)


def _leading_zeros(x: torch.Tensor) -> torch.Tensor:
    bits = 8 * x.element_size()
    count = torch.full_like(x, bits)
    for n in range(bits):
        count = torch.where((x >> n) & 1 != 0, bits - 1 - n, count)
    return count


def _first_set(x: torch.Tensor) -> torch.Tensor:
    """Position of the lowest set bit, from 1; 0 if there is none."""
    position = torch.zeros_like(x)
    for n in reversed(range(8 * x.element_size())):
        position = torch.where((x >> n) & 1 != 0, n + 1, position)
    return position


def _reversed(x: torch.Tensor) -> torch.Tensor:
    bits = 8 * x.element_size()
    return sum(((x >> n) & 1) << (bits - 1 - n) for n in range(bits))  # pyright: ignore[reportReturnType]


def _high_word(x: torch.Tensor) -> torch.Tensor:
    """A float64 whose lower half is cut off."""
    return (x.contiguous().view(torch.int64) >> 32 << 32).view(torch.float64)


def _turns(x: torch.Tensor) -> torch.Tensor:
    """An angle by the reduction of sin.approx and cos.approx: multiplied by a float32 of 1 / 2 pi, towards zero, to a
    whole number of steps.

    So their error grows with the angle (PTX ISA, section 9.7.3: 2^-20.5 up to 2 pi, 2^-14.7 up to 100 pi), and does not
    fall with it: on an H200 it is 2^-22.3 at 2^-22 as at 2^-12, and sines of angles below a step are 0.
    """
    exact = x.double() * _PER_TURN
    turns = exact.float()
    above = turns.double().abs() > exact.abs()
    turns = torch.where(above, torch.nextafter(turns, torch.zeros_like(turns)), turns).double()
    return torch.trunc(turns / _STEP) * (_STEP * 2 * math.pi)


_PER_TURN = 0.15915493667125702  # as a float32
_STEP = 2.0**-25  # of a turn
_LOGARITHM_STEP = 2.0**-23


def _fast_logarithm(x: torch.Tensor) -> torch.Tensor:
    """lg2.approx: near 1, where logarithms are near 0, off by 2^-22.2 on an H200 all the same."""
    exact = torch.log2(x.double())
    return torch.where(exact.abs() < 1, torch.trunc(exact / _LOGARITHM_STEP) * _LOGARITHM_STEP, exact).to(x.dtype)


def _fast_sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(_turns(x)).to(x.dtype)


def _fast_cosine(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(_turns(x)).to(x.dtype)


def _fast_quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """div.approx multiplies by the reciprocal: 0 for a finite divisor above 2^126, where an infinity gives NaN (PTX
    ISA, section 9.7.3)."""
    large = (y.abs() > 2.0**126) & y.isfinite()
    return torch.where(large, x * 0.0 * y.sign(), x * _reciprocal(y))


def _denormal(x: torch.Tensor) -> torch.Tensor:
    """Where a float32 is denormal; nowhere of float64, whose instructions know denormals."""
    return (x != 0) & (x.abs() < _LEAST_NORMAL) & (x.dtype is torch.float32)


def _inverse_cube_root(x: torch.Tensor) -> torch.Tensor:
    root = torch.copysign(x.abs().double().pow(-1 / 3), x.double()).to(x.dtype)
    return torch.where(_denormal(x), torch.nan, root)  # an infinity is multiplied by zero


def _next_after(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of 0 the least normal float32."""
    of_zero = torch.where(y == 0, y, torch.copysign(torch.full_like(y, _LEAST_NORMAL), y))
    return torch.where((x == 0) & (x.dtype is torch.float32), of_zero, torch.nextafter(x, y))


def _cube_root(x: torch.Tensor) -> torch.Tensor:
    root = torch.copysign(x.abs().double().pow(1 / 3).to(x.dtype), x)
    return torch.where(_denormal(x), torch.nan, root)  # as above


def _power(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of a denormal float32, that of 2^-127: its digits are flushed."""
    return raised(torch.where(_denormal(x), torch.copysign(torch.full_like(x, 2.0**-127), x), x), y)


def _exponent(x: torch.Tensor) -> torch.Tensor:
    return torch.frexp(x).exponent - 1


def _logb(x: torch.Tensor) -> torch.Tensor:
    """Of a denormal float32 what its flushed bits give, 32 leading zeros."""
    known = torch.where(_denormal(x), -150, _exponent(x)).to(x.dtype)
    return torch.where(x == 0, -torch.inf, torch.where(x.isfinite(), known, x * x))


def _ilogb(x: torch.Tensor) -> torch.Tensor:
    limits = torch.iinfo(torch.int32)
    nothing = (x == 0) | x.isnan() | _denormal(x)
    return torch.where(nothing, limits.min, torch.where(x.isinf(), limits.max, _exponent(x)))


def _scaled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """x * 2^n with one rounding. A denormal float32 is added to itself, whatever the exponent."""
    data, powers = torch.broadcast_tensors(x, n.clamp(-5000, 5000).int())
    with np.errstate(over="ignore", under="ignore"):
        scaled = torch.from_numpy(np.asarray(np.ldexp(data.numpy(), powers.numpy())))
    return torch.where(_denormal(x), x + x, scaled)


def _gamma(x: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.float64:
        return torch.tensor([_gamma_of(value) for value in x.reshape(-1).tolist()], dtype=x.dtype).reshape(x.shape)
    wide = without_denormals(x).double()
    odd = (wide < 0) & (torch.floor(wide).remainder(2) == 1)
    made = torch.where(odd, -1.0, 1.0) * torch.exp(torch.lgamma(wide))
    pole = (wide < 0) & ((wide == torch.floor(wide)) | wide.isinf())
    return torch.where(pole, torch.nan, torch.where(wide == 0, 1.0 / wide, made)).to(x.dtype)


def _gamma_of(value: float) -> float:
    if value == 0:
        return math.copysign(math.inf, value)
    try:
        return math.gamma(value)
    except OverflowError:
        return math.inf
    except ValueError:  # at a pole
        return math.nan


def _erfcinv(x: torch.Tensor) -> torch.Tensor:
    wide = without_denormals(x).double()
    return (torch.special.ndtri(wide / 2) * -math.sqrt(0.5)).to(x.dtype)


def _inverse_length(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = map(without_denormals, (x, y))
    return torch.reciprocal(torch.hypot(a.double(), b.double())).to(x.dtype)


def _bits_as(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.contiguous().view(dtype)


def _as_int(rounding: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """The nearest integer after a rounding. NaN becomes the least one, but 0 where both have 32 bits (PTX ISA, section
    9.7.9.21)."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max

    def converted(x: torch.Tensor) -> torch.Tensor:
        whole = rounding(x).double()
        fits = (whole >= least) & (whole < -float(least))
        cut = torch.where(whole > 0, most, 0 if x.element_size() == dtype.itemsize == 4 else least)
        cut = torch.where(whole < 0, least, cut)
        return torch.where(fits, torch.where(fits, whole, 0.0).to(dtype), cut.to(dtype))

    return converted


_ONE_BY_ONE = {"atan2", "atanh", "cosh", "log1p", "sinh"}
"""See `alike`."""


def _of_torch(name: str) -> Callable[..., torch.Tensor]:
    return alike(getattr(torch, name)) if name in _ONE_BY_ONE else getattr(torch, name)


_UNARY = {
    name: _of_torch(name)
    for name in (
        "abs", "acos", "acosh", "cos", "cosh", "erfinv", "exp", "log", "log10", "log2", "trunc",
    )
}  # fmt: skip
FLUSHED: dict[str, Callable[..., torch.Tensor]] = {
    name: flushed(_of_torch(name))
    for name in (
        "asin", "asinh", "atan", "atan2", "atanh", "ceil", "erf", "expm1", "floor", "fmod", "hypot",
        "lgamma", "log1p", "sin", "sinh", "sqrt", "tan", "tanh",
    )
}  # fmt: skip
"""Functions whose libdevice code takes denormal float32 for zeros, as its PTX for sm_90 says."""
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **_UNARY,
    **FLUSHED,
    "exp2": flushed_exp2,
    "fast_expf": flushing(exponential),
    "rsqrt": inverse_root,
    "erfc": flushing(torch.erfc),
    "erfcx": flushing(torch.special.erfcx),
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": flushed(torch.special.i1),
    "j0": torch.special.bessel_j0,
    "j1": flushed(torch.special.bessel_j1),
    "y0": flushed(torch.special.bessel_y0),
    "y1": flushed(torch.special.bessel_y1),
    "fabs": flushed(torch.abs),
    "rint": torch.round,
    "nearbyint": torch.round,
    "round": half_away,
    "llrint": _as_int(torch.round, torch.int64),
    "llround": _as_int(half_away, torch.int64),
    "exp10": lambda x: raised(torch.full_like(x, 10.0), x),
    "fast_exp10f": lambda x: flushed_exp2(x * math.log2(10.0)),
    "cbrt": _cube_root,
    "saturate": flushed(lambda x: fmax(x, torch.zeros_like(x)).clamp(max=1.0)),  # NaN becomes 0
    "frcp_rn": flushing(torch.reciprocal),
    "frsqrt_rn": flushed(torch.rsqrt),
    "fsqrt_rn": flushed(torch.sqrt),
    **{
        f"{kind}2int_{mode}": flushed(_as_int(rounding, torch.int32))
        for kind in ("float", "double")
        for mode, rounding in (("rn", torch.round), ("rz", torch.trunc), ("rd", torch.floor), ("ru", torch.ceil))
    },
    "isnan": lambda x: torch.isnan(x).int(),
    "isinf": lambda x: torch.isinf(x).int(),
    **dict.fromkeys(("finite", "isfinite"), lambda x: torch.isfinite(x).int()),
    "signbit": lambda x: torch.signbit(x).int(),
    "normcdf": flushing(lambda x: 0.5 * torch.erfc(-x / 2**0.5)),
    "pow": _power,
    "powi": lambda x, n: raised(x.double(), n.double()).to(x.dtype),  # float32 has no odd numbers above 2^24
    **dict.fromkeys(("float_as_int", "float_as_uint"), _bits_as(torch.int32)),
    **dict.fromkeys(("int_as_float", "uint_as_float"), _bits_as(torch.float32)),
    "double_as_longlong": _bits_as(torch.int64),
    "longlong_as_double": _bits_as(torch.float64),
    "double2hiint": lambda x: (x.contiguous().view(torch.int64) >> 32).int(),
    "double2loint": lambda x: x.contiguous().view(torch.int64).to(torch.int32),
    "hiloint2double": lambda high, low: (high.long() << 32 | low.long() & 0xFFFFFFFF).view(torch.float64),
    "rcbrt": _inverse_cube_root,
    "ilogb": _ilogb,
    "logb": _logb,
    "ldexp": _scaled,
    "scalbn": _scaled,
    "tgamma": _gamma,
    "rhypot": _inverse_length,
    "erfcinv": _erfcinv,
    "normcdfinv": lambda x: _erfcinv(x + x) * -math.sqrt(2.0),
    "copysign": torch.copysign,
    "fdim": flushing(lambda x, y: torch.where(x <= y, 0.0, x - y)),
    "fmin": flushed(fmin),
    "fmax": flushed(fmax),
    "fdividef": flushing(_fast_quotient),
    "fdiv_rn": flushing(torch.div),
    "fadd_rn": flushing(torch.add),
    "fsub_rn": flushing(torch.sub),
    "fmul_rn": flushing(torch.mul),
    "fma": flushing(fused),
    "fmaf_rn": flushing(fused),
    "rcp64h": lambda x: _high_word(torch.reciprocal(_high_word(x))),
    "fast_powf": flushing(lambda x, y: exp2(y * _fast_logarithm(x))),  # NaN for a base below zero
    "fast_log2f": flushed(_fast_logarithm),
    "fast_logf": flushed(lambda x: _fast_logarithm(x) * math.log(2.0)),
    "fast_log10f": flushed(lambda x: _fast_logarithm(x) * math.log10(2.0)),
    "fast_sinf": _fast_sine,
    "fast_cosf": _fast_cosine,
    "fast_tanf": lambda x: _fast_quotient(_fast_sine(x), _fast_cosine(x)),
    "nextafter": flushed(_next_after),
    "popc": _bits_set,
    "popcll": _bits_set,
    "clz": _leading_zeros,
    "clzll": _leading_zeros,
    "ffs": _first_set,
    "ffsll": _first_set,
    "brev": _reversed,
    "brevll": _reversed,
    "mulhi": lambda x, y: x.long() * y.long() >> 32,
    "umulhi": lambda x, y: (x.long() & 0xFFFFFFFF) * (y.long() & 0xFFFFFFFF) >> 32,
    "hadd": lambda x, y: x.long() + y.long() >> 1,
    "rhadd": lambda x, y: x.long() + y.long() + 1 >> 1,
    "uhadd": lambda x, y: (x.long() & 0xFFFFFFFF) + (y.long() & 0xFFFFFFFF) >> 1,
    "urhadd": lambda x, y: (x.long() & 0xFFFFFFFF) + (y.long() & 0xFFFFFFFF) + 1 >> 1,
}


def device_function(symbol: str) -> Callable[..., torch.Tensor] | None:
    """The torch function for a symbol (`__nv_tanhf`, `__nv_fast_expf`); None if unknown."""
    given = symbol.removeprefix("__nv_")
    name = given.removeprefix("fast_")
    for spelling in (given, name, name[:-1] if name[-1:] in ("f", "d") else name):
        if spelling in _FUNCTIONS:
            return _FUNCTIONS[spelling]
    return None


def _declared() -> dict[str, tuple[str, ...]]:
    """Types of operands and result of libdevice's functions, by symbol: as Triton's front end declares them."""
    package = find_spec("triton")
    assert package is not None and package.origin is not None
    text = (Path(package.origin).parent / "language/extra/cuda/libdevice.py").read_text(encoding="utf-8")
    kind = r'core\.dtype\("\w+"\)'
    found = re.findall(rf'\(((?:{kind},?\s*)+)\):\s*\(\s*"(__nv_\w+)",\s*({kind})', text)
    names = {"fp32": "f32", "fp64": "f64", "int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64"}
    return {
        symbol: tuple(names[name] for name in re.findall(r'"(\w+)"', f"{operands}{result}"))
        for operands, symbol, result in found
    }


_DECLARED = _declared()


def takes(symbol: str, operands: Sequence[str], result: str) -> bool:
    """Whether a device function has these types. The compiler calls it for any, with registers that it does not read,
    or with the bits of a float as an integer."""
    kind = "f32" if symbol.endswith("f") else "f64"
    return (*operands, result) == _DECLARED.get(symbol, (kind,) * (len(operands) + 1))


_INSTRUCTION = re.compile(
    r"\s*([a-z0-9.]+) \$0((?:, *(?:\$\d|0[fF][0-9a-fA-F]{8}|-?(?:0[0-7]{0,8}|[1-9]\d{0,8})))+) *;?\s*"
)
_LOW = 0xFFFFFFFF


def _bits(name: str) -> Callable[..., torch.Tensor]:
    function = device_function(name)
    assert function
    return lambda x: function(x.to(torch.int32)).long()


_MOVES = {"mov.b32", "mov.u32", "mov.s32", "mov.f32"}
_ON_INTEGERS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"{name}.{kind}": made for kind in ("s32", "u32") for name, made in (
        ("add", torch.add), ("sub", torch.sub), ("mul.lo", torch.mul), ("mad.lo", lambda x, y, z: x * y + z))},
    "and.b32": torch.bitwise_and,
    "or.b32": torch.bitwise_or,
    "xor.b32": torch.bitwise_xor,
    "not.b32": torch.bitwise_not,
    "min.s32": torch.minimum,
    "max.s32": torch.maximum,
    "min.u32": lambda x, y: torch.minimum(x & _LOW, y & _LOW),
    "max.u32": lambda x, y: torch.maximum(x & _LOW, y & _LOW),
    "shl.b32": lambda x, n: torch.where(n & _LOW < 32, x << (n & 31), 0),
    "shr.u32": lambda x, n: torch.where(n & _LOW < 32, (x & _LOW) >> (n & 31), 0),
    "shr.s32": lambda x, n: x >> (n & _LOW).clamp(max=31),
    "popc.b32": _bits("__nv_popc"),
    "clz.b32": _bits("__nv_clz"),
    "brev.b32": _bits("__nv_brev"),
}  # fmt: skip
_ON_FLOATS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"{name}{mode}.f32": made for mode in ("", ".rn") for name, made in (
        ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul))},
    **{f"{name}.rn.ftz.f32": flushing(made) for name, made in (
        ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("fma", fused))},
    "fma.rn.f32": fused,
    "abs.ftz.f32": flushing(torch.abs),
    "neg.ftz.f32": flushing(torch.neg),
    "min.f32": fmin,
    "max.f32": fmax,
    "abs.f32": torch.abs,
    "neg.f32": torch.neg,
    **{f"{name}.approx{flush}.f32": (flushing(made) if flush else made) for flush in ("", ".ftz") for name, made in (
        ("ex2", exp2), ("lg2", _fast_logarithm), ("rcp", _reciprocal), ("sqrt", torch.sqrt),
        ("rsqrt", _inverse_root), ("sin", _fast_sine), ("cos", _fast_cosine))},
    "tanh.approx.f32": lambda x: tf32(torch.tanh(x)),  # a relative error of 2^-11 (PTX ISA, section 9.7.3)
}  # fmt: skip


@handles("tt.elementwise_inline_asm")
def _assembly(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    texts = re.match(r'"([^"\\]*)"', operation.head.strip())
    match = _INSTRUCTION.fullmatch(texts[1]) if texts else None
    constraints = operation.attributes.get("constraints", "").strip('"').replace(" ", "").split(",")
    elements = {value.type.element for value in (*operation.results, *operands)}
    packed = operation.attributes.get("packed_element", "1")[0]
    table, letter = _table(match[1] if match else "", elements) if packed == "1" else ({}, "")
    if match is None or match[1] not in table or constraints != [f"={letter}", *[letter] * len(operands)]:
        raise Unsupported(f"the executor does not know the inline assembly {operation.head[:80]}")
    marks = any_undefined(operands)
    values = []
    for word in re.findall(r"[$\w-]+", match[2]):
        if word[:2].lower() == "0f":
            bits = torch.tensor(int(word[2:], 16))
            values.append(bits if letter == "r" else bits.int().view(torch.float32))
        elif word[0] != "$":
            number = torch.tensor(int(word, 8 if word.lstrip("-")[0] == "0" else 10))  # PTX ISA, section 4.5.1
            values.append(number if letter == "r" else number.int().view(torch.float32))  # moved as bits
        elif 1 <= int(word[1:]) <= len(operands):
            data = operands[int(word[1:]) - 1].data
            values.append(data.long() if letter == "r" else data)
        else:
            raise Unsupported(f"inline assembly with the operand {word}")
    try:
        data = contracted(machine, frame, operation)
        data = table[match[1]](*values) if data is None else data
    except TypeError as error:
        raise Unsupported(f"inline assembly with {len(values)} operands: {match[0][:80]}") from error
    return [Lanes(operation.results[0].type, data.to(operation.results[0].type.dtype), undefined=marks)]


def _table(instruction: str, elements: set[str]) -> tuple[dict[str, Callable[..., torch.Tensor]], str]:
    """Instructions on elements of one type, and the constraint letter of its registers."""
    if instruction in _MOVES and elements in ({"i32"}, {"f32"}):
        return dict.fromkeys(_MOVES, lambda x: x), "r" if elements == {"i32"} else "f"
    return {"i32": (_ON_INTEGERS, "r"), "f32": (_ON_FLOATS, "f")}.get("".join(elements), ({}, ""))
