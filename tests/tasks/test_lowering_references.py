"""The table of references that lowering is held against, and checks that it stays what it claims to be.

Each entry: a reference and two sets of inputs of different shapes, which one generated module must serve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Entry:
    name: str
    reference: Callable
    draw: Callable[[torch.Generator, tuple[int, ...]], tuple]
    shapes: tuple[tuple[int, ...], ...]


TABLE: dict[str, Entry] = {}
HALF = torch.float16
BF16 = torch.bfloat16


def entry(draw, *shapes):
    def add(function):
        TABLE[function.__name__] = Entry(function.__name__, function, draw, shapes)
        return function

    return add


def normal(generator, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=generator).to(dtype)


def whole(generator, high, *shape):
    return torch.randint(0, high, shape, generator=generator)


def matrix(g, s, dtype=torch.float32):
    return (normal(g, *s, dtype=dtype),)


def half_matrix(g, s):
    return matrix(g, s, HALF)


def bf16_matrix(g, s):
    return matrix(g, s, BF16)


def with_row(g, s):
    return normal(g, *s), normal(g, s[-1])


def with_rows(g, s):
    return normal(g, *s), normal(g, s[-1]), normal(g, s[-1])


def two(g, s):
    return normal(g, *s), normal(g, *s)


def linear_inputs(g, s):
    *lead, k, n = s
    return normal(g, *lead, k), normal(g, n, k) / k**0.5, normal(g, n)


def half_linear_inputs(g, s):
    return tuple(value.to(HALF) for value in linear_inputs(g, s))


def heads(g, s):
    return tuple(normal(g, *s) for _ in range(3))


SMALL = ((5, 37), (3, 130))
CUBES = ((2, 5, 33), (3, 4, 17))


@entry(matrix, *SMALL)
def softmax(x):
    return torch.softmax(x, dim=-1)


@entry(matrix, (130, 37), (3, 130))
def column_sums_and_extremes(x):
    return x.sum(0), x.amax(0)


@entry(matrix, (2, 70_001), (3, 5))
def softmax_long(x):
    return torch.softmax(torch.where(x < 0.1, -torch.inf, x), dim=-1)


@entry(bf16_matrix, *SMALL)
def softmax_bf16(x):
    return torch.softmax(x, dim=-1)


@entry(matrix, *CUBES)
def softmax_middle(x):
    return torch.softmax(x, dim=1)


@entry(half_matrix, *CUBES)
def log_softmax(x):
    return F.log_softmax(x, dim=-1)


@entry(with_row, *SMALL)
def rmsnorm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@entry(lambda g, s: tuple(v.to(BF16) for v in with_row(g, s)), *CUBES)
def rmsnorm_cast(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


@entry(with_row, *CUBES)
def rms_norm_functional(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, eps=1e-6)


@entry(with_rows, *CUBES)
def layernorm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@entry(lambda g, s: tuple(v.to(BF16) for v in with_rows(g, s)), *SMALL)
def layernorm_bf16(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@entry(with_rows, *SMALL)
def layernorm_by_hand(x, weight, bias):
    mean = x.mean(-1, keepdim=True)
    var = x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias


@entry(lambda g, s: (*with_rows(g, s), normal(g, *s)), *CUBES)
def residual_norm(x, weight, bias, residual):
    total = x + residual
    return F.layer_norm(total, (total.size(-1),), weight, bias), total


@entry(
    lambda g, s: (normal(g, s[0], s[1]), normal(g, s[2], s[1]), normal(g, s[2]), normal(g, s[1], s[2])),
    (5, 19, 40),
    (33, 16, 7),
)
def gelu_mlp(x, up, bias, down):
    return F.gelu(x @ up.t() + bias) @ down.t()


@entry(linear_inputs, (2, 5, 18, 24), (1, 7, 33, 5), (3, 2, 40, 17))
def linear_silu(x, weight, bias):
    return F.silu(F.linear(x, weight, bias))


@entry(linear_inputs, (17, 32, 1), (40, 18, 1))
def linear_to_one(x, weight, bias):
    return torch.cat([F.linear(x, weight, bias), F.linear(x, weight), F.linear(x[:1], weight, bias).relu()])


@entry(half_linear_inputs, (17, 32, 24), (40, 18, 33))
def linear_gelu_half(x, weight, bias):
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


@entry(
    lambda g, s: (normal(g, s[0], s[1]), normal(g, s[2], s[1]), normal(g, s[2], s[1]), normal(g, s[1], s[2])),
    (5, 19, 40),
    (33, 16, 7),
)
def swiglu(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


@entry(heads, (2, 3, 17, 16), (1, 2, 9, 8), (3, 2, 5, 24))
def attention_by_hand(q, k, v):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    t = q.shape[-2]
    mask = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v


@entry(lambda g, s: tuple(v.to(HALF) for v in heads(g, s)), (2, 3, 17, 16), (2, 2, 9, 8))
def attention_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@entry(lambda g, s: (normal(g, *s, 8), *(normal(g, *one) for one in ((24, 8), (24,), (8, 8), (8,)))), (5, 3), (4, 2))
def attention_of_a_module(x, w, b, out, out_b):
    """As nn.MultiheadAttention calls it: PyTorch chooses the attention out of a function mode's sight."""
    options = {"need_weights": False}
    return F.multi_head_attention_forward(x, x, x, 8, 2, w, b, None, None, False, 0.0, out, out_b, **options)[0]


@entry(lambda g, s: (normal(g, s[0], s[1], s[2]), normal(g, s[2], s[2] * 3)), (2, 9, 12), (3, 5, 24))
def attention_packed(x, w):
    b, t, c = x.shape
    q, k, v = (x @ w).split(c, dim=-1)
    q, k, v = (part.view(b, t, 3, c // 3).transpose(1, 2) for part in (q, k, v))
    weights = torch.softmax(q @ k.transpose(-2, -1) / (c // 3) ** 0.5, dim=-1)
    return (weights @ v).transpose(1, 2).reshape(b, t, c)


@entry(lambda g, s: (normal(g, *s), whole(g, s[1], s[0])), *SMALL)
def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


@entry(lambda g, s: (normal(g, *s), whole(g, s[1], s[0])), *SMALL)
def cross_entropy_by_hand(logits, target):
    return torch.logsumexp(logits, -1) - logits.gather(1, target[:, None]).squeeze(1)


@entry(with_row, *CUBES)
def bias_relu(x, bias):
    return torch.relu(x + bias)


@entry(matrix, (3, 4, 5, 6), (2, 7, 3, 5))
def mean_over_dims(x):
    return x.mean(dim=(1, 3))


@entry(matrix, (3, 4, 5, 6), (2, 7, 3, 5))
def mean_over_spatial(x):
    return x.mean(dim=(2, 3), keepdim=True)


@entry(matrix, *CUBES)
def sums(x):
    return x.sum(), x.sum(0), x.sum(1), x.sum((0, 1)), x.sum((0, 2))


@entry(matrix, *CUBES)
def extremes(x):
    return x.amax(-1), x.amin((0, 1)), x.max(), x.max(1).values, x.min(-1).indices


@entry(lambda g, s: (normal(g, *s, dtype=torch.float64),), *SMALL)
def extremes_in_float64(x):
    return x.relu(), x.clamp(-0.3, 0.7), x.amax(-1), x.amin(0), x.max(-1).values, x.argmin(-1), F.softplus(x)


@entry(lambda g, s: (whole(g, 9, *s), normal(g, *s, dtype=torch.bfloat16)), *SMALL)
def extremes_of_integers_and_halves(n, x):
    return n.relu(), n.clamp(2, 5), n.amax(-1), n.min(-1).values, n.sort(-1)[0], x.relu(), x.amax(0), x.min(1).indices


@entry(lambda g, s: (normal(g, *s), whole(g, s[1], s[0], 6), normal(g, s[0], 6)), *SMALL)
def extremes_that_are_scattered(x, index, src):
    return x.scatter_reduce(1, index, src, "amax"), x.scatter_reduce(1, index, src, "amin")


@entry(matrix, *CUBES)
def argmax(x):
    return x.argmax(-1), x.argmin(1, keepdim=True), x.argmax()


@entry(lambda g, s: (whole(g, 3, *s),), *SMALL)
def argmax_ties(x):
    return x.argmax(-1), (x == 2).any(-1), (x > 0).all(1), x.sum(-1), x.prod(-1)


@entry(matrix, *SMALL)
def l2_normalise(x):
    return F.normalize(x, p=2.0, dim=-1)


@entry(lambda g, s: (normal(g, s[0], s[1], s[2]), normal(g, s[0], s[2], s[1])), (2, 17, 20), (3, 33, 8))
def batched_matmul(a, b):
    return torch.bmm(a, b)


def around_vectors(g, s):
    m, k, n = s
    return normal(g, m, k), normal(g, k, 1), normal(g, k, n), normal(g, n), normal(g, 3, 1, k), normal(g, 3, k, n)


@entry(around_vectors, (5, 9000, 37), (6, 70, 4))
def products_with_vectors(a, column, b, bias, rows, batch):
    both = torch.addmm(bias, column.T, b, beta=0.5, alpha=2), torch.addmm(bias[:1], b.T, column)
    return (
        a @ column,
        *both,
        torch.bmm(rows, batch),
        torch.baddbmm(batch[:, :1], rows, batch),
        batch[:, :5].mT @ rows.mT[:, :5],
    )


@entry(lambda g, s: (normal(g, *s), normal(g, *s)), (2, 3, 17, 8), (1, 2, 9, 16), (4, 2, 5, 6))
def einsum_scores(q, k):
    return torch.einsum("bhid,bhjd->bhij", q, k)


@entry(lambda g, s: (normal(g, s[0], s[1]), normal(g, s[1])), *SMALL)
def matrix_vector(a, v):
    return a @ v


@entry(lambda g, s: (normal(g, s[0], s[1]), whole(g, s[0], s[2], 3)), (11, 8, 5), (23, 17, 4))
def embedding(weight, tokens):
    return F.embedding(tokens, weight)


@entry(lambda g, s: (normal(g, s[0], s[1]), normal(g, s[0], s[2]), normal(g, s[0], 3)), (5, 8, 5), (7, 17, 4))
def cat(a, b, c):
    return torch.cat([a, b, c], dim=1), torch.cat([a, a], 0)


@entry(matrix, (5, 37), (3, 1100))
def cumsum(x):
    return torch.cumsum(x, dim=-1)


@entry(matrix, *CUBES)
def cumsum_middle(x):
    return torch.cumsum(x, dim=1), torch.cumprod(x, dim=-1)


@entry(lambda g, s: (normal(g, *s), normal(g, *s) > 0), *SMALL)
def masked_fill(x, mask):
    return x.masked_fill(mask, -1e9), torch.where(mask, x, 0.0), x * mask


@entry(matrix, *CUBES)
def variance(x):
    return x.var(-1), x.std(dim=1), x.var((0, 2), unbiased=False), torch.var_mean(x, dim=-1)[1]


@entry(matrix, *SMALL)
def clamps(x):
    return x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clamp_max(0.2), F.relu6(x), F.hardtanh(x)


@entry(lambda g, s: (normal(g, *s).abs() + 0.1,), *SMALL)
def powers(x):
    return x**2, x**3, x**0.5, x.pow(1.7), 2.0**x, x**-1, torch.pow(x, x), x.reciprocal()


@entry(lambda g, s: (normal(g, *s) * 1e-3, normal(g, *s) * 3), *SMALL)
def activations(small, x):
    return tuple(
        f(value)
        for value in (small, x)
        for f in (torch.tanh, torch.sigmoid, F.softplus, F.elu, F.leaky_relu, F.mish, F.hardswish, torch.expm1)
    )


@entry(lambda g, s: (normal(g, *s).abs() + 0.01,), *SMALL)
def logarithms(x):
    return torch.log(x), torch.log1p(x), torch.log2(x), torch.log10(x), torch.exp(x), torch.erf(x), torch.sqrt(x)


@entry(lambda g, s: (normal(g, *s).abs() + 0.01, normal(g, *s)), *SMALL)
def special(x, y):
    inside = torch.tanh(y)
    circular = inside.asin(), inside.acos(), y.atan(), torch.atan2(y, x), torch.hypot(x, y)
    hyperbolic = y.asinh(), (x + 1).acosh(), (inside * 0.9).atanh()
    bessel = torch.special.i0(y), torch.special.bessel_j1(y), torch.special.bessel_y0(x)
    return *circular, *hyperbolic, *bessel, torch.lgamma(x), torch.erfinv(inside * 0.9), torch.special.erfcx(y)


@entry(lambda g, s: (normal(g, *s) * 4,), *SMALL)
def rounding(x):
    return x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), x.abs(), x.frac(), x // 1.5, x % 1.5


@entry(lambda g, s: (normal(g, *s, dtype=BF16), normal(g, *s), whole(g, 9, *s) - 4), *SMALL)
def promotion(a, b, c):
    return a + b, a * 1.5, c / 2, c * 2 + a, a > b, c // 3, c % 3, (c > 0) & (b > 0), c.to(HALF), a + c


@entry(matrix, *CUBES)
def views(x):
    b, t, c = x.shape
    folded = x.permute(2, 0, 1).reshape(c, b * t) * 2
    return folded, x.transpose(0, 1)[1:, :, ::2] + 1, x[:, -1], x.unsqueeze(1).expand(b, 3, t, c).sum(1)


@entry(matrix, *SMALL)
def in_place(x):
    y = x.clone()
    y[:, 2:4] *= 2
    y += 1
    y[0] = 0.0
    return y.mul_(3)


@entry(lambda g, s: (normal(g, *s), whole(g, s[1], s[0], 6), normal(g, s[0], 6)), *SMALL)
def scatters(x, index, src):
    return x.scatter_add(1, index, src), torch.zeros_like(x).scatter(1, index[:, :1], 1.0)


@entry(lambda g, s: (normal(g, *s), whole(g, s[0], 6), normal(g, 6, s[1])), *SMALL)
def index_ops(x, index, src):
    return x[index], x.index_select(1, index % 2), x.index_add(0, index, src), x[index, index % 3]


@entry(two, *SMALL)
def losses(x, y):
    return F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.l1_loss(x, y), F.cosine_similarity(x, y, dim=-1)


@entry(lambda g, s: (normal(g, *s), torch.rand(*s, generator=g)), *SMALL)
def binary_losses(x, y):
    return F.binary_cross_entropy_with_logits(x, y), F.kl_div(F.log_softmax(x, -1), y, reduction="batchmean")


@entry(lambda g, s: (normal(g, *s), normal(g, s[1]), normal(g, s[1])), (2, 8, 5, 6), (3, 4, 7, 3))
def group_norm(x, weight, bias):
    return F.group_norm(x, 4, weight, bias)


@entry(lambda g, s: (normal(g, *s), normal(g, s[1]), normal(g, s[1]).abs() + 0.5), (2, 8, 5, 6), (3, 4, 7, 3))
def batch_norm_eval(x, mean, var):
    return F.batch_norm(x, mean, var)


@entry(
    lambda g, s: (normal(g, *s), normal(g, s[2], s[3]), normal(g, s[2], s[3])), (2, 3, 5, 8), (1, 2, 7, 6), (2, 4, 3, 4)
)
def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + rotated * sin


@entry(two, (3, 70, 70), (1, 90, 90))
def triangles_of_products(x, y):
    a, b = x[0], y[0]
    later = torch.tril(torch.addmm(a[0], a, b), 3)
    band = torch.tril(torch.triu(a @ b, -2), 20)
    return (
        torch.triu(a @ b),
        band,
        torch.triu(b @ a.T, -65),
        later,
        torch.tril(torch.bmm(x, y), -1),
        torch.triu(y.half(), 2),
    )


@entry(matrix, *SMALL)
def padding_and_order(x):
    return F.pad(x, (1, 2, 0, 3)), x.flip(-1), torch.roll(x, 2, 1), x.triu(1), x.tril(-1), torch.stack([x, x + 1], 1)


@entry(matrix, *SMALL)
def positions(x):
    n = x.shape[-1]
    return x + torch.arange(n, device=x.device), torch.arange(n, device=x.device).float() / n, torch.zeros_like(x)


@entry(lambda g, s: (normal(g, *s), 0.5, 3), *SMALL)
def numbers(x, scale, count):
    return x * scale + count, x / x.shape[0]


@entry(lambda g, s: (normal(g, s[1], s[0]).t(),), *SMALL)
def transposed_input(x):
    return torch.softmax(x * 2, dim=-1), x.sum(0), x + 1


@entry(matrix, (1, 37), (5, 37), (6, 1), (1, 1))
def sizes_of_one(x):
    return torch.softmax(x, -1) + x.mean(0, keepdim=True)


@entry(
    lambda g, s: (normal(g, *s), normal(g, 6, s[1], 3, 3) / 5, normal(g, 6), normal(g, 4, s[1], 1, 5) / 3),
    (2, 5, 9, 11),
    (1, 4, 8, 6),
)
def convolutions(x, w, bias, wide):
    return F.relu(F.conv2d(x, w, bias, stride=2, padding=1)), F.conv2d(x, wide, padding=(0, 2), dilation=(1, 1))


@entry(lambda g, s: (normal(g, *s), normal(g, 6, 2, 3) / 2), (2, 6, 19), (3, 6, 8))
def grouped_convolution_1d(x, w):
    return F.conv1d(x, w, groups=3, padding=1)


@entry(lambda g, s: (normal(g, *s), normal(g, s[1], 3, 2, 3, 2) / 3, normal(g, 6)), (2, 4, 3, 4, 5), (1, 6, 4, 3, 2))
def volumes(x, w, bias):
    turned = F.conv_transpose3d(x, w, bias, stride=(2, 1, 2), padding=(0, 1, 1), output_padding=(1, 0, 0), groups=2)
    return turned, F.conv3d(turned, w[:2], None, stride=(1, 2, 1), padding=1, dilation=(1, 1, 2), groups=2)


@entry(lambda g, s: (normal(g, *s), normal(g, s[1], 5, 3, 2) / 3), (2, 4, 3, 5), (1, 3, 4, 2))
def transposed_convolutions(x, w):
    line = F.conv_transpose1d(x[:, :, 0], w[..., 0].contiguous(), stride=3, dilation=2)
    return F.conv_transpose2d(x, w, stride=(1, 2), padding=1), line


@entry(lambda g, s: (normal(g, *s), normal(g, 2, 3, 3, s[1]) / 3), (2, 2, 7, 6), (1, 20, 5, 9))
def convolutions_of_few_and_many_channels(x, w):
    return F.conv2d(x, w.permute(0, 3, 1, 2), padding=2, dilation=2)


@entry(
    lambda g, s: (normal(g, *s), normal(g, 6, 1, 3, 3) / 3, normal(g, 6), normal(g, 6, 1, 2, 3) / 2),
    (2, 6, 7, 6),
    (1, 6, 5, 9),
)
def depthwise_convolutions(x, w, bias, turned):
    return F.conv2d(x, w, bias, stride=(1, 2), padding=1, groups=6), F.conv_transpose2d(x, turned, stride=2, groups=6)


@entry(lambda g, s: (normal(g, *s), normal(g, s[1], 4, 3) / 3, normal(g, 4)), (2, 5, 6), (1, 3, 4))
def phases_of_transposed_convolutions(x, w, bias):
    """Strides that share a divisor with the dilation, and more phases than taps: some places get the bias alone."""
    shared = F.conv_transpose1d(x, w, bias, stride=4, dilation=2, padding=1)
    return shared, F.conv_transpose1d(x, w, bias, stride=5), F.conv_transpose1d(x, w[..., :1].contiguous(), stride=2)


@entry(matrix, (2, 3, 5, 6, 7), (1, 4, 4, 6, 5))
def pooling_3d(x):
    return (
        F.max_pool3d(x, 2, padding=1), F.avg_pool3d(x, (1, 2, 3), stride=2, ceil_mode=True), torch.signbit(x),
        F.adaptive_avg_pool3d(x, (2, 3, 2)), F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    )  # fmt: skip


@entry(lambda g, s: (normal(g, *s), torch.randperm(s[0], generator=g)[:3], normal(g, 3)), (40,), (7,))
def scatters_of_numbers(x, place, values):
    return x.index_fill(0, place, 2.0), x.index_add(0, place, values), x.scatter(0, place, values)


@entry(matrix, (2, 3, 9, 11), (1, 4, 8, 6))
def pooling(x):
    return (
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 3, stride=2, padding=1),
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 4)),
    )


@entry(matrix, (2, 4, 10), (3, 5, 17))
def pooling_1d(x):
    return F.max_pool1d(x, 2), F.avg_pool1d(x, 3, padding=1)


@entry(matrix, *CUBES)
def order(x):
    values, positions = x.sort(dim=1, descending=True)
    return values, positions, *x.topk(3, dim=-1), x.argsort(-1)


def _network(gates, layers, twice, biased=True, holds=9):
    """Weights of a recurrent network that reads 5 numbers, and its states: the second was drawn with its batch first."""

    def draw(g, s, dtype=torch.float32):
        steps, batch = s
        weights = []
        for place in range(layers * (1 + twice)):
            reads = 5 if place < 1 + twice else holds * (1 + twice)
            weights += [normal(g, gates * holds, n, dtype=dtype) / 3 for n in (reads, holds)]
            weights += [normal(g, gates * holds, dtype=dtype) for _ in range(2 * biased)]
        hidden = normal(g, layers * (1 + twice), batch, holds, dtype=dtype)
        cell = normal(g, batch, layers * (1 + twice), holds, dtype=dtype).transpose(0, 1)
        return normal(g, steps, batch, 5, dtype=dtype), hidden, cell, *weights

    return draw


@entry(_network(4, 2, True), (4, 3), (2, 18))
def lstm(x, hidden, cell, *weights):
    return torch.lstm(x.transpose(0, 1), (hidden, cell), weights, True, 2, 0.0, False, True, True)


@entry(_network(3, 2, True, False), (4, 3), (3, 17))
def gru(x, hidden, _, *weights):
    return torch.gru(x, hidden, weights, False, 2, 0.0, False, True, False)


@entry(lambda g, s: _network(1, 1, False)(g, s, HALF), (4, 3), (2, 2))
def rnn_half(x, hidden, _, *weights):
    return (
        *torch.rnn_tanh(x, hidden, weights, True, 1, 0.0, False, False, False),
        *torch.rnn_relu(x, hidden, weights, True, 1, 0.0, False, False, False),
    )


@entry(_network(1, 1, False, False, holds=1), (4, 3), (2, 17))
def rnn_of_one_number(x, hidden, _, *weights):
    return torch.rnn_tanh(x, hidden, weights, False, 1, 0.0, False, False, False)


def _one_step(g, s):
    rows, holds = s
    weights = [normal(g, gates * holds, n) / 3 for gates in (4, 3) for n in (5, holds)]
    return normal(g, rows, 5), normal(g, rows, holds), normal(g, rows, holds), *weights, normal(g, 4 * holds)


@entry(_one_step, (4, 9), (2, 1))
def one_step_of_networks(x, hidden, cell, w_x, w_h, v_x, v_h, bias):
    h, c = torch.lstm_cell(x, (hidden, cell), w_x, w_h, bias, bias)
    return h, c, torch.gru_cell(x, h, v_x, v_h)


def _with_steps(g, s):
    return normal(g, s[0], 2 * s[1])[:, ::2], normal(g, s[0], 1).expand(*s), normal(g, s[0], s[1] + 3)[:, 1:-2]


@entry(_with_steps, (5, 33), (7, 1))
def inputs_with_steps(x, expanded, part):
    return torch.softmax(x * expanded + part, 1)


def test_the_table_is_large_enough_and_varies_shapes():
    assert len(TABLE) >= 50
    for item in TABLE.values():
        assert len(set(item.shapes)) >= 2, item.name
