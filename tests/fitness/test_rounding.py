"""What roundings inside a reference are worth: honest kernels that nothing else explains, and nobody else's gain."""

import dataclasses
import math
import weakref

import pytest
import torch
import torch.nn.functional as F

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness import check, error_bounds, regimes
from evo_kernel.fitness.correctness.rounding import PATTERN, Rounding, signs
from evo_kernel.tasks.task import Tolerance
from tests.fitness.test_check import MATMUL, RMSNORM, SOFTMAX, chain_matmul, draw, task_of, truncated

UNIT = 2.0**-24
WITHOUT = dataclasses.replace(error_bounds.RECIPE, rounded_patterns=0)


def ratio(task, inputs, output, recipe=error_bounds.RECIPE):
    return check.compare("case", (output,), error_bounds.expect(task, inputs, recipe), task.tolerance).error


def rows_normalised(rows):
    """As kernels do it: the quotient of a sum by a reciprocal, which is off by a rounding now and then."""
    count = torch.tensor(1.0 / rows.shape[1])
    mean = rows.sum(1, keepdim=True) * count
    centred = rows - mean
    return centred * torch.rsqrt((centred * centred).sum(1, keepdim=True) * count + 1e-5)


def group_normalised(x, groups, weight, bias):
    made = rows_normalised(x.reshape(x.shape[0] * groups, -1)).view(x.shape)
    return made * weight[:, None, None] + bias[:, None, None]


def convolved(x, weight):
    """One product after the other in a single chain, as a tile of a GPU kernel adds them up."""
    size = weight.shape[-1]
    columns = F.unfold(x, size).permute(0, 2, 1)
    made = chain_matmul(columns.reshape(-1, columns.shape[-1]), weight.reshape(weight.shape[0], -1).t())
    return made.view(*columns.shape[:2], -1).permute(0, 2, 1).reshape(len(x), len(weight), x.shape[2] - size + 1, -1)


def sigmoid_reference(x, weight, bias, scale, norm_weight, norm_bias):
    made = torch.sigmoid((F.conv2d(x, weight) + bias) * scale)
    return F.group_norm(made, 8, norm_weight, norm_bias)


def sigmoid_kernel(x, weight, bias, scale, norm_weight, norm_bias):
    made = 1.0 / (1.0 + torch.exp(-((convolved(x, weight) + bias) * scale)))
    return group_normalised(made * (1.0 + 2.0**-23), 8, norm_weight, norm_bias)  # a quotient that is one step off


def tanh_reference(x, weight, norm_weight, norm_bias):
    made = torch.tanh(F.batch_norm(F.conv2d(x, weight), None, None, norm_weight, norm_bias, training=True))
    return F.group_norm(F.max_pool2d(made, 2), 8, norm_weight, norm_bias)


def tanh_kernel(x, weight, norm_weight, norm_bias):
    made = convolved(x, weight).transpose(0, 1)
    made = rows_normalised(made.reshape(made.shape[0], -1)).view(made.shape).transpose(0, 1)
    made = torch.tanh(made * norm_weight[:, None, None] + norm_bias[:, None, None])
    return group_normalised(F.max_pool2d(made, 2), 8, norm_weight, norm_bias)


def sigmoid_inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.rand(16, 7, 3, 3, generator=generator) * 2 - 1) / math.sqrt(63)
    tall = [torch.randn(16, 1, 1, generator=generator) for _ in range(2)]
    return torch.rand(3, 7, 17, 19, generator=generator), weight, *tall, torch.ones(16), torch.zeros(16)


def tanh_inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.rand(16, 39, 5, 5, generator=generator) * 2 - 1) / math.sqrt(975)
    return torch.rand(2, 39, 20, 20, generator=generator), weight, torch.ones(16), torch.zeros(16)


CHAINS = pytest.mark.parametrize(
    ("reference", "kernel", "made"),
    [(sigmoid_reference, sigmoid_kernel, sigmoid_inputs), (tanh_reference, tanh_kernel, tanh_inputs)],
)


@CHAINS
@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_honest_chains_with_norms_pass_in_every_regime(reference, kernel, made, regime):
    for seed in range(2):
        inputs = regimes.apply(regime, made(seed))
        assert ratio(task_of(reference), inputs, kernel(*inputs)) < 0.7, (regime, seed)


def test_a_group_without_variance_needs_roundings_inside():
    inputs = tuple((x * 2).round() / 2 for x in sigmoid_inputs(2))
    output = sigmoid_kernel(*inputs)
    assert ratio(task_of(sigmoid_reference), inputs, output, WITHOUT) > 1.0
    assert ratio(task_of(sigmoid_reference), inputs, output) < 0.7


def test_a_softmax_of_large_values_has_bounds_that_no_pattern_of_signs_makes_vanish():
    """Near 0 or 1 but in a row or two: there one pattern of perturbations cancels as often as not."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        powers = x * 1.4426950408889634
        powers = torch.exp2(powers - powers.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True)

    for seed in range(60):
        x = 64 * torch.randn(4, 127, generator=torch.Generator().manual_seed(seed))
        assert ratio(SOFTMAX, (x,), scaled(x)) < 1.0, seed


@pytest.mark.parametrize("seed", range(6))
def test_what_two_rows_cancel_to_is_no_measure_of_a_tensor_cores_error(seed):
    """Gradients where a softmax is 0 or 1: differences of equal sums, times another operand."""

    def reference(a, b, c):
        return (((a * b).sum(-1) - (a.flip(-1) * b.flip(-1)).sum(-1))[:, None] * c,)

    def on_tensor_cores(a, b):  # 16 products are added at a time, and cut off
        total = torch.zeros(len(a), dtype=torch.float64)
        for part in (a.double() * b.double()).unflatten(-1, (-1, 16)).sum(-1).T:
            mantissa, exponent = torch.frexp(total + part)
            total = torch.ldexp(torch.trunc(mantissa * 2**23) / 2**23, exponent)
        return total.float()

    generator = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randn(2, size, generator=generator) * scale for size, scale in ((128, 64), (128, 64), (512, 1)))
    expected = error_bounds.expect_by(
        lambda change: reference(*map(change, (a, b, c))), (a, b, c), "ieee", is_nominal=False
    )
    output = (on_tensor_cores(a, b) - (a * b).sum(-1))[:, None] * c
    assert check.compare("case", (output,), expected, Tolerance()).error <= 1


def test_a_mean_of_two_may_be_off_by_a_rounding():
    """Two values normalised are 1 and -1 whatever they are, unless their mean is rounded."""
    task = task_of(lambda x: F.group_norm(x, 16))
    inputs = (torch.rand(2, 32, generator=torch.Generator().manual_seed(3)) + 4.0,)
    mean = inputs[0].view(32, 2).mean(1, keepdim=True) * (1.0 + 2.0**-23)
    centred = inputs[0].view(32, 2) - mean
    output = (centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-5)).view(2, 32)
    assert ratio(task, inputs, output, WITHOUT) > ratio(task, inputs, output)
    assert ratio(task, inputs, output) < 0.7


@CHAINS
@pytest.mark.parametrize("narrow", [truncated, lambda x: x.bfloat16().float(), lambda x: x.half().float()])
def test_narrow_operands_before_a_norm_fail(reference, kernel, made, narrow):
    inputs = made(0)
    output = kernel(narrow(inputs[0]), narrow(inputs[1]), *inputs[2:])
    assert ratio(task_of(reference), inputs, output) > 2.0


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize(
    ("task", "shapes"),
    [
        (MATMUL, [(33, 256), (256, 17)]),
        (SOFTMAX, [(7, 1031)]),
        (RMSNORM, [(9, 512), (512,)]),
        (task_of(lambda x, w, b: F.layer_norm(x, (512,), w, b)), [(9, 512), (512,), (512,)]),
        (task_of(F.gelu), [(9, 512)]),
        (task_of(lambda x: x.sum()), [(64, 64, 64)]),
    ],
)
def test_ordinary_bounds_do_not_grow(task, shapes, regime):
    inputs = regimes.apply(regime, draw(*shapes))
    for new, old in zip(error_bounds.expect(task, inputs), error_bounds.expect(task, inputs, WITHOUT), strict=True):
        assert new.largest <= 1.03 * old.largest and new.frobenius <= 1.03 * old.frobenius


def rounded(work, *inputs, growth=0.0):
    with Rounding(UNIT, growth, 1 << 30):
        return work(*inputs)


@pytest.mark.parametrize(
    "work",
    [torch.relu, lambda x: x.clone()[2:].t(), lambda x: x.max(1).values, torch.zeros_like, lambda x: torch.cat([x, x]),
     lambda x: torch.where(x > 0, x, 0.0), lambda x: F.max_pool2d(x[None], 2), lambda x: x.expand(3, *x.shape).clone(),
     lambda x: x > 0, lambda x: x.logsumexp(1), lambda x: x.split(4)[1]],
)  # fmt: skip
def test_what_is_exact_stays(work):
    x = torch.randn(8, 10, dtype=torch.float64)
    assert torch.equal(rounded(work, x), work(x))


@pytest.mark.parametrize(
    "work",
    [torch.sigmoid, lambda x: x + 1.0, lambda x: x.clone().mul_(3.0), lambda x: x.t().exp(),
     lambda x: x.unsqueeze(1).expand(-1, 3, -1).exp(), lambda x: x[:, ::2] * x[:, 1::2]],
)  # fmt: skip
@pytest.mark.parametrize("rows", [4, 2_000_003])
def test_everything_else_goes_up_or_down_by_one_rounding(work, rows):
    x = torch.rand(rows, 2, dtype=torch.float64) + 0.5
    made, exact = rounded(work, x), work(x)
    moved = (made / exact - 1.0) / UNIT
    assert made.stride() == exact.stride()
    assert torch.allclose(moved.abs(), torch.ones_like(moved), atol=1e-6)
    if rows > 4:
        assert abs(float(moved.mean())) < 0.01
        one, other = moved.reshape(-1)[: rows // 2 * 2].chunk(2)
        assert abs(float((one * other).mean())) < 0.01  # no sign repeats where sizes would have it


def test_products_and_sums_are_worth_more():
    a = torch.rand(4, 400, dtype=torch.float64)
    for work in (lambda x: x @ x.T, lambda x: F.conv2d(x.view(1, 4, 20, 20), x.view(1, 4, 20, 20)[:, :, :10, :10])):
        moved = (rounded(work, a, growth=0.25) / work(a) - 1.0).abs() / UNIT
        assert torch.allclose(moved, torch.full_like(moved, 1.0 + 0.25 * 20), rtol=1e-3)
    with Rounding(UNIT, 0.25, longest=100):
        total = a.sum()
    assert abs(float(total / a.sum()) - 1.0) / UNIT == pytest.approx(1.0 + 0.25 * 10, rel=1e-3)


@pytest.mark.parametrize("norm", [torch.native_batch_norm, torch.ops.aten.cudnn_batch_norm.default])
def test_the_mean_of_two_rows_is_rounded_in_their_norm(norm):
    """cuDNN's operation, which a GPU has for doubles too, is decomposed before it is looked for."""
    x = torch.tensor([[1000.0], [1000.5]], dtype=torch.float64)
    ones, zeros = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    made = rounded(lambda x: norm(x, ones, zeros, None, None, True, 0.1, 1e-12)[0], x)
    assert 100 * UNIT < abs(float(made.sum())) < 1e5 * UNIT


def test_a_reference_that_cannot_be_watched_is_believed():
    def reference(x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not while somebody looks")
        return torch.sigmoid(x)

    task, inputs = task_of(reference), draw((4, 8))
    assert ratio(task, inputs, torch.sigmoid(*inputs)) <= 1.0
    with pytest.raises(TaskError):
        task_of(lambda x: x.nothing()).outputs(*inputs)


def _attention(x):
    heads = x.view(len(x), 4, -1).transpose(0, 1)[None]
    return F.scaled_dot_product_attention(heads, heads, heads)[0].transpose(0, 1).reshape(x.shape)


def _resampled(x):
    places = torch.stack(torch.meshgrid(*(torch.linspace(-1, 1, n, dtype=x.dtype) for n in x.shape), indexing="ij"), -1)
    return F.grid_sample(x[None, None], places.flip(-1)[None], "nearest", align_corners=True)[0, 0]


def _gated(x):
    columns = torch.arange(0, x.shape[1], 2).expand(len(x), -1)
    return x.scatter(1, columns, x[:, ::2] * 0.5) * (x > 0).any(1, keepdim=True)


@pytest.mark.parametrize(
    "follows",
    [
        *(lambda x: x, torch.relu, F.gelu, F.hardswish),
        *(_attention, _gated, _resampled, lambda x: x - x.quantile(0.5)),
        lambda x: torch.lerp(x, x.abs(), 0.5),
        lambda x: torch.addcmul(x, x, x, value=0.01),
        lambda x: torch.zeros_like(x).index_add(0, torch.arange(len(x)), x),
        lambda x: torch.logcumsumexp(x, 1),
    ],
)
def test_what_cancels_in_one_layer_does_not_allow_tf32_in_several(follows):
    """Without signs six layers of 192 make numbers ten thousand times larger."""

    def layers(x, weights, product=torch.matmul):
        for weight in weights * (2 / weights.shape[1]) ** 0.5:
            x = follows(product(x, weight))
        return x

    def tf32(a, b):
        return error_bounds._as_tf32(a) @ error_bounds._as_tf32(b)

    task, inputs = task_of(layers), draw((64, 192), (6, 192, 192))
    assert ratio(task, inputs, layers(*inputs, product=chain_matmul)) < 0.25
    assert ratio(task, inputs, layers(*inputs, product=tf32)) > 10
    without = dataclasses.replace(error_bounds.RECIPE, chained=math.inf)
    assert ratio(task, inputs, layers(*inputs, product=tf32), without) < 1


class Live(torch.utils._python_dispatch.TorchDispatchMode):
    """How many bytes the tensors hold that operations returned, and the most they ever held; not those of `inputs`."""

    def __init__(self, inputs):
        super().__init__()
        self.inputs = [x.untyped_storage() for x in inputs]
        self.sizes, self.now, self.peak = {id(storage): 0 for storage in self.inputs}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for part in made if isinstance(made, (list, tuple)) else (made,):
            if isinstance(part, torch.Tensor) and (key := id(storage := part.untyped_storage())) not in self.sizes:
                self.sizes[key] = storage.nbytes()
                self.now += self.sizes[key]
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.gone, key)
        return made

    def gone(self, key):
        self.now -= self.sizes.pop(key)


@pytest.mark.parametrize(
    ("reference", "count", "most"),
    [(F.smooth_l1_loss, 2, 3.2), (lambda a, b: a + b, 2, 5.3), (lambda a: a.sum(), 1, 2.6)],
)
def test_making_a_reference_takes_a_few_times_its_inputs(reference, count, most, monkeypatch):
    """float64 copies of all inputs, one run at a time: a loss of two inputs of 4 GB each fits beside its kernel."""
    monkeypatch.setattr("evo_kernel.fitness.correctness.rounding.PATTERN", 1009)
    monkeypatch.setattr("evo_kernel.fitness.correctness.error_bounds.AT_ONCE_ON_CPU", 4096)
    inputs = draw(*[(1024, 1024)] * count)
    with Live(inputs) as live:
        made = error_bounds.expect(task_of(reference), inputs)
    assert live.peak < most * sum(x.nbytes for x in inputs)
    outputs = (made[0].truth, made[0].honest)
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in outputs)


def test_signs_are_those_of_their_pattern_whatever_part_is_asked_for():
    whole = signs(0, PATTERN + 9)
    assert whole.shape == (PATTERN,) and set(whole.unique().tolist()) == {-1, 1}
    assert whole.double().mean().abs() < 0.01
    assert torch.equal(signs(0, 99), whole[:99]) and not torch.equal(signs(1, 99), whole[:99])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_instruction_may_take_denormal_operands_for_zeros(dtype):
    task, values = task_of(torch.rsqrt), (torch.rand(16, 8, dtype=torch.float32) + 0.1).to(dtype)
    (inputs,) = regimes.apply("denormals", (values,))
    tiny = inputs.abs() < torch.finfo(dtype).smallest_normal
    roots = torch.where(tiny, torch.inf, torch.rsqrt(inputs))
    assert ratio(task, (inputs,), roots) <= 1.0
    assert ratio(task, (inputs,), torch.where(tiny, roots, roots * 1.1)) > 1.0


def test_quantised_values_next_to_a_half_may_be_rounded_to_either_side():
    """As many as differ between honest computations, by as much; and nothing where ties decide."""

    def quantised(x):
        return torch.round(x / (x.abs().amax(-1, keepdim=True) / 127.0)).to(torch.int8)

    task, x = task_of(quantised), draw((256, 4096))[0]
    kernel = torch.round(x * (1.0 / (x.abs().amax(-1, keepdim=True) / 127.0))).to(torch.int8)
    (expected,) = error_bounds.expect(task, (x,))
    assert 1 <= expected.frobenius < 100 and expected.largest == 1
    assert ratio(task, (x,), kernel) <= 1.0
    some = quantised(x).clone()
    some[::2, 5] -= 1
    assert ratio(task, (x,), some) > 1.0
    two = quantised(x).clone()
    two[0, 0] += 2
    assert ratio(task, (x,), two) > 1.0
    ties = torch.tensor([[1.0, 1.0]] * 64)
    (expected,) = error_bounds.expect(task_of(lambda x: x.argmax(-1)), (ties,))
    assert expected.frobenius == expected.largest == 0.0


def test_zero_points_are_added_exactly():
    """What is between steps and is cut off tells nothing: no kernel adds whole numbers up to anything else."""

    def quantised(x, quotient):
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        scale = (high - low) / 255.0
        return (torch.round(quotient(x, scale)) + torch.round(quotient(-low, scale))).to(torch.uint8)

    task, x = task_of(lambda x: quantised(x, torch.div)), draw((64, 1024))[0].bfloat16().float()
    (expected,) = error_bounds.expect(task, (x,))
    assert 1 <= expected.frobenius < 0.01 * x.numel()
    assert ratio(task, (x,), quantised(x, lambda a, b: a * (1.0 / b))) <= 1.0


def nibbles(x, quotient):
    groups = x.view(-1, 32)
    steps = torch.round(quotient(groups, groups.abs().amax(1, keepdim=True) / 7.0)).int().view(x.shape) & 15
    return (steps[:, ::2] | steps[:, 1::2] << 4).to(torch.uint8)


def with_zero_points(x, quotient):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low) / 255.0
    steps = torch.round(quotient(x, scale)) + torch.round(quotient(-low, scale))
    return steps.clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("quantised", [nibbles, with_zero_points])
@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.float()])
@pytest.mark.parametrize("seed", range(4))
def test_where_ties_decide_what_is_inexact_may_fall_on_either_side(quantised, convert, seed):
    x = regimes.apply("ties", draw((33, 1024), seed=seed))[0]
    task = task_of(lambda x: quantised(convert(x), torch.div))
    (expected,) = error_bounds.expect(task, (x,))
    assert expected.frobenius == 0.0  # so many are next to ties
    for quotient in (lambda a, b: a * (1.0 / b), lambda a, b: (a.double() / b.double()).float()):
        assert ratio(task, (x,), quantised(x, quotient)) <= 1.0
    other = quantised(x, torch.div)
    place = int((expected.undecided == 0).flatten().int().argmax())
    other.view(-1)[place] ^= 1
    assert ratio(task, (x,), other) > 1.0
    (plain,) = draw((33, 1024), seed=seed)  # among numbers that are all whole or next to ties it is on one side
    assert ratio(task, (plain,), quantised(plain, lambda a, b: a * (1.0 - 2.0**-7) / b)) > 1.0


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.float()])
@pytest.mark.parametrize("scale", [lambda x: 0.125, lambda x: x.abs().amax(-1, keepdim=True).clamp(max=0.5) / 4])
def test_exact_ties_decide(convert, scale):
    task = task_of(lambda x: torch.round(convert(x) / scale(x)).to(torch.int16))
    x = regimes.apply("ties", draw((33, 1024)))[0]
    assert ratio(task, (x,), torch.round(x / scale(x)).to(torch.int16)) <= 1.0
    assert ratio(task, (x,), torch.floor(x / scale(x) + 0.5).to(torch.int16)) > 1.0
