"""Elementwise operations against numpy and torch, on every type."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from evo_kernel.fitness.ir.device_functions import FLUSHED, device_function, flushed_exp2, raised
from tests.fitness.ir.support import ELEMENTS, fault, fine, pointwise

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIZE = 64


def drawn(dtype: torch.dtype, seed: int = 0, *, nonzero: bool = False) -> torch.Tensor:
    """Any bits, the extremes among them."""
    generator = torch.Generator().manual_seed(seed)
    limits = torch.iinfo(dtype)
    made = torch.randint(-(1 << 62), 1 << 62, (SIZE,), generator=generator).to(dtype)
    made[:4] = torch.tensor([limits.min, limits.max, -1, 1], dtype=dtype).roll(seed)
    made[4:8] = torch.tensor([0, 1, 2, 3], dtype=dtype)
    return torch.where(made == 0, 3, made) if nonzero else made


def unsigned(data: torch.Tensor) -> np.ndarray:
    return data.numpy().view(f"u{data.element_size()}")


def signed(data: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(data)).view(dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["addi", "subi", "muli", "andi", "ori", "xori"])
def test_integers_wrap(name, dtype):
    a, b = drawn(dtype), drawn(dtype, 1)
    with np.errstate(over="ignore"):
        x, y = unsigned(a), unsigned(b)
        want = {"addi": x + y, "subi": x - y, "muli": x * y, "andi": x & y, "ori": x | y, "xori": x ^ y}[name]
    assert torch.equal(pointwise(f"arith.{name} {{0}}, {{1}} : {{t}}", a, b, out=dtype), signed(want, dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_has_a_sign_or_none(dtype):
    a, b = drawn(dtype), drawn(dtype, 2, nonzero=True)
    b[b == -1] = 7  # the smallest number by -1 is undefined
    x, y = unsigned(a), unsigned(b)
    for name, want in {"divui": x // y, "remui": x % y}.items():
        assert torch.equal(pointwise(f"arith.{name} {{0}}, {{1}} : {{t}}", a, b, out=dtype), signed(want, dtype)), name
    quotients = [
        abs(int(p)) // abs(int(q)) * (1 if (int(p) < 0) == (int(q) < 0) else -1) for p, q in zip(a, b, strict=True)
    ]
    want = torch.tensor(quotients, dtype=dtype)
    assert torch.equal(pointwise("arith.divsi {0}, {1} : {t}", a, b, out=dtype), want)
    assert torch.equal(pointwise("arith.remsi {0}, {1} : {t}", a, b, out=dtype), a - want * b)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_and_extremes(dtype):
    bits = torch.iinfo(dtype).bits
    a, b = drawn(dtype), torch.arange(SIZE).remainder(bits).to(dtype)
    x, y = unsigned(a), unsigned(b)
    wanted = {"shli": signed(x << y, dtype), "shrui": signed(x >> y, dtype), "shrsi": torch.bitwise_right_shift(a, b)}
    c = drawn(dtype, 3)
    z = unsigned(c)
    for name, want in wanted.items():
        assert torch.equal(pointwise(f"arith.{name} {{0}}, {{1}} : {{t}}", a, b, out=dtype), want), name
    extremes = {"maxui": signed(np.maximum(x, z), dtype), "minui": signed(np.minimum(x, z), dtype),
                "maxsi": torch.maximum(a, c), "minsi": torch.minimum(a, c)}  # fmt: skip
    for name, want in extremes.items():
        assert torch.equal(pointwise(f"arith.{name} {{0}}, {{1}} : {{t}}", a, c, out=dtype), want), name


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_compare_with_a_sign_or_none(dtype):
    a, b = drawn(dtype), drawn(dtype, 4)
    b[20:30] = a[20:30]
    x, y = unsigned(a), unsigned(b)
    wanted = {"eq": a == b, "ne": a != b, "slt": a < b, "sle": a <= b, "sgt": a > b, "sge": a >= b,
              "ult": x < y, "ule": x <= y, "ugt": x > y, "uge": x >= y}  # fmt: skip
    for name, want in wanted.items():
        found = pointwise(f"arith.cmpi {name}, {{0}}, {{1}} : {{t}}", a, b, out=torch.bool)
        assert torch.equal(found, torch.as_tensor(want)), name


@pytest.mark.parametrize("name, up", [("hadd", 0), ("rhadd", 1)])
def test_averages_take_33_bits(name, up):
    a, b = drawn(torch.int32), drawn(torch.int32, 5)
    for sign, x, y in (("", a.numpy(), b.numpy()), ("u", unsigned(a), unsigned(b))):
        call = f'tt.extern_elementwise {{0}}, {{1}} {{{{symbol = "__nv_{sign}{name}"}}}} : ({{t}}, {{t}}) -> {{r}}'
        want = (x.astype(np.int64) + y.astype(np.int64) + up) // 2
        assert torch.equal(pointwise(call, a, b, out=torch.int32), signed(want.astype(np.uint32), torch.int32))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_high_products_and_bit_counts(dtype):
    a, b = drawn(dtype), drawn(dtype, 5)
    bits = torch.iinfo(dtype).bits
    numbers = [(int(p), int(q)) for p, q in zip(unsigned(a), unsigned(b), strict=True)]
    high = np.array([p * q >> bits for p, q in numbers], dtype=f"u{bits // 8}")
    assert torch.equal(pointwise("tt.mulhiui {0}, {1} : {t}", a, b, out=dtype), signed(high, dtype))
    counts = {
        "ctpop": [p.bit_count() for p, _ in numbers],
        "ctlz": [bits - p.bit_length() for p, _ in numbers],
        "cttz": [(p & -p).bit_length() - 1 if p else bits for p, _ in numbers],
    }
    for name, want in counts.items():
        assert pointwise(f"math.{name} {{0}} : {{t}}", a, out=dtype).tolist() == want, name


def floats(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    made = (torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 8).to(dtype)
    made[:6] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0]).to(dtype).roll(seed)
    return made


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(12345.0), b.nan_to_num(12345.0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_rounded_after_every_operation(dtype):
    a, b = floats(dtype), floats(dtype, 2)
    wide = (a.double(), b.double())
    wanted = {"addf": wide[0] + wide[1], "subf": wide[0] - wide[1], "mulf": wide[0] * wide[1]}
    for name, want in wanted.items():
        assert same(pointwise(f"arith.{name} {{0}}, {{1}} : {{t}}", a, b, out=dtype), want.to(dtype)), name


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_and_comparisons_with_nan(dtype):
    a, b = floats(dtype), floats(dtype, 1)
    b[10:20] = a[10:20]
    either = a.isnan() | b.isnan()
    wanted = {"maxnumf": torch.fmax(a, b), "minnumf": torch.fmin(a, b), "maximumf": torch.maximum(a, b),
              "minimumf": torch.minimum(a, b)}  # fmt: skip
    for name, want in wanted.items():
        assert same(pointwise(f"arith.{name} {{0}}, {{1}} : {{t}}", a, b, out=dtype), want), name
    plain = {"eq": a == b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "ne": (a < b) | (a > b)}
    predicates = {f"o{name}": want for name, want in plain.items()} | {f"u{n}": w | either for n, w in plain.items()}
    for name, want in (predicates | {"ord": ~either, "uno": either}).items():
        assert torch.equal(pointwise(f"arith.cmpf {name}, {{0}}, {{1}} : {{t}}", a, b, out=torch.bool), want), name


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_negative_zero_is_below_a_positive_one(dtype):
    a, b = (
        torch.tensor([0.0, 0.0, -0.0, -0.0, 0.0, 2.0]).to(dtype),
        torch.tensor([0.0, -0.0, 0.0, -0.0, -1.0, -0.0]).to(dtype),
    )
    a, b = (torch.nn.functional.pad(value, (0, SIZE - 6), value=1.0) for value in (a, b))
    larger, smaller = [False, False, False, True, False, False], [False, True, True, True, True, True]
    for operation, want in {"max": larger, "min": smaller}.items():
        for kind in ("num", "imum"):
            made = pointwise(f"arith.{operation}{kind}f {{0}}, {{1}} : {{t}}", a, b, out=dtype)
            assert made.signbit()[:6].tolist() == want, kind


def test_integers_become_other_integers():
    for source in INTEGERS:
        a = drawn(source)
        for target in INTEGERS:
            if target.itemsize > source.itemsize:
                assert torch.equal(pointwise("arith.extsi {0} : {t} to {r}", a, out=target), a.to(target))
                wide = signed(unsigned(a).astype(f"u{target.itemsize}"), target)
                assert torch.equal(pointwise("arith.extui {0} : {t} to {r}", a, out=target), wide)
            if target.itemsize < source.itemsize:
                assert torch.equal(pointwise("arith.trunci {0} : {t} to {r}", a, out=target), a.to(target))
        assert torch.equal(pointwise("arith.trunci {0} : {t} to {r}", a, out=torch.bool), (a & 1).bool())


def test_booleans_become_integers_and_floats():
    a = torch.arange(SIZE) % 3 == 0
    assert torch.equal(pointwise("arith.extui {0} : {t} to {r}", a, out=torch.int32), a.int())
    assert torch.equal(pointwise("arith.extsi {0} : {t} to {r}", a, out=torch.int16), -a.short())
    assert torch.equal(pointwise("arith.uitofp {0} : {t} to {r}", a, out=torch.float16), a.half())
    assert torch.equal(pointwise("arith.addi {0}, {0} : {t}", a, out=torch.bool), torch.zeros_like(a))
    assert torch.equal(pointwise("arith.muli {0}, {0} : {t}", a, out=torch.bool), a)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_become_floats(source, target):
    a = drawn(source)
    wide = torch.from_numpy(a.numpy().astype(np.longdouble).astype(np.float64)) if target == torch.float64 else None
    if target in (torch.float32, torch.float64):
        kind = np.float32 if target == torch.float32 else np.float64
        assert torch.equal(
            pointwise("arith.sitofp {0} : {t} to {r}", a, out=target), torch.from_numpy(a.numpy().astype(kind))
        )
        want = torch.from_numpy(unsigned(a).astype(kind))
    else:
        want = torch.from_numpy(unsigned(a).astype(np.float64)).to(target)
    assert same(pointwise("arith.uitofp {0} : {t} to {r}", a, out=target), want), wide


@pytest.mark.parametrize("source", FLOATS)
def test_floats_become_integers_towards_zero(source):
    a = (torch.randn(SIZE) * 30).to(source)
    for target in INTEGERS:
        b = a.clamp(-100, 100)
        assert torch.equal(pointwise("arith.fptosi {0} : {t} to {r}", b, out=target), b.double().trunc().to(target))
        positive = a.abs()
        want = signed(positive.double().trunc().numpy().astype(f"u{target.itemsize}"), target)
        assert torch.equal(pointwise("arith.fptoui {0} : {t} to {r}", positive, out=target), want)


def test_floats_become_other_floats():
    a = floats(torch.float32)
    for target in (torch.float16, torch.bfloat16):
        made = pointwise("arith.truncf {0} : {t} to {r}", a, out=target)
        assert same(made, a.to(target))
        assert same(pointwise("arith.extf {0} : {t} to {r}", made, out=torch.float32), made.float())


@pytest.mark.parametrize("operation, source, bits, target", [
    ("arith.sitofp", torch.int32, 31, torch.bfloat16), ("arith.uitofp", torch.int32, 32, torch.bfloat16),
    ("arith.sitofp", torch.int64, 63, torch.bfloat16), ("arith.uitofp", torch.int64, 64, torch.bfloat16),
    ("arith.truncf", torch.float64, 0, torch.bfloat16), ("arith.truncf", torch.float64, 0, torch.float16),
    ("tt.fp_to_fp", torch.float64, 0, torch.bfloat16), ("tt.fp_to_fp", torch.float64, 0, torch.float16),
])  # fmt: skip
def test_what_lies_next_to_a_tie_is_rounded_once(operation, source, bits, target):
    """cvt.rn.bf16.s32 and its like round what they get, not a float32 of it."""
    digits = 8 if target == torch.bfloat16 else 11
    most = 1 << digits
    kept = range(most // 2, most, most // 44)[:21]
    step, beside = (1 << bits - digits, 1) if bits else (2, 2.0**-40)
    values = [number * step + step // 2 + offset for number in kept for offset in (-beside, 0, beside)] + [0]
    want = [chosen * step for n in kept for chosen in (n, n + n % 2, n + 1)] + [0]
    a = signed(np.array(values, dtype=f"u{source.itemsize}"), source) if bits else torch.tensor(values, dtype=source)
    made = pointwise(f"{operation} {{0}} : {{t}} {'->' if operation[:2] == 'tt' else 'to'} {{r}}", a, out=target)
    assert torch.equal(made, torch.tensor(want, dtype=torch.float64).float().to(target))
    if bits:
        few = torch.arange(SIZE).to(source)
        assert torch.equal(pointwise(f"{operation} {{0}} : {{t}} to {{r}}", few, out=target), few.to(target))
    if operation == "arith.sitofp":
        assert torch.equal(pointwise("arith.sitofp {0} : {t} to {r}", -a, out=target), -made)


def test_a_fused_product_of_16_bits_is_rounded_once():
    x, y, z = (torch.full((SIZE,), value, dtype=torch.float16) for value in (3.0, 683.0, 2.0**-24))
    made = pointwise("math.fma {0}, {1}, {2} : {t}", x, y, z, out=torch.float16)
    assert made.eq(2050).all() and pointwise("math.fma {0}, {1}, {2} : {t}", x, y, -z, out=torch.float16).eq(2048).all()


@pytest.mark.parametrize("target", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits_saturate_and_come_back(target):
    most = torch.finfo(target).max
    a = torch.cat([torch.linspace(-2 * most, 2 * most, SIZE - 2), torch.tensor([torch.inf, -torch.inf])])
    made = pointwise("tt.fp_to_fp {0}, rounding = rtne : {t} -> {r}", a, out=target)
    assert torch.equal(made.float(), a.clamp(-most, most).to(target).float())
    assert torch.equal(pointwise("tt.fp_to_fp {0} : {t} -> {r}", made, out=torch.float16), made.half())


def test_rounding_towards_zero():
    a = floats(torch.float32, 3)[6:].repeat(2)[:SIZE] * 1.001
    for target in (torch.float16, torch.bfloat16):
        made = pointwise("tt.fp_to_fp {0}, rounding = rtz : {t} -> {r}", a, out=target)
        assert (made.float().abs() <= a.abs()).all() and (made.float() - a).abs().max() <= torch.finfo(target).eps * 40


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_every_type_is_loaded_stored_and_selected(dtype):
    raw = torch.arange(SIZE, dtype=torch.uint8)
    a = raw % 2 == 0 if dtype is torch.bool else raw.repeat_interleave(dtype.itemsize).view(dtype)
    b, chosen = (
        a.roll(1) if dtype.itemsize > 1 or not dtype.is_floating_point else raw.roll(1).view(dtype),
        raw % 3 == 0,
    )
    made = pointwise("arith.select {0}, {1}, {2} : tensor<64xi1>, {r}", chosen, a, b, out=dtype)
    size = dtype.itemsize
    bits = [value.contiguous().view(torch.uint8).reshape(SIZE, size) for value in (a, b, made)]
    assert torch.equal(torch.where(chosen[:, None], bits[0], bits[1]), bits[2])


def test_bits_are_reread():
    a = torch.randn(SIZE)
    assert torch.equal(pointwise("tt.bitcast {0} : {t} -> {r}", a, out=torch.int32), a.view(torch.int32))
    assert torch.equal(pointwise("arith.bitcast {0} : {t} to {r}", a.view(torch.int32), out=torch.float32), a)


FUNCTIONS = {"exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "sin": torch.sin,
             "cos": torch.cos, "tanh": torch.tanh, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "erf": torch.erf,
             "floor": torch.floor, "ceil": torch.ceil, "absf": torch.abs}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    a = torch.rand(SIZE) * 4 + 0.1
    torch.testing.assert_close(pointwise(f"math.{name} {{0}} : {{t}}", a, out=torch.float32), FUNCTIONS[name](a))


def test_exponentials_are_those_of_the_instruction():
    """ex2.approx(x * log2(e)), as the PTX of tl.exp has it; libdevice's expf has other instructions."""
    x = torch.linspace(-80, 80, SIZE)
    made = pointwise("math.exp {0} : {t}", x, out=torch.float32)
    rounded = x * float.fromhex("0x1.715476p+0")
    assert ((made.double() / torch.exp2(rounded.double()) - 1).abs() < 2**-22).all()
    assert (made.double() / torch.exp(x.double()) - 1).abs().max() > 2**-20
    library, fast, ten = (device_function(f"__nv_{name}") for name in ("expf", "fast_expf", "fast_exp10f"))
    assert library and fast and ten
    assert torch.equal(fast(x), made) and not torch.equal(library(x), made)
    assert torch.equal(ten(x / 4), flushed_exp2(x / 4 * float.fromhex("0x1.a934f0p+1")))
    tiny = pointwise("math.exp {0} : {t}", torch.full((SIZE,), -90.0), out=torch.float32)
    assert ((tiny > 0) & (tiny < 2.0**-126)).all()  # no .ftz


def test_a_fused_product_is_rounded_once():
    a = torch.tensor([1 + 2.0**-12] * SIZE)
    c = torch.full((SIZE,), -(1 + 2.0**-11))
    assert torch.equal(
        pointwise("math.fma {0}, {1}, {2} : {t}", a, a, c, out=torch.float32), torch.full((SIZE,), 2.0**-24)
    )


@triton.jit
def affine(y, z, by, N: tl.constexpr):
    """Integers that the executor keeps as sums, until they leave their type."""
    me, at = tl.program_id(0), tl.arange(0, N)
    tl.store(y + me * N + at, (me * by + at * by - by) * 3 + 7)
    tl.store(z + me * N + at, ((me.to(tl.int64) * by + at) * by + 5) * by * by)


@pytest.mark.parametrize("by", [1, 1 << 20, -(1 << 29), (1 << 31) - 1, -(1 << 31)])
def test_sums_that_leave_their_type_wrap(by):
    y, z = torch.zeros(5, 8, dtype=torch.int32), torch.zeros(5, 8, dtype=torch.int64)
    fine(affine, 5, y, z, by, N=8)

    def wrapped(value: int, bits: int) -> int:
        return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))

    for me in range(5):
        for at in range(8):
            assert y[me, at] == wrapped((me * by + at * by - by) * 3 + 7, 32)
            square = wrapped(me * by + at, 64) * by + 5
            assert z[me, at] == wrapped(square * wrapped(wrapped(by, 64), 64) * by, 64)


def test_narrowing_to_eight_bits_takes_the_nearest_and_of_two_the_even():
    x = torch.arange(1 << 15, dtype=torch.int16).view(torch.float16)
    x = x[x <= 448]
    made = pointwise("tt.fp_to_fp {0}, rounding = rtne : {t} -> {r}", x, out=torch.float8_e4m3fn)
    codes = torch.arange(127, dtype=torch.uint8)
    distance = (codes.view(torch.float8_e4m3fn).double() - x.double().unsqueeze(1)).abs()
    least = distance.amin(1, keepdim=True)
    assert torch.equal(made.view(torch.uint8), codes[(distance == least).int().mul(2).sub(codes % 2).argmax(1)])


def test_assembly_and_libraries_compute_what_the_gpu_does():
    x = torch.linspace(0.1, 3.0, SIZE)
    how = '{{constraints = "=f,f", packed_element = 1 : i32, pure = true}} {0} : {t} -> {r}'
    made = pointwise(f'tt.elementwise_inline_asm "tanh.approx.f32 $0, $1;" {how}', x, out=torch.float32)
    error = (made / torch.tanh(x) - 1).abs().max()
    moved = pointwise(f'tt.elementwise_inline_asm "mov.b32 $0, 999999999;" {how}', x, out=torch.float32)
    assert moved[0].view(torch.int32) == 999999999
    assert 2.0**-12 < error <= 2.0**-11
    wide = x.double() + 2.0**-45
    reciprocal = device_function("__nv_rcp64h")
    assert reciprocal and 2.0**-22 < (reciprocal(wide) * wide - 1).abs().max() < 2.0**-19
    power = device_function("__nv_fast_powf")
    assert power and power(-x, torch.full_like(x, 3.0)).isnan().all()


@triton.jit
def branched(x, y):
    if tl.sum(tl.maximum(tl.load(x + tl.arange(0, 2)), 1.0), 0) + tl.max(tl.load(x + tl.arange(0, 2)), 0) > 0:
        tl.store(y, 1.0)


def test_fast_sines_have_the_error_of_the_instruction():
    sine, cosine = device_function("__nv_fast_sinf"), device_function("__nv_fast_cosf")
    assert sine and cosine
    small, large = torch.linspace(-3, 3, 999), torch.linspace(1e4, 1e6, 999)
    for fast, exact in ((sine, torch.sin), (cosine, torch.cos)):
        assert (fast(small) - exact(small.double())).abs().max() < 2**-20
        assert (fast(large) - exact(large.double())).abs().max() > 2**-10
    for power in (-22, -18, -12):  # 2^-22.3 on an H200
        tiny = torch.linspace(2.0**power, 2.0 ** (power + 1), 9999)
        assert 2**-22.5 < (sine(tiny) - torch.sin(tiny.double())).abs().max() < 2**-22.2
    assert not sine(torch.linspace(-(2**-22.5), 2**-22.5, 99)).any()


def test_fast_logarithms_near_1_have_the_error_of_the_instruction():
    logarithm = device_function("__nv_fast_log2f")
    assert logarithm
    near = 1.0 + torch.linspace(-(2.0**-12), 2.0**-12, 9999)
    error = (logarithm(near) - torch.log2(near.double())).abs().max()
    assert 2**-24 < error < 2**-22.2 and logarithm(torch.ones(1)) == 0


def test_the_larger_of_a_signaling_nan_is_anything():
    for bits, found in ((0x7FF8 << 48, ""), (0x7FF4 << 48, "undefined")):
        x = torch.tensor([bits, 0], dtype=torch.int64).view(torch.float64)
        assert fault(branched, 1, x, torch.zeros(1)) == found


@pytest.mark.parametrize("name", ["float2int_rn", "double2int_rz", "llrintf", "llrint", "llroundf", "llround"])
def test_conversions_are_cut_to_the_integers_that_there_are(name):
    wide, bits = name in ("double2int_rz", "llrint", "llround"), 32 if "2" in name else 64
    convert, least = device_function(f"__nv_{name}"), -(1 << bits - 1)
    x = torch.tensor(
        [torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 7.0], dtype=torch.float64 if wide else torch.float32
    )
    nothing = 0 if name == "float2int_rn" else least
    assert convert and convert(x).tolist() == [nothing, -least - 1, least, -least - 1, least, 7]


def test_what_device_functions_do_at_the_edges():
    quotient, power = device_function("__nv_fast_fdividef"), device_function("__nv_powif")
    saturated, difference = device_function("__nv_saturatef"), device_function("__nv_fdimf")
    assert quotient and power and saturated and difference
    x, y = torch.tensor([1e38, 1e38, 1.0, torch.inf]), torch.tensor([2e38, 5e37, 4.0, 1e38])
    assert quotient(x, y)[:3].tolist() == [0.0, 2.0, 0.25] and quotient(x, y)[3].isnan()
    assert power(torch.tensor([-1.0]), torch.tensor([2**24 + 1], dtype=torch.int32)).item() == -1.0
    assert saturated(torch.tensor([torch.nan, 2.0, -1.0, 0.5])).tolist() == [0.0, 1.0, 0.0, 0.5]
    assert difference(torch.tensor([torch.inf, 3.0, 1.0]), torch.tensor([torch.inf, 1.0, 3.0])).tolist() == [0, 2, 0]


def test_more_functions_of_the_library_do_what_their_code_does():
    x = torch.tensor([1.0, -8.0, 0.25, 3.5, -1.5, 0.0, torch.inf, 1e-39])
    made = {name: device_function(f"__nv_{name}f") for name in ("rcbrt", "logb", "ilogb", "tgamma", "erfcinv")}
    told = {name: function(x) for name, function in made.items() if function}
    assert told["rcbrt"][:2].tolist() == [1.0, -0.5] and told["rcbrt"][5] == torch.inf
    assert told["rcbrt"][7].isnan()  # a denormal number is taken for zero, whose inverse is multiplied by zero
    assert told["logb"].tolist() == [0, 3, -2, 1, 0, -torch.inf, torch.inf, -150]
    assert told["ilogb"].tolist() == [0, 3, -2, 1, 0, -(1 << 31), (1 << 31) - 1, -(1 << 31)]
    torch.testing.assert_close(told["tgamma"][[0, 2, 3, 4]], torch.tensor([1.0, 3.6256099, 3.3233509, 2.3632718]))
    assert told["tgamma"][1].isnan() and told["tgamma"][5:].tolist() == [torch.inf] * 3
    torch.testing.assert_close(torch.erfc(told["erfcinv"][[0, 2]]), x[[0, 2]])
    assert told["erfcinv"][[5, 7]].tolist() == [torch.inf] * 2 and told["erfcinv"][3].isnan()
    scaled, length, gamma = (device_function(f"__nv_{name}") for name in ("ldexpf", "rhypotf", "tgamma"))
    quantile, bits = device_function("__nv_normcdfinvf"), device_function("__nv_float_as_int")
    assert scaled and length and gamma and quantile and bits
    assert scaled(x[:4], torch.tensor([3, -1, 200, -200])).tolist() == [8, -4, torch.inf, 3.5 * 2.0**-200 * 0]
    assert scaled(x[7:], torch.tensor([5])) == 2 * x[7]
    assert length(torch.tensor([3e30, torch.inf]), torch.tensor([4e30, 1.0])).tolist() == pytest.approx([2e-31, 0])
    assert gamma(torch.tensor([5.0, -0.0, 200.0, -3.0], dtype=torch.float64))[:3].tolist() == [
        24,
        -torch.inf,
        torch.inf,
    ]
    assert quantile(torch.tensor([0.5, 0.975, 0.0])).tolist() == pytest.approx([0, 1.959964, -torch.inf], abs=1e-6)
    assert torch.equal(bits(x), x.view(torch.int32))
    high, low = (device_function(f"__nv_double2{part}int") for part in ("hi", "lo"))
    joined, wide = device_function("__nv_hiloint2double"), x.double() / 3
    assert high and low and joined and torch.equal(joined(high(wide), low(wide)), wide)


def test_assembly_takes_constants_as_bits_and_flushes_where_it_says():
    x = torch.tensor([1.5, -2.0, 1e-39, -1e-39] * (SIZE // 4))
    how = '{{constraints = "=f,f", packed_element = 1 : i32, pure = true}} {0} : {t} -> {r}'

    def made(text: str) -> list[float]:
        return pointwise(f'tt.elementwise_inline_asm "{text}" {how}', x, out=torch.float32)[:4].tolist()

    assert made("fma.rn.f32 $0, $1, 0f40000000, 0f3F800000;") == [4.0, -3.0, 1.0, 1.0]
    assert made("abs.ftz.f32 $0, $1;") == [1.5, 2.0, 0.0, 0.0]
    moved = f'tt.elementwise_inline_asm "mov.b32 $0, 0fBF800000;" {how.replace("f", "r", 2)}'
    ones = pointwise(moved, x.view(torch.int32), out=torch.int32).view(torch.float32)
    assert bool((ones == -1.0).all())


def test_the_largest_float_is_printed_as_more_than_it_is():
    (largest,) = pointwise("arith.constant dense<3.40282347E+38> : {t}", torch.zeros(1), out=torch.float32)
    assert largest == torch.finfo(torch.float32).max


def test_instructions_that_flush_know_no_denormals():
    ((power,), (root,), (inverse,)) = (
        pointwise(f"{name} {{0}} : {{t}}", torch.tensor([value]), out=torch.float32)
        for name, value in (("math.exp2", -127.0), ("math.sqrt", 1e-39), ("math.rsqrt", 1e-39))
    )
    (wide,) = pointwise("math.exp2 {0} : {t}", torch.tensor([-127.0], dtype=torch.float64), out=torch.float64)
    assert (power, root, inverse, wide) == (0.0, 0.0, torch.inf, 2.0**-127)
    tiny, less = torch.tensor([1e-39]), torch.tensor([2e-20])  # as PTX of the library's functions says
    for name in ("sin", "erf", "tanh", "log1p", "fabs", "saturate", "j1", "fmod", "fma"):
        function, others = device_function(f"__nv_{name}f"), {"fmod": 1, "fma": 2}.get(name, 0)
        assert function and function(tiny, *[torch.ones(1)] * others).item() == (others == 2)
    others = (("fmul_rn", less), ("fast_powf", 2 * torch.ones(1)), ("powf", torch.ones(1)), ("nextafterf", tiny + 1))
    told = [(device_function(f"__nv_{name}"), y) for name, y in others]
    assert [function(x, y).item() for (function, y), x in zip(told, (less, less, tiny, tiny), strict=True) if function] == [
        0.0, 0.0, 2.0**-127, torch.finfo(torch.float32).smallest_normal,
    ]  # fmt: skip
    assert pointwise("math.sin {0} : {t}", tiny, out=torch.float32).item() == 0


def test_what_instructions_approximate_is_not_exact():
    x, y = torch.arange(1.0, 4097.0), torch.full((4096,), 7.0)
    again = pointwise("arith.divf {0}, {1} : {t}", x * 7.0, y, out=torch.float32)
    fast = device_function("__nv_fast_fdividef")
    assert 0 < (again != x).sum() < 4096 and torch.allclose(again, x, rtol=3e-7)
    assert fast and torch.equal(fast(x * 7.0, y), again)
    halved = pointwise("arith.divf {0}, {1} : {t}", x, torch.full_like(x, 2.0), out=torch.float32)
    assert torch.equal(halved, x / 2)
    k = torch.arange(1.0, 257.0)  # where a rounded reciprocal gives 1 or the next number below
    itself = pointwise("arith.divf {0}, {0} : {t}", k, out=torch.float32)
    assert (itself + 6e-8 < 1).any()
    roots = pointwise("math.rsqrt {0} : {t}", x * x, out=torch.float32)
    assert (roots * x != 1.0).sum() > 0 and torch.allclose(roots * x, torch.ones_like(x), rtol=3e-7)
    large = torch.tensor([1e30, 7.5, 1.0, -7.5])
    rest = pointwise("arith.remf {0}, {1} : {t}", large, torch.tensor([7.0, 2.0, torch.inf, 2.0]), out=torch.float32)
    assert rest.tolist()[1:] == [1.5, 1.0, -1.5] and rest[0] != torch.fmod(large, torch.tensor(7.0))[0]


@triton.jit
def sums_of_products(x, y, z, out, rounds, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b, c = tl.load(x + at), tl.load(y + at), tl.load(z + at)
    product = a * b
    tl.store(out + at, product - c)
    tl.store(out + N + at, c + (-product))
    tl.store(out + 2 * N + at, a * c - b * c)
    scalar = tl.load(x) * tl.load(y)
    tl.store(out + 3 * N + at, scalar + c)
    tl.store(out + 4 * N + at, a * b - product)
    for _ in range(rounds):
        tl.store(out + 5 * N + at, product - tl.load(z + at))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_product_and_a_sum_of_its_block_are_rounded_once(dtype):
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(SIZE, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    z[:20] = (x * y)[:20]  # nothing is left but what the product's rounding lost
    out = torch.zeros(6, SIZE, dtype=dtype)
    fine(sums_of_products, 1, x, y, z, out, 2, N=SIZE)

    def once(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        exact = [
            Fraction(i) * Fraction(j) + Fraction(k) for i, j, k in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        ]
        return torch.tensor([float(value) for value in exact], dtype=torch.float64).to(dtype)

    whole = once(x, y, -z)
    assert whole[:20].any()
    want = [
        whole,
        -whole,
        once(x, z, -(y * z)),
        once(x[:1].expand(SIZE), y[:1].expand(SIZE), z),
        once(x, y, -(x * y)),
    ]
    for place, (got, expected) in enumerate(zip(out[:5], want, strict=True)):
        assert torch.equal(got, expected), place
    moved = out[5] == whole  # into the loop, if the compiler likes
    assert moved[:20].any() and (out[5] == x * y - z)[~moved].all() and (~moved).any()


@triton.jit
def differences(x, y, z, HOW: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(x + at)
    product, known = a * b, tl.load(y + at)
    made = a
    if HOW == "once":
        made = product * 1.0 - known
    elif HOW == "negated":
        made = -(known + product * -1.0)
    elif HOW == "branch":
        if tl.load(y) > 0:
            made = product - known
    elif HOW == "reshaped":
        made = tl.reshape(tl.reshape(product, [N // 4, 4]) - tl.reshape(known, [N // 4, 4]), [N])
    elif HOW == "transposed":
        made = tl.trans(tl.trans(tl.reshape(product, [N // 4, 4])) - tl.trans(tl.reshape(known, [N // 4, 4])))
        made = tl.reshape(made, [N])
    elif HOW == "joined":
        made, other = tl.split(tl.join(product, a) - tl.join(known, a))
        made += other
    elif HOW == "second":
        other, made = tl.split(tl.join(a, product) - tl.join(a, known))
        made += other
    elif HOW == "both":
        other, made = tl.split(tl.join(-product, product) + tl.join(known, -known))
        made = tl.where(other == 0, made, -other)
    elif HOW == "assembled":
        product = tl.inline_asm_elementwise(
            "mul.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
        )
        made = tl.inline_asm_elementwise(
            "sub.f32 $0, $2, $1;", "=f,f,f", [known, product], dtype=tl.float32, is_pure=True, pack=1
        )
    elif HOW == "rounded":
        product = tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
        )
        made = product - known
    tl.store(z + at, made)


@pytest.mark.parametrize(
    "how",
    ["once", "negated", "branch", "reshaped", "transposed", "joined", "second", "both", "assembled", "rounded"],
)
def test_a_product_is_rounded_once_wherever_its_sum_is(how):
    x = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)) + 0.5
    z, lost = torch.zeros(SIZE), (x.double() * x.double() - (x * x).double()).float()
    fine(differences, 1, x, x * x, z, HOW=how, N=SIZE)
    assert torch.where(z == 0, lost, z).equal(lost)
    assert {"once": z.equal(lost), "negated": z.equal(lost), "rounded": not z.any()}.get(
        how, 10 < z.count_nonzero() < lost.count_nonzero()
    )


@pytest.mark.parametrize("name", ["exp2", "log1p", "sinh", "atanh", "atan2", "pow"])
def test_a_result_does_not_depend_on_what_is_computed_beside_it(name):
    """torch computes what is left of vectors one by one, by another algorithm."""
    values = [torch.rand(61, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    values = values[: 1 + (name in ("atan2", "pow"))]
    function = {"exp2": flushed_exp2, "pow": raised}.get(name) or FLUSHED[name]
    parts = [function(*each) for each in zip(*(value.split(1) for value in values), strict=True)]
    assert torch.equal(function(*values), torch.cat(parts))


@triton.jit
def bits_of_nan(x, y, z, BITS: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    loaded = tl.load(x + at)
    moved = tl.where(at < N // 2, loaded, tl.trans(tl.reshape(loaded, [1, N]), (1, 0)).reshape([N]))
    computed = loaded * 0.0 + (loaded - loaded)
    tl.store(y + at, moved.to(BITS, bitcast=True))
    tl.store(y + N + at, computed.to(BITS, bitcast=True))
    tl.store(z + at, computed)
    tl.store(z + N + at, -loaded)
    if tl.int32 == BITS:
        tl.store(y + 2 * N + at, libdevice.signbit(computed) + (libdevice.float_as_int(computed) < 0))
        tl.store(y + 3 * N + at, (libdevice.copysign(1.0, computed) < 0).to(tl.int32))


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.float16, 16), (torch.bfloat16, 16)])
def test_nan_has_no_sign_unless_it_is_loaded_with_one(dtype, bits):
    integer = getattr(torch, f"int{bits}")
    x = torch.full((SIZE,), torch.inf).to(dtype)
    x.view(integer)[:7] = -1
    y, z = torch.full((4, SIZE), 5, dtype=integer), torch.zeros(2, SIZE, dtype=dtype)
    fine(bits_of_nan, 1, x, y, z, BITS=getattr(tl, f"int{bits}"), N=SIZE)
    most = torch.iinfo(integer).max
    assert y[0].equal(x.view(integer)) and (y[1] == most).all()
    assert (z[0].view(integer) == most).all() and z[1].view(integer).equal((-x).view(integer))
    assert bits == 16 or not y[2:].any()
