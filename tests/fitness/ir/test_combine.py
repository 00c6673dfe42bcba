"""Reductions, scans, matrix products, descriptors, and what moves elements."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from evo_kernel.fitness.compile.child import compile_ir
from tests.fitness.ir.support import fault, fine, lowered

ROWS, WIDE = 3, 16


@triton.jit
def larger(a, b):
    return tl.maximum(a, b * 1)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta, n = mean_b - mean_a, n_a + n_b
    share = tl.where(n == 0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def affine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def reduced(x, y, WIDE: tl.constexpr, KIND: tl.constexpr):
    me = tl.program_id(0)
    at = tl.arange(0, WIDE)
    v = tl.load(x + me * WIDE + at)
    if KIND == "sum":
        r = tl.sum(v, 0)
    elif KIND == "max":
        r = tl.max(v, 0)
    elif KIND == "min":
        r = tl.min(v, 0)
    elif KIND == "argmax":
        r = tl.argmax(v, 0)
    elif KIND == "argmin":
        r = tl.argmin(v, 0)
    elif KIND == "xor":
        r = tl.xor_sum(v, 0)
    elif KIND == "product":
        r = tl.reduce(v, 0, product)
    elif KIND == "larger":
        r = tl.reduce(v, 0, larger)
    elif KIND == "variance":
        _, m2, n = tl.reduce((v, tl.zeros_like(v), tl.full(v.shape, 1.0, tl.float32)), 0, welford)
        r = m2 / n
    tl.store(y + me, r)


WHOLE = {
    "sum": lambda x: x.sum(1), "max": lambda x: x.amax(1), "min": lambda x: x.amin(1), "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1), "product": lambda x: x.prod(1), "larger": lambda x: x.amax(1),
    "variance": lambda x: x.var(1, correction=0),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("programs", [1, ROWS])
def test_reductions_by_any_combiner(kind, programs):
    x = torch.randn(programs, WIDE)
    x[:, 5] = x[:, 7]
    want = WHOLE[kind](x)
    y = torch.zeros(programs, dtype=torch.int32 if kind.startswith("arg") else torch.float32)
    fine(reduced, programs, x, y, WIDE=WIDE, KIND=kind)
    torch.testing.assert_close(y, want.to(y.dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_negative_zero_is_below_a_positive_one(dtype):
    rows = torch.full((3, WIDE), -0.0, dtype=dtype)
    rows[0, 3], rows[1] = 0.0, 0.0
    for kind, want in (("max", [False, False, True]), ("min", [True, False, True])):
        result = torch.zeros(3, dtype=dtype)
        fine(reduced, 3, rows, result, WIDE=WIDE, KIND=kind)
        assert result.signbit().tolist() == want, kind


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sums_of_integers_overflow(dtype):
    x = torch.full((ROWS, WIDE), torch.iinfo(dtype).max - 3, dtype=dtype)
    y = torch.zeros(ROWS, dtype=dtype)
    fine(reduced, ROWS, x, y, WIDE=WIDE, KIND="sum")
    assert y.tolist() == [-4 * WIDE] * ROWS  # 16 (2^n / 2 - 4), and 8 2^n wraps to 0
    fine(reduced, ROWS, x, y, WIDE=WIDE, KIND="xor")
    assert y.tolist() == [0] * ROWS


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 3e4), (torch.bfloat16, 2e38)])
def test_narrow_sums_overflow_on_the_way(dtype, most):
    x, y = torch.full((ROWS, WIDE), most).to(dtype), torch.zeros(ROWS, dtype=dtype)
    x[:, WIDE // 2 :] *= -1
    fine(reduced, ROWS, x, y, WIDE=WIDE, KIND="sum")
    assert not y.isfinite().any()


@triton.jit
def first(a, b):
    return a


@triton.jit
def mean(a, b):
    return (a + b) / 2


@triton.jit
def ill_combined(x, y, z, N: tl.constexpr, MEAN: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    if MEAN:
        tl.store(y, tl.reduce(v, 0, mean))
        tl.store(z + tl.arange(0, N), tl.associative_scan(v, 0, mean))
    else:
        tl.store(y, tl.reduce(v, 0, first))
        tl.store(z + tl.arange(0, N), tl.associative_scan(v, 0, first))


@pytest.mark.parametrize("size", [2, 4, 16, 128])
def test_combiners_that_depend_on_the_order_gain_nothing_by_ours(size):
    x, y, z = torch.arange(float(size)), torch.zeros(1), torch.zeros(size)
    fine(ill_combined, 1, x, y, z, N=size, MEAN=False)
    assert y.item() != 0 and torch.equal(z, torch.zeros(size))  # which is associative, not commutative
    if size > 2:
        fine(ill_combined, 1, x**3, y, z, N=size, MEAN=True)
        assert y.item() != (x**3).mean() and z[-1] != (x**3).mean() and z[2] != (x[:3] ** 3).mean()


@triton.jit
def laid_out(x, y, KIND: tl.constexpr):
    v = tl.load(x + tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :])
    if KIND == "flat":
        r = tl.reshape(v, 32, can_reorder=True)
    elif KIND == "row":
        r = tl.sum(tl.reshape(tl.load(x + tl.arange(0, 32)), 1, 32, can_reorder=True), 0)
    elif KIND == "pairs":  # as reductions over all axes do, with an index
        r = tl.reshape(v, 32, can_reorder=True) - tl.reshape(v + 1, 32, can_reorder=True)
    else:
        r = tl.cat(v.reshape(32), v.reshape(32) + 32, can_reorder=True)
    tl.store(y + tl.arange(0, r.shape[0]), r)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("kind", ["flat", "row", "pairs", "cat"])
def test_elements_without_an_order_have_none(kind, dtype):
    if dtype is torch.float8_e4m3fn and kind != "flat":
        return  # they add, which has no 8-bit form
    x, y = torch.arange(32.0).to(dtype), torch.zeros(64 if kind == "cat" else 32).to(dtype)
    fine(laid_out, 1, x, y, KIND=kind)
    found = y.float().tolist()
    if kind == "pairs":
        assert found == [-1.0] * 32
    else:
        assert found != sorted(found) and sorted(found) == sorted(
            (torch.arange(64.0) if kind == "cat" else x.float()).tolist()
        )


@triton.jit
def alike(y, WIDE: tl.constexpr):
    """Reductions over what is the same for all programs, and of what is the same along the axis."""
    me = tl.program_id(0)
    at = tl.arange(0, WIDE)
    total = tl.sum(at, 0) + tl.sum(tl.full((WIDE,), 2, tl.int32), 0) + tl.max(tl.full((WIDE,), 5, tl.int32), 0)
    mine = tl.sum(tl.zeros((WIDE,), tl.int32) + me, 0) + tl.reduce(tl.full((WIDE,), 1, tl.int32), 0, product)
    running = tl.cumsum(tl.full((WIDE,), 1, tl.int32), 0)
    tl.store(y + me * WIDE + at, total + mine + running)


@pytest.mark.parametrize("programs", [1, ROWS])
def test_what_is_the_same_everywhere_is_reduced_whole(programs):
    y = torch.zeros(programs, WIDE, dtype=torch.int32)
    fine(alike, programs, y, WIDE=WIDE)
    total = sum(range(WIDE)) + 2 * WIDE + 5 + 1
    assert torch.equal(y, (total + WIDE * torch.arange(programs)[:, None] + 1 + torch.arange(WIDE)).int())


@triton.jit
def scanned(x, y, KIND: tl.constexpr, WIDE: tl.constexpr, BACK: tl.constexpr):
    at = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    v = tl.load(x + at)
    if KIND == "sum":
        r = tl.cumsum(v, 0, reverse=BACK)
    elif KIND == "product":
        r = tl.cumprod(v, 0, reverse=BACK)
    elif KIND == "larger":
        r = tl.associative_scan(v, 0, larger, reverse=BACK)
    else:
        _, r = tl.associative_scan((v, v), 0, affine, reverse=BACK)
    tl.store(y + at, r)


def recurrence(x: torch.Tensor) -> torch.Tensor:
    made, state = [], torch.zeros(x.shape[0])
    for column in x.unbind(1):
        state = state * column + column
        made.append(state)
    return torch.stack(made, 1)


SCANS = {"sum": lambda x: x.cumsum(1), "product": lambda x: x.cumprod(1), "larger": lambda x: x.cummax(1).values,
         "recurrence": recurrence}  # fmt: skip


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("kind", SCANS)
def test_scans(kind, back):
    x, y = torch.randn(ROWS, WIDE), torch.zeros(ROWS, WIDE)
    want = SCANS[kind](x.flip(1)).flip(1) if back else SCANS[kind](x)
    fine(scanned, ROWS, x, y, KIND=kind, WIDE=WIDE, BACK=back)
    torch.testing.assert_close(y, want)


@triton.jit
def multiplied(x, y, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(x + m[:, None] * K + k), tl.load(y + k[:, None] * N + n)
    tl.store(z + m[:, None] * N + n, tl.dot(a, b, input_precision=PRECISION, out_dtype=OUT))


def truncated_to_tf32(x: torch.Tensor) -> torch.Tensor:
    scale = torch.ldexp(torch.ones(()), torch.frexp(x).exponent - 11)
    return torch.copysign((x.abs() / scale).floor() * scale, x)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_matrix_products(dtype):
    a, b = torch.randn(16, 32).to(dtype), torch.randn(32, 16).to(dtype)
    z = torch.zeros(16, 16)
    fine(multiplied, 1, a, b, z, M=16, N=16, K=32, PRECISION="ieee", OUT=tl.float32)
    torch.testing.assert_close(z, (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_products_into_float16_are_rounded_by_each_instruction(dtype):
    terms = 32 // dtype.itemsize
    a, b, z = torch.full((16, 128), 1 / terms), torch.ones(128, 16), torch.zeros(16, 16, dtype=torch.float16)
    a[:, :terms] = 2048 / terms / 16
    b[:terms] = 16.0  # between 2048 and 4096 there are even numbers only: another 1 is lost, several together are not
    fine(multiplied, 1, a.to(dtype), b.to(dtype), z, M=16, N=16, K=128, PRECISION="ieee", OUT=tl.float16)
    assert (z == 2048).all()


def test_products_truncate_to_tf32():
    a, b, z = torch.randn(16, 32), torch.randn(32, 16), torch.zeros(16, 16)
    fine(multiplied, 1, a, b, z, M=16, N=16, K=32, PRECISION="tf32", OUT=tl.float32)
    want = (truncated_to_tf32(a).double() @ truncated_to_tf32(b).double()).float()
    torch.testing.assert_close(z, want, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(z, a @ b, rtol=1e-5, atol=1e-5)


def test_products_of_integers_are_exact():
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((16, 64), (64, 16)))
    z = torch.zeros(16, 16, dtype=torch.int32)
    fine(multiplied, 1, a, b, z, M=16, N=16, K=64, PRECISION="ieee", OUT=tl.int32)
    assert torch.equal(z, (a.long() @ b.long()).int())


@triton.jit
def moved(x, y, KIND: tl.constexpr):
    at = tl.arange(0, 8)
    v = tl.load(x + at)
    if KIND == "cat":
        r = tl.cat(v, v + 10)
    elif KIND == "join":
        r = tl.join(v, v + 10).reshape(16)
    elif KIND == "split":
        a, b = tl.split(v.reshape(4, 2))
        r = tl.join(b, a).reshape(8)
    elif KIND == "transposed":
        r = tl.trans(v.reshape(2, 4)).reshape(8)
    elif KIND == "same split":
        a, b = tl.split(tl.join(at, at))
        r = a + b + 0 * v
    elif KIND == "gathered":
        r = tl.gather(v, 7 - at, 0)
    elif KIND == "histogram":
        r = tl.histogram(at // 3, 8).to(v.dtype)
    elif KIND == "flipped":
        r = tl.flip(v, 0)
    elif KIND == "sorted":
        r = tl.sort(v % 5, 0)
    tl.store(y + tl.arange(0, r.shape[0]), r)


MOVED = {
    "cat": lambda x: torch.cat([x, x + 10]),
    "join": lambda x: torch.stack([x, x + 10], 1).reshape(-1),
    "split": lambda x: x.reshape(4, 2).flip(1).reshape(-1),
    "transposed": lambda x: x.reshape(2, 4).T.reshape(-1),
    "same split": lambda x: 2 * torch.arange(8).to(x.dtype),
    "gathered": lambda x: x.flip(0),
    "histogram": lambda x: torch.tensor([3, 3, 2, 0, 0, 0, 0, 0]).to(x.dtype),
    "flipped": lambda x: x.flip(0),
    "sorted": lambda x: (x % 5).sort().values,
}


@pytest.mark.parametrize("kind", MOVED)
def test_elements_are_moved(kind):
    x = torch.tensor([7, 1, 6, 2, 5, 3, 4, 0], dtype=torch.int32)
    want = MOVED[kind](x)
    y = torch.zeros(want.numel(), dtype=torch.int32)
    fine(moved, 1, x, y, KIND=kind)
    assert torch.equal(y, want.int())


@pytest.mark.parametrize("kind", ["cat", "join", "split", "transposed", "gathered", "flipped"])
def test_narrow_floats_are_moved(kind):
    x = torch.arange(8).to(torch.float8_e5m2)
    want = MOVED[kind](torch.arange(8.0)) if kind not in ("cat", "join") else None
    if want is None:
        return  # they add, which has no 8-bit form
    y = torch.zeros(8, dtype=torch.uint8).view(torch.float8_e5m2)
    fine(moved, 1, x, y, KIND=kind)
    assert torch.equal(y.float(), want)


@triton.jit
def described(x, y, m, n, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [m, n], [n, 1], [M, N], padding_option=PADDING)
    target = tl.make_tensor_descriptor(y, [m, n], [n, 1], [M, N])
    me = tl.program_id(0)
    block = source.load([me * M, 0])
    target.store([me * M, 0], tl.where(block * 0 == 0, block * 2, 7.0))


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_cut_at_their_bounds(padding):
    x, y = torch.randn(10, 12), torch.zeros(10, 12)
    fine(described, 3, x, y, 10, 12, M=4, N=16, PADDING=padding)
    assert torch.equal(y, 2 * x)


@triton.jit
def demanding(x, y, size, stride, column, M: tl.constexpr, N: tl.constexpr, BASE: tl.constexpr, STORES: tl.constexpr):
    source = tl.make_tensor_descriptor(x + BASE, [size, N], [stride, 1], [M, N])
    target = tl.make_tensor_descriptor(y, [M, N], [N, 1], [M, N])
    if STORES:
        source.store([0, column], target.load([0, 0]))
    else:
        target.store([0, 0], source.load([0, column]))


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize(
    ("size", "stride", "column", "base", "found"),
    [
        (4, 20, 4, 0, ""), (4, 20, -4, 4, ""), (4, 20, 2, 0, "misaligned"), (4, 18, 0, 0, "misaligned"),
        (4, 20, 0, 1, "misaligned"), (0, 20, 0, 0, "misaligned"), (4, -20, 0, 0, "misaligned"),
    ],
)  # fmt: skip
def test_descriptors_are_what_the_hardware_takes(size, stride, column, base, found, stores):
    args = torch.randn(100), torch.zeros(4, 16), size, stride, column
    assert fault(demanding, 1, *args, M=4, N=16, BASE=base, STORES=stores) == found


@triton.jit
def padded(x, y, m, n, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [m, n], [n, 1], [M, N], padding_option=PADDING)
    block = source.load([-1, 4])
    tl.store(y + tl.arange(0, M)[:, None] * N + tl.arange(0, N), block)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_fill_what_lies_outside(padding):
    x, y = torch.randn(4, 16), torch.zeros(8, 16)
    fine(padded, 1, x, y, 4, 16, M=8, N=16, PADDING=padding)
    want = torch.full((8, 16), 0.0 if padding == "zero" else torch.nan)
    want[1:5, :12] = x[:, 4:]
    torch.testing.assert_close(y, want, equal_nan=True, rtol=0, atol=0)
    assert fault(padded, 1, torch.randn(3, 16), y, 4, 16, M=8, N=16, PADDING=padding) == "out_of_bounds"


@triton.jit
def larger_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def extremes(x, y, WIDE: tl.constexpr):
    v = tl.load(x + tl.arange(0, WIDE))
    first = tl.load(x)
    tl.store(y, tl.max(v, 0))
    tl.store(y + 1, tl.reduce(v, 0, larger_or_nan))
    tl.store(y + 2, tl.maximum(first, 0.5))
    tl.store(y + 3, tl.maximum(first, 0.5, propagate_nan=tl.PropagateNan.ALL))


def test_maxima_drop_nan_or_keep_it():
    """As max.f32 and max.NaN.f32 do."""
    x = torch.linspace(-1, 1, WIDE)
    x[0] = float("nan")
    y = torch.zeros(4)
    fine(extremes, 1, x, y, WIDE=WIDE)
    torch.testing.assert_close(y, torch.tensor([1.0, float("nan"), 0.5, float("nan")]), equal_nan=True)


@triton.jit
def raised(y, value, U: tl.constexpr):
    block = tl.make_tensor_descriptor(y.to(tl.pointer_type(tl.uint32)) if U else y, [1, 4], [4, 1], [1, 4])
    block.atomic_max([0, 0], tl.full((1, 4), 0, tl.uint32 if U else tl.int32) + value.to(tl.uint32 if U else tl.int32))


@pytest.mark.parametrize("unsigned", [False, True])
def test_descriptors_raise_by_the_order_of_their_type(unsigned):
    y = torch.tensor([-3, 3, 7, -7], dtype=torch.int32)
    fine(raised, 1, y, 5, U=unsigned)
    assert y.tolist() == ([-3, 5, 7, -7] if unsigned else [5, 5, 7, 5])


@triton.jit
def in_groups(x, w, scales, y, FORMAT: tl.constexpr, SIZE: tl.constexpr):
    rows, groups = tl.arange(0, SIZE), tl.arange(0, SIZE // 32)
    at = rows[:, None] * SIZE + rows[None, :]
    given = tl.load(scales + rows[:, None] * (SIZE // 32) + groups[None, :])
    tl.store(y + at, tl.dot_scaled(tl.load(x + at), None, FORMAT, tl.load(w + at), given, "e4m3"))


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_scaled_products_have_the_range_of_their_operands(dtype, kind):
    """Triton 3.9 rounds scales to float16 beside operands of float16."""
    x, w = torch.eye(64, dtype=dtype), torch.ones(64, 64).to(torch.float8_e4m3fn)
    scales, y = torch.tensor([127 - 20, 127 - 40], dtype=torch.uint8).repeat(64, 1), torch.zeros(64, 64)
    fine(in_groups, 1, x, w, scales, y, FORMAT=kind, SIZE=64)
    want = torch.tensor([2.0**-20, 2.0**-40]).to(dtype).float()
    assert torch.equal(y, want.repeat_interleave(32)[:, None].expand(64, 64))


@triton.jit
def summed(x, y, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + tl.arange(0, M if AXIS else N), tl.sum(tl.load(x + at), AXIS))


def test_sums_add_up_as_threads_and_warps_do(tmp_path):
    """As PTX has it: a tree of a thread's elements, then shfl.bfly of 16, 8, ..., then the same among the warps."""
    lanes, warps = torch.arange(32), torch.arange(4)
    x = torch.randn(2048, generator=torch.Generator().manual_seed(1))
    thread = warps[:, None] * 32 + lanes
    along = x[torch.arange(4)[:, None] * 512 + thread[..., None, None] * 4 + torch.arange(4)].flatten(2)
    columns = (lanes % 4 * 4)[:, None, None] + torch.arange(4)  # four of a thread, in each of four rows
    rows = torch.arange(4)[:, None] * 32 + warps[:, None, None, None] * 8 + (lanes // 4)[:, None, None]
    across = x.view(128, 16)[rows, columns]
    for elements, shape, axis, far in ((along, (1, 2048), 1, (16, 8, 4, 2, 1)), (across, (128, 16), 0, (16, 8, 4))):
        pairs = elements[:, :, ::2] + elements[:, :, 1::2]
        while pairs.shape[2] > 1:
            pairs = pairs[:, :, ::2] + pairs[:, :, 1::2]
        for distance in far:
            pairs = pairs + pairs[:, lanes ^ distance]
        held = (pairs + pairs[warps ^ 2]) + (pairs + pairs[warps ^ 2])[warps ^ 1]
        y = torch.zeros(16)
        text = lowered(summed, x, y, M=shape[0], N=shape[1], AXIS=axis)
        text = text.replace("%x: !tt.ptr<f32>", "%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}", 1)
        kernel = {"name": "summed", "language": "triton", "code": text, "options": {"num_warps": 4}}
        fine(compile_ir(kernel, 90, str(tmp_path))["ir"], 1, x, y)
        assert torch.equal(y[: 1 if axis else 16], held[0, : 1 if axis else 4].flatten()), axis
        assert not torch.equal(y[: 1 if axis else 16], x.view(shape).sum(axis))
