import dataclasses
import math
from pathlib import Path

import pytest
import torch

from evo_kernel.fitness.correctness import check, error_bounds, regimes
from evo_kernel.fitness.correctness.conversions import conversions
from evo_kernel.fitness.correctness.references import ANSWERS, SeedPool
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task, Tolerance
from evo_kernel.types import CaseKind


def task_of(reference, tolerance=None):
    return Task(
        name="t", path=Path("t.py"), text="t", cases=(), inputs_function=lambda *a: (), reference_function=reference,
        baselines={}, tolerance=tolerance or Tolerance(),
    )  # fmt: skip


SOFTMAX = task_of(lambda x: torch.softmax(x, -1))
MATMUL = task_of(lambda a, b: a @ b)
MEAN = task_of(lambda x: x.mean())
RMSNORM = task_of(lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w)
BY_REGIME = pytest.mark.parametrize("regime", regimes.REGIMES)


def draw(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def verdict(task, inputs, kernel):
    output = kernel(*inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    return check.compare("case", outputs, error_bounds.expect(task, inputs), task.tolerance)


def chain_matmul(a, b):
    """Every product added one after the other: the longest honest chain of roundings."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1].float() * b[k : k + 1].float()
    return total.to(a.dtype)


def tiled_matmul(a, b, block=32):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], block):
        total = total + a[:, k : k + block].float() @ b[k : k + block].float()
    return total.to(a.dtype)


def online_softmax(x, block=64):
    peak, total = torch.full(x.shape[:1], -math.inf), torch.zeros(x.shape[0])
    for part in x.split(block, -1):
        higher = torch.maximum(peak, part.max(-1).values)
        total = total * torch.exp(peak - higher) + torch.exp(part - higher[:, None]).sum(-1)
        peak = higher
    return torch.exp(x - peak[:, None]) / total[:, None]


def exp2_softmax(x):
    scaled = x * 1.4426950408889634
    e = torch.exp2(scaled - scaled.max(-1, keepdim=True).values)
    lanes = torch.zeros(x.shape[0], 32)  # one warp: as few lanes as a GPU kernel sums in
    for part in torch.nn.functional.pad(e, (0, -e.shape[-1] % 32)).split(32, -1):
        lanes = lanes + part
    return e / lanes.sum(-1, keepdim=True)


@BY_REGIME
@pytest.mark.parametrize("kernel", [online_softmax, exp2_softmax])
def test_honest_softmaxes_pass(regime, kernel):
    for seed in range(3):
        inputs = regimes.apply(regime, draw((7, 1031), seed=seed))
        result = verdict(SOFTMAX, inputs, kernel)
        assert result.passed, (result.reason, regime)


@BY_REGIME
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", [chain_matmul, tiled_matmul])
def test_honest_matmuls_pass(regime, dtype, kernel):
    inputs = regimes.apply(regime, draw((17, 1024), (1024, 33), dtype=dtype))
    result = verdict(MATMUL, inputs, kernel)
    assert result.passed, (result.reason, regime)


@BY_REGIME
def test_honest_norms_in_bfloat16_pass(regime):
    def in_float32(x, w):
        wide = x.float()
        return (wide / torch.sqrt((wide * wide).sum(-1, keepdim=True) / x.shape[-1] + 1e-6) * w.float()).to(x.dtype)

    inputs = regimes.apply(regime, draw((9, 512), (512,), dtype=torch.bfloat16))
    assert verdict(RMSNORM, inputs, in_float32).passed


def test_honest_means_pass():
    for seed in range(8):
        (x,) = draw((10**6,), seed=seed)
        total = torch.zeros(1024)
        for part in torch.nn.functional.pad(x, (0, 1024 * 977 - 10**6)).split(1024):
            total = total + part
        assert verdict(MEAN, (x,), lambda x, total=total: total.sum() / 10**6).passed


@pytest.mark.parametrize("k", [64, 512, 4096])
@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_a_narrow_matmul_fails_in_float32(cast, k):
    inputs = draw((64, k), (k, 64))
    result = verdict(MATMUL, inputs, lambda a, b: a.to(cast).float() @ b.to(cast).float())
    assert not result.passed and result.error > 1


@pytest.mark.parametrize("k", [64, 512, 4096])
def test_a_half_precision_cast_of_small_positive_inputs_fails(k):
    generator = torch.Generator().manual_seed(3)
    inputs = tuple(torch.rand(s, generator=generator) / 64 for s in ((64, k), (k, 64)))
    assert not verdict(MATMUL, inputs, lambda a, b: a.half().float() @ b.half().float()).passed


@pytest.mark.parametrize("k", [80, 512, 4096])
def test_a_matmul_of_eight_bit_integers_fails_in_bfloat16(k):
    def rounded(x, axis):
        step = x.float().abs().amax(axis, keepdim=True) / 127
        return torch.round(x.float() / step) * step

    inputs = draw((64, k), (k, 64), dtype=torch.bfloat16)
    result = verdict(MATMUL, inputs, lambda a, b: (rounded(a, 1) @ rounded(b, 0)).to(a.dtype))
    assert not result.passed and result.error > 1


def attention(x):
    heads = x.view(-1, 8, 32)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


@pytest.mark.parametrize(
    "after",
    [
        lambda x: torch.log_softmax(x, -1),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
        lambda x: torch.logcumsumexp(x, -1),
        lambda x: torch.nn.functional.avg_pool1d(x[:, None], 4),
        lambda x: torch.nn.functional.instance_norm(x.view(-1, 8, 32)),
        attention,
    ],
    ids=["log_softmax", "layer_norm", "logcumsumexp", "avg_pool", "instance_norm", "attention"],
)
def test_rows_after_a_product_are_as_long_as_they_are(after):
    def halved(x):
        return (high := x.bfloat16().float()), (x - high).bfloat16().float()

    def by_three_products(a, b):
        (high, low), (up, down) = halved(a), halved(b)
        return after(high @ up + high @ down + low @ up)

    task, inputs = task_of(lambda a, b: after(a @ b)), draw((1 << 16, 64), (64, 32))
    assert verdict(task, inputs, lambda a, b: after(tiled_matmul(a, b))).passed
    assert not verdict(task, inputs, by_three_products).passed


def test_two_rows_that_are_normalised_over_rows():
    """Their difference is small beside their mean, whose rounding alone then moves the result."""

    def normalised(product):
        return lambda x, w: torch.softmax(
            4 * torch.nn.functional.batch_norm(product(x, w), None, None, training=True), -1
        )

    def fused(a, b):
        total = torch.zeros(a.shape[0], b.shape[1])
        for k in range(a.shape[1]):
            total = (total.double() + a[:, k : k + 1].double() * b[k].double()).float()
        return total

    x, w = draw((2, 64), (64, 32), seed=28)
    inputs = (torch.stack([4 * x[0], 4 * x[0] + x[1] / 4]), w)
    task = task_of(normalised(torch.matmul))
    assert verdict(task, inputs, normalised(fused)).passed
    assert not verdict(task, inputs, normalised(lambda x, w: x.bfloat16().float() @ w.bfloat16().float())).passed


def test_integers_next_to_ties_by_chance():
    """Halves of a row's largest, 63.5 steps: bfloat16 numbers of one sign have many."""

    def rows(quotients):
        def quantised(x):
            largest = x.float().abs().amax(-1, keepdim=True)
            return torch.round(quotients(x, largest)).to(torch.int8)

        return quantised

    task = task_of(rows(lambda x, largest: x.float() / (largest / 127)))
    for seed in (3, 4, 5):
        (x,) = draw((16, 128), seed=seed)
        inputs = (((x.abs() + 2) * -64).bfloat16(),)
        assert verdict(task, inputs, rows(lambda x, largest: x.float() * (127 / largest))).passed
        assert not verdict(task, inputs, rows(lambda x, largest: x * (127 / largest).bfloat16())).passed


def test_what_a_reference_computes_in_doubles_fails_in_float32():
    task = task_of(lambda x: (x.double().square() + 1).sqrt().sum(-1))
    inputs = draw((64, 512))
    assert verdict(task, inputs, lambda x: (x.double() * x.double() + 1).sqrt().flip(1).sum(-1)).passed

    def in_float32(x):
        return (x.square() + 1).sqrt().sum(-1).double()

    assert verdict(task, inputs, in_float32).error > 1e3
    beside_others = task_of(lambda x: ((x.double().square() + 1).sqrt().sum(-1), torch.softmax(x, -1)))
    assert verdict(beside_others, inputs, lambda x: (in_float32(x), exp2_softmax(x))).error > 1e3
    own = beside_others.reference_function
    assert verdict(beside_others, inputs, lambda x: (own(x)[0], exp2_softmax(x))).passed
    converted = task_of(lambda x: torch.softmax(x, -1).double())
    assert verdict(converted, inputs, lambda x: exp2_softmax(x).double()).passed  # computed in float32 by both


def truncated(x):
    return (x.contiguous().view(torch.int32) & -0x2000).view(torch.float32)


def test_tf32_passes_only_where_the_task_allows_it():
    inputs = draw((64, 512), (512, 64))

    def kernel(a, b):
        return truncated(a) @ truncated(b)

    assert not verdict(MATMUL, inputs, kernel).passed
    allowing = dataclasses.replace(MATMUL, tolerance=Tolerance(precision="tf32"))
    assert verdict(allowing, inputs, kernel).passed
    assert not verdict(allowing, inputs, lambda a, b: (a.bfloat16() @ b.bfloat16()).float()).passed


def test_operands_of_fewer_digits_than_tf32_has_fail_where_all_terms_are_of_one_sign():
    """There errors of truncation add up to many times what rounding makes, as bfloat16 does."""
    inputs = tuple(x.abs() for x in draw((64, 1024), (1024, 64)))
    task = dataclasses.replace(MATMUL, tolerance=Tolerance(precision="tf32"))
    assert verdict(task, inputs, lambda a, b: truncated(a) @ truncated(b)).passed
    assert verdict(task, inputs, lambda a, b: truncated(a) @ b).passed
    found = verdict(task, inputs, lambda a, b: a.bfloat16().float() @ b.bfloat16().float())
    assert not found.passed and "beside a common factor" in found.reason


def layers(a, b, cut=lambda x: x):
    return cut(torch.relu(cut(a) @ cut(b) - 4)) @ cut(b.T)


def attended(a, b, cut=lambda x: x):
    return cut(torch.softmax(cut(a) @ cut(b) / 8, -1)) @ cut(b.T)


@pytest.mark.parametrize(
    ("reference", "kernel"),
    [
        (layers, layers),
        (attended, attended),
        (lambda a, b: torch.nn.functional.scaled_dot_product_attention(a, b.T, b.T, scale=0.125), attended),
        (
            lambda a, b: (a**2).sum(1)[:, None] + (b**2).sum(0) - 2 * a @ b,
            lambda a, b, cut: (a**2).sum(1)[:, None] + (b**2).sum(0) - 2 * cut(a) @ cut(b),
        ),
    ],
)
@pytest.mark.parametrize("sign", [torch.Tensor.clone, torch.Tensor.abs])
def test_tf32_is_for_products_of_what_the_reference_computes_too(reference, kernel, sign):
    """Inputs on a grid are exact in TF32, what is computed of them is not."""
    task = task_of(reference, Tolerance(precision="tf32"))
    a, b = (sign((4 * x).round() / 4) for x in draw((96, 64), (64, 96)))
    expected = error_bounds.expect(task, (a, b))
    for cut, passes in ((truncated, True), (lambda x: x.bfloat16().float(), False)):
        if passes or reference is layers:
            found = check.compare("case", (kernel(a, b, cut),), expected, task.tolerance)
            assert found.passed is passes, (cut, found)


def remembered(x, w, u, cut=lambda x: x):
    """The hidden states of an LSTM, whose products are told apart from what is made of them."""
    state, cell, found = torch.zeros(x.shape[1], 24), torch.zeros(x.shape[1], 24), []
    for row in x:
        i, f, g, o = (cut(row) @ cut(w).T + cut(state) @ cut(u).T).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        found.append(state)
    return torch.stack(found)


def test_tf32_is_for_the_products_of_a_recurrent_layer():
    def reference(x, w, u):
        state = x.new_zeros(1, x.shape[1], 24)
        return torch.lstm(x, (state, state), (w, u), False, 1, 0.0, False, False, False)[0]

    task = task_of(reference, Tolerance(precision="tf32"))
    inputs = tuple((8 * x).round() / 16 for x in draw((6, 8, 16), (96, 16), (96, 24)))
    assert verdict(task, inputs, remembered).passed
    assert verdict(task, inputs, lambda *given: remembered(*given, truncated)).passed
    assert not verdict(task, inputs, lambda *given: remembered(*given, lambda x: x.bfloat16().float())).passed


def test_softmax_in_half_precision_fails():
    assert not verdict(SOFTMAX, draw((8, 1000)), lambda x: torch.softmax(x.half().float(), -1).half().float()).passed
    assert not verdict(SOFTMAX, draw((8, 1000)), lambda x: torch.softmax(x.bfloat16(), -1).float()).passed


def test_a_mean_of_a_million_normals_replaced_by_zero_fails():
    assert not verdict(MEAN, draw((10**6,)), lambda x: torch.zeros(())).passed


def test_what_is_wrong_beside_a_few_large_errors_fails():
    """Each gradient of a loss has a -1, whose rounding is as large as all other elements."""
    task = load("cross_entropy_backward")
    case = Case("one", CaseKind.SEARCH, {"m": 32, "v": 16384})
    logits, target, scale = inputs = task.inputs(case, torch.Generator().manual_seed(0), "cpu")
    wide, rows = logits.float(), torch.arange(len(target))

    def by(total):
        gradient = torch.exp(wide - total[:, None])
        gradient[rows, target] -= 1
        return wide.logsumexp(1) - wide[rows, target], (gradient * scale[:, None]).to(logits.dtype)

    most = wide.amax(1, keepdim=True)
    sampled = wide[:, :1024].logsumexp(1) + math.log(16)
    assert verdict(task, inputs, lambda *_: by(most[:, 0] + (wide - most).exp().sum(1).log())).passed
    result = verdict(task, inputs, lambda *_: by(sampled))
    assert "output 1 is off by" in result.reason and "where it is off least" in result.reason


def test_what_is_wrong_beside_a_few_steps_fails():
    """Steps of a floor that fall on the other side have the largest errors by far."""
    a, b, u, v = draw((256, 256), (256, 256), (256, 256), (256, 256))
    task = task_of(lambda a, b, u, v: a @ b + torch.floor(u * v * 1e4))
    assert verdict(task, (a, b, u, v), lambda a, b, u, v: tiled_matmul(a, b) + torch.floor(u * (v * 1e4))).passed
    result = verdict(
        task, (a, b, u, v), lambda a, b, u, v: a.half().float() @ b.half().float() + torch.floor(u * v * 1e4)
    )
    assert not result.passed and result.error < 1


@pytest.mark.parametrize("cast", [lambda x: x.bfloat16().float(), error_bounds._as_tf32])
def test_what_is_wrong_beside_ones_fails(cast):
    """Of a Gaussian of distances all but the diagonal is next to nothing."""

    def of(product, x):
        norms = x.square().sum(1)
        squares = norms[:, None] + norms - 2 * product
        return torch.exp(squares.fill_diagonal_(0.0).clamp(min=0.0) * (-16 / x.shape[1]))

    (x,) = inputs = draw((192, 384))
    task = task_of(lambda x: of(x @ x.T, x))
    narrow = cast(x)
    assert verdict(task, inputs, lambda x: of(tiled_matmul(x, x.T), x)).passed
    result = verdict(task, inputs, lambda x: of(narrow @ narrow.T, x))
    assert not result.passed and result.error < 1


def test_two_small_elements_may_be_far_off_where_terms_cancel_by_chance():
    (x,) = draw((4096,), dtype=torch.bfloat16)
    x[:100] /= 1024
    task = task_of(lambda x: x * 3)

    def off(count):
        def kernel(x):
            values = x * 3
            values[:count] += 0.02
            return values

        return verdict(task, (x,), kernel)

    assert off(2).passed
    assert "small elements that are wrong" in off(8).reason


def test_other_formulas_that_cancel_more_pass():
    inputs = draw((1 << 16,))
    assert verdict(task_of(torch.nn.functional.softplus), inputs, lambda x: torch.log(1 + torch.exp(x))).passed
    silu = task_of(torch.nn.functional.silu)
    assert verdict(silu, inputs, lambda x: x - x / (1 + torch.exp(x))).passed
    small = tuple(part * 0.02 for part in inputs)
    assert verdict(task_of(torch.nn.functional.elu), small, lambda x: torch.where(x > 0, x, torch.exp(x) - 1)).passed
    assert verdict(task_of(torch.tanh), small, lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)).passed
    half = tuple((part * 5).half() for part in inputs)
    tanh = (torch.tanh(half[0].float() / 2) * 2048).round() / 2048  # as exact as tanh.approx.f32
    assert verdict(silu, half, lambda x: (0.5 * x.float() * (1 + tanh)).half()).passed
    gelu = task_of(torch.nn.functional.gelu)
    assert verdict(gelu, inputs, lambda x: 0.5 * x * (1 + torch.erf(x * 2**-0.5))).passed


def test_degenerate_answers_fail():
    (x,) = draw((8, 100))
    for kernel in (torch.zeros_like, lambda x: torch.full_like(x, 0.01), lambda x: x):
        assert not verdict(SOFTMAX, (x,), kernel).passed
    one_wrong = torch.softmax(x, -1)
    one_wrong[3, 7] *= 1.01
    assert not verdict(SOFTMAX, (x,), lambda _: one_wrong).passed


def test_unwritten_elements_are_named():
    (x,) = draw((4, 8))
    output = torch.softmax(x, -1)
    output.view(torch.int32)[2, 5:] = -1
    result = verdict(SOFTMAX, (x,), lambda _: output)
    assert not result.passed and "3 of 32 elements that were never written" in result.reason
    assert "(2, 5)" in result.reason


def test_shapes_dtypes_and_counts_are_named():
    (x,) = draw((4, 8))
    y = torch.softmax(x, -1)
    assert "shape (8, 4)" in verdict(SOFTMAX, (x,), lambda _: y.t()).reason
    assert "float16" in verdict(SOFTMAX, (x,), lambda _: y.half()).reason
    assert "2 outputs" in verdict(SOFTMAX, (x,), lambda _: (y, y)).reason


def test_infinities_must_be_where_the_reference_has_them():
    task = task_of(torch.log)
    x = torch.tensor([0.0, 1.0, -1.0, 2.0])
    assert verdict(task, (x,), torch.log).passed
    assert not verdict(task, (x,), lambda x: torch.log(x.clamp(min=1e-6))).passed
    assert not verdict(task, (x,), lambda x: torch.log(x) * math.nan).passed


def test_where_the_reference_itself_gives_nan_for_an_infinity_either_may_come():
    task = task_of(lambda x: x.pow(16) - x.pow(8))
    x = torch.cat([torch.full((4,), 1e30), torch.ones(60)])
    assert verdict(task, (x,), lambda x: x.pow(16) - x.pow(8)).passed
    assert verdict(task, (x,), lambda x: x.pow(8) * (x.pow(8) - 1)).passed
    assert not verdict(task, (x,), lambda x: (x.pow(16) - x.pow(8)).where(x > 1, x * math.nan)).passed


def test_overflow_of_the_dtype_alone_binds_nobody():
    inputs = regimes.apply("large", draw((4, 512), (512, 4), dtype=torch.float16))
    assert verdict(MATMUL, inputs, tiled_matmul).passed


def test_where_only_the_dtype_overflows_a_number_must_be_the_true_one():
    task = task_of(lambda x: x.abs().sum(-1))
    (x,) = draw((3, 1 << 17), dtype=torch.float16)
    assert verdict(task, (x,), lambda x: x.float().abs().sum(-1).half()).passed
    assert verdict(task, (x,), lambda x: torch.full((3,), 65504.0).half()).passed
    result = verdict(task, (x,), lambda x: torch.zeros(3).half())
    assert not result.passed and "may overflow" in result.reason


def test_bounds_do_not_grow_with_a_flat_tensor():
    step = task_of(lambda w, g: w - 3e-5 * g)
    assert not verdict(step, draw((1 << 21,), (1 << 21,)), lambda w, g: w).passed


def test_integers_are_exact():
    task = task_of(lambda x: x.argmax(-1))
    (x,) = draw((16, 50))
    assert verdict(task, (x,), lambda x: x.argmax(-1)).passed
    result = verdict(task, (x,), lambda x: x.argmin(-1))
    assert not result.passed and "16 of 16" in result.reason


def test_integers_after_a_narrow_rounding_are_those_of_either_dtype():
    task = task_of(lambda a, b: torch.round((a @ b).float() * 30).clamp(-127, 127).to(torch.int8))
    a, b = draw((256, 256), (256, 256), dtype=torch.bfloat16)
    b = b / 16

    def steps(total):
        return torch.round(total * 30).clamp(-127, 127).to(torch.int8)

    assert verdict(task, (a, b), lambda a, b: steps(a.float() @ b.float())).passed
    assert verdict(task, (a, b), lambda a, b: steps((a.float() @ b.float()).bfloat16().float())).passed
    off = torch.arange(256) % 100 == 7
    assert not verdict(task, (a, b), lambda a, b: steps(a.float() @ b.float() + off / 30)).passed


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("regime", ["nominal", "denormals", "uneven"])
def test_eight_bit_floats_are_compared_by_what_they_are_rounded_to(name, regime):
    dtype = getattr(torch, name)
    task = task_of(lambda a, b: (a @ b).to(dtype))
    a, b = regimes.apply(regime, draw((96, 256), (256, 64), dtype=torch.bfloat16))
    expected, most = error_bounds.expect(task, (a, b)), torch.finfo(dtype).max

    def fault(total):
        return check.compare("case", (total.clamp(-most, most).to(dtype),), expected, task.tolerance).reason

    whole = a.float() @ b.float()
    assert not fault(whole) and not fault(whole.bfloat16().float())  # saturated, as a GPU converts
    if regime == "nominal":
        assert "rounded to other numbers" in fault(a[:, :246].float() @ b[:246].float())
        left_out = (torch.arange(96)[:, None] % 48 == 7) & (whole.abs() < whole.abs().max() / 4)
        assert "more than a step off" in fault(torch.where(left_out, 0.0, whole))
        assert "of 6144 elements" in fault(whole * 1.1)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_may_be_nan_where_the_reference_is(name):
    dtype = getattr(torch, name)
    task = task_of(lambda x: x.sqrt().to(dtype))
    (x,) = draw((64, 64))
    assert verdict(task, (x,), lambda x: x.sqrt().to(dtype)).passed
    assert not verdict(task, (x,), lambda x: x.abs().sqrt().to(dtype)).passed


def test_an_empty_output_of_eight_bit_floats_passes():
    task = task_of(lambda x: x.to(torch.float8_e5m2))
    assert verdict(task, draw((0, 4)), lambda x: x.to(torch.float8_e5m2)).passed


def test_a_reference_that_changes_its_inputs_does_not_change_ours():
    task = task_of(lambda x: x.mul_(2.0))
    (x,) = draw((5,))
    kept = x.clone()
    assert verdict(task, (x,), lambda x: x * 2).passed
    assert torch.equal(x, kept)


def test_seeds_are_drawn_anew_before_answers_tell_what_they_draw():
    seeds = SeedPool()
    first, other = seeds.seed("a", "nominal"), seeds.seed("b", "nominal")
    for _ in range(ANSWERS - 1):
        seeds.answered("a", shows_values=False)
    assert seeds.seed("a", "nominal") == first
    seeds.answered("a", shows_values=False)
    second = seeds.seed("a", "nominal")
    seeds.answered("a", shows_values=True)
    assert len({first, second, seeds.seed("a", "nominal")}) == 3
    assert seeds.seed("b", "nominal") == other


@pytest.mark.parametrize(
    ("timed_bytes", "answers"), [(4, 1), (64, 1), (320, 5), (64 * ANSWERS, ANSWERS), (1 << 30, ANSWERS)]
)
def test_seeds_are_drawn_anew_before_times_tell_the_outputs(timed_bytes, answers):
    seeds = SeedPool()
    for _ in range(2):
        first = seeds.seed("a", "nominal")
        for _ in range(answers):
            assert seeds.seed("a", "nominal") == first
            seeds.answered("a", shows_values=False, timed_bytes=timed_bytes)
        assert seeds.seed("a", "nominal") != first


def test_a_timed_case_that_binds_nothing_is_told_unless_check_cases_bind_nothing_either():
    def steps_of(case, generator, device):
        return torch.rand(99, generator=generator, device=device), case["steps"]

    def map_of(x, steps):
        for _ in range(steps):
            x = 3.9 * x * (1.0 - x)
        return x

    def told(checked):
        cases = (Case("few", CaseKind.CHECK, {"steps": checked}), Case("many", CaseKind.SEARCH, {"steps": 200}))
        task = dataclasses.replace(task_of(map_of), cases=cases, inputs_function=steps_of)
        inputs = task.inputs(cases[1], torch.Generator().manual_seed(1), "cpu")
        return check.unbound(task, cases[1], error_bounds.expect(task, inputs))

    assert "zeros would pass" in told(5)
    assert told(190) == ""


IN_STEPS = task_of(lambda a, b: torch.round((a @ b).float() * 30).clamp(-127, 127).to(torch.int8))


def one_step_apart(seed):
    """Inputs of IN_STEPS, and its output by other sums: one element differs. Which draws do depends on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(1000):
        a, b = (torch.randn(shape, generator=generator, dtype=torch.bfloat16) for shape in ((64, 1024), (1024, 64)))
        inputs = a * 64, b * 1024**-0.5 * 64
        output = torch.round(tiled_matmul(*inputs).float() * 30).clamp(-127, 127).to(torch.int8)
        if int((output != IN_STEPS.reference_function(*inputs)).sum()) == 1:
            return inputs, output
    raise AssertionError("no sum falls on the other side of a tie")


@pytest.mark.parametrize("seed", [32, 75])
def test_a_sum_next_to_a_tie_of_bfloat16_may_fall_on_either_side_where_most_are_saturated(seed):
    inputs, output = one_step_apart(seed)
    (wanted,) = error_bounds.expect(IN_STEPS, inputs)
    assert int((output != wanted.honest).sum()) == 1
    assert check.compare("case", (output,), (wanted,), IN_STEPS.tolerance).passed
    several = wanted.honest.clone()
    several.view(-1)[:8] -= several.view(-1)[:8].sign()
    assert not check.compare("case", (several,), (wanted,), IN_STEPS.tolerance).passed
    further = torch.where(output != wanted.honest, 3 * output - 2 * wanted.honest, output)
    assert not check.compare("case", (further,), (wanted,), IN_STEPS.tolerance).passed


WRONG = {
    "maxima of sums from zero": (lambda x, y: (x + y).amax(-1), lambda x, y: (x + y).amax(-1).clamp(min=0)),
    "maxima of differences from zero": (lambda x, y: (y - x).amax(-1), lambda x, y: (y - x).amax(-1).clamp(min=0)),
    "minima of differences from zero": (lambda x, y: (x - y).amin(-1), lambda x, y: (x - y).amin(-1).clamp(max=0)),
    "the second's sums of powers from zero": (
        lambda x, y: torch.logsumexp(y, -1),
        lambda x, y: torch.logsumexp(torch.cat([y, torch.full_like(y[:, :1], -100.0)], -1), -1),
    ),
    "halves rounded up": (
        lambda x, y: torch.round(x * 16).clamp(-128, 127).to(torch.int8),
        lambda x, y: torch.floor(x * 16 + 0.5).clamp(-128, 127).to(torch.int8),
    ),
    "divides without a guard": (
        lambda x, y: torch.nn.functional.normalize(x, dim=-1),
        lambda x, y: (x / x.norm(dim=-1, keepdim=True)).nan_to_num(),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_confirmation_finds(name):
    reference, wrong = WRONG[name]
    task = task_of(reference)

    drawn = {regime: regimes.apply(regime, draw((8, 100), (8, 100))) for regime in regimes.REGIMES}
    found = {regime for regime, inputs in drawn.items() if not verdict(task, inputs, wrong).passed}
    assert found and not found & {*regimes.SEARCH, "positive", "one sign", "zeros"}


def test_a_regime_may_leave_the_domain():
    roots, inputs = task_of(lambda x: 1 - x.sqrt()), (torch.tensor([4.0, -1.0, 9.0]),)

    def passes(values, of=inputs, **how):
        return check.compare("case", [torch.tensor(values)], error_bounds.expect(roots, of, **how), Tolerance()).passed

    assert passes([-1.0, math.nan, -2.0]) and not passes([-1.0, 7.0, -2.0])
    for outside in (math.nan, 7.0):
        assert passes([-1.0, outside, -2.0], is_nominal=False)
        assert not passes([-1.0, outside, math.nan], is_nominal=False)
        assert not passes([-1.0, outside, -1.9], is_nominal=False)
    assert not passes([-1.0, 7.0], of=(torch.tensor([4.0, math.nan]),), is_nominal=False)  # it was drawn


@pytest.mark.parametrize(
    ("dtype", "holds", "not_these"),
    [
        (torch.uint8, [-0.9, 255.9], [-1.0, 256.0, math.nan]),
        (torch.int32, [-2147483648.5, 2147483647.5], [-2147483649.0, 2147483648.0, math.inf]),
        (torch.int64, [-(2.0**63), 2.0**63 - 1024], [-(2.0**63) - 2048, 2.0**63]),
        (torch.bool, [-math.inf, math.nan, 1e9], []),
    ],
)
def test_conversions_of_what_an_integer_does_not_hold(dtype, holds, not_these):
    def undefined(*values):
        given = torch.tensor(values, dtype=torch.float64)
        there = torch.empty(given.shape, dtype=dtype)
        found = [conversions(lambda: given.to(dtype)), conversions(lambda: there.copy_(given))]
        assert all(one.any == (dtype is not torch.bool) for one in found)
        assert len({one.undefined for one in found}) == 1
        return found[0].undefined

    assert not undefined(*holds) and all(undefined(0.0, value) for value in not_these)
    assert not conversions(lambda: torch.ones(3).double() + torch.arange(3)).any
