"""Slices of references: they equal the same elements of the whole, whatever the reference does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from evo_kernel.fitness import check
from evo_kernel.fitness.expected import expect
from evo_kernel.fitness.slicing import regions
from evo_kernel.fitness.slicing.cover import cover
from evo_kernel.fitness.slicing.program import Slicer
from evo_kernel.fitness.slicing.reference import SlicedReference
from evo_kernel.fitness.slicing.rules import is_known
from evo_kernel.fitness.slicing.tracing import NotSliceable, trace
from evo_kernel.tasks import loading
from evo_kernel.tasks.task import Input, Task, as_float64
from evo_kernel.types import CaseKind

BUILTIN = sorted(path.parent.name for path in (Path(loading.__file__).parent / "builtin").glob("*/task.py"))
INTEGERS = torch.tensor([3, 0, 2, 2, 5, 1])
_SIGNED = torch.tensor([-1, 0, 2, -3, 5, 1])


def _with(change: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A reference that changes a copy of its input in place."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        copy = x.clone()
        change(copy)
        return copy

    return reference


def _recurrence(x: torch.Tensor) -> torch.Tensor:
    state, seen = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = torch.tanh(0.5 * state + x[:, step])
        seen.append(state)
    return torch.stack(seen, dim=1)


def _chunks_in_place(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for start in range(0, len(x), 2):
        out[start : start + 2] = x[start : start + 2].softmax(-1)
        out[start] += 1
    return out


def _segments(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    return torch.cat([x[a:b].sum(0, keepdim=True) + x[a:b] for a, b in zip([0, *ends], [*ends, len(x)], strict=True)])


def _gated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return F.gelu(a) * b


def _moe(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return torch.stack([x @ w for w in experts]).amax(0)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


def _by_gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad((F.silu(leaf) @ w).sum(), leaf)[0]


def _draw(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


M, BATCH, HEADS, PICTURE = (6, 8), (3, 6, 8), (2, 3, 6, 4), (2, 4, 9, 7)
REFERENCES: dict[str, tuple[Callable[..., object], tuple[Input, ...]]] = {
    "chain": (lambda x, y: (x * y).exp().log1p() + x.clamp(min=0) ** 2, _draw(M, M)),
    "broadcast": (lambda x, row, column: (x + row) * column - 1, _draw(M, (8,), (6, 1))),
    "outer": (lambda a, b: a[:, None] * b[None, :], _draw((6,), (8,))),
    "mean and variance": (lambda x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(), _draw(M)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6, 8), w, b), _draw(BATCH, M, M)),
    "rms norm": (lambda x, w: F.rms_norm(x, (8,), w), _draw(BATCH, (8,))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), _draw(PICTURE, (4,), (4,))),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), _draw(PICTURE)),
    "batch norm, running": (lambda x, m, v: F.batch_norm(x, m, v.abs()), _draw(PICTURE, (4,), (4,))),
    "softmax of columns": (lambda x: x.softmax(0) + x.log_softmax(1), _draw(M)),
    "cumulative": (lambda x: x.cumsum(1) + x.cumprod(0) + x.cummax(1).values, _draw(M)),
    "sort": (lambda x: (x.sort(-1).values, x.argsort(0)), _draw(M)),
    "topk": (lambda x: tuple(x.topk(3, dim=-1)), _draw(BATCH)),
    "topk, gathered": (lambda x, y: y.gather(1, x.topk(3, dim=1).indices), _draw(M, M)),
    "maximum and where": (lambda x, y: (x.max(-1), torch.where(x > y, x, -y))[1] + x.argmax(-1, True), _draw(M, M)),
    "logsumexp": (lambda x: (x.logsumexp(1), x.norm(dim=0), x.prod(1), (x > 0).any(1)), _draw(BATCH)),
    "views": (lambda x: x.transpose(1, 2).reshape(6, 24).t().unsqueeze(1).expand(24, 5, 6), _draw(BATCH)),
    "flattened": (lambda x: x.flatten()[5:101:3].view(4, 8).flip(0).roll(2, 1), _draw(BATCH)),
    "cut": (lambda x: torch.cat([*x.split([1, 3, 4], -1)][::-1], -1) + torch.stack(x.unbind(1), 1), _draw(BATCH)),
    "padded": (lambda x: F.pad(x, (2, -1, 1, 3), value=7.0), _draw(BATCH)),
    "triangles": (lambda x: x.tril(-1) + x.triu(2), _draw(BATCH)),
    "repeated": (lambda x: x.repeat(2, 3) * x.repeat_interleave(3, 1).repeat(2, 1), _draw(M)),
    "unfolded": (lambda x: x.unfold(1, 4, 2).sum(-1), _draw(M)),
    "in place": (_with(lambda x: x[1:5:2, 3].mul_(2)), _draw(M)),
    "diagonal in place": (_with(lambda x: x.diagonal().zero_()), _draw(M)),
    "in chunks": (_chunks_in_place, _draw(M)),
    "recurrence": (_recurrence, _draw(M)),
    "linear": (lambda x, w, b: F.relu(F.linear(x, w, b)), _draw(BATCH, (5, 8), (5,))),
    "products": (lambda a, b, c: a @ b @ c + torch.baddbmm(a @ b @ c, a, b @ c), _draw(BATCH, (3, 8, 6), (3, 6, 4))),
    "vectors": (lambda a, v: (a @ v) * (a @ v) + v @ v, _draw(M, (8,))),
    "einsum": (lambda a, b: torch.einsum("bik,kjh->bhij", a, b), _draw(BATCH, (8, 5, 2))),
    "gate": (_gated, _draw(BATCH)),
    "experts": (_moe, _draw(M, (3, 8, 5))),
    "causal attention": (_causal, _draw(HEADS, HEADS, HEADS)),
    "attention of torch": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), _draw(*[HEADS] * 3)),
    "attention with a mask": (F.scaled_dot_product_attention, (*_draw(*[HEADS] * 3), torch.randn(6, 6).double())),
    "grouped attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        _draw((2, 4, 6, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    ),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=(1, 2), dilation=2), _draw(PICTURE, (5, 4, 3, 2), (5,))),
    "grouped convolution": (lambda x, w: F.conv2d(x, w, groups=4, padding=1), _draw(PICTURE, (8, 1, 3, 3))),
    "transposed convolution": (lambda x, w: F.conv_transpose2d(x, w, stride=2), _draw(PICTURE, (4, 3, 3, 3))),
    "convolution of a line": (lambda x, w: F.conv1d(x, w, padding=3), _draw(BATCH, (4, 6, 3))),
    "pools": (lambda x: F.max_pool2d(x, 2) - F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, (4, 3)), _draw(PICTURE)),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), _draw(PICTURE)),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, (*_draw(M), torch.tensor([[0, 5, 5], [1, 2, 0]]))),
    "index select": (lambda x, i: x.index_select(0, i) + x[i], (*_draw(M), INTEGERS)),
    "index of two": (lambda x, i: x[i, :, i] + x[i][:, i, 0], (*_draw((6, 6, 6)), _SIGNED)),
    "gather": (lambda x, i: x.gather(1, i[:, None].expand(6, 3)), (*_draw(M), INTEGERS)),
    "cross entropy": (lambda x, i: F.cross_entropy(x, i, reduction="none"), (*_draw(M), INTEGERS)),
    "mean cross entropy": (lambda x, i: F.cross_entropy(x, i), (*_draw(M), INTEGERS)),
    "index put": (lambda x, i: x.index_put((i, i), x[0, :6], accumulate=True), (*_draw((6, 9)), INTEGERS)),
    "scatter": (lambda x, i: x.scatter_add(1, i[:, None].expand(6, 2), x), (*_draw(M), INTEGERS)),
    "index add": (lambda x, i: torch.zeros_like(x).index_add(0, i, x), (*_draw(M), INTEGERS)),
    "segments": (_segments, (*_draw(M), torch.tensor([1, 4]))),
    "solved": (lambda a, b: torch.linalg.solve(a @ a.mT + torch.eye(6), b), _draw((3, 6, 6), (3, 6, 2))),
    "cholesky": (lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(6)), _draw((3, 6, 6))),
    "singular values": (lambda a: torch.linalg.svdvals(a), _draw(BATCH)),
    "spectrum": (lambda x: torch.fft.rfft(x).abs(), _draw(BATCH)),
    "gradient": (_by_gradient, _draw(M, (8, 5))),
    "scalars": (lambda x, n: x * n + torch.arange(8, dtype=x.dtype) // 3 + torch.tensor(2.0), (*_draw(M), 3)),
}


def _random_region(shape: tuple[int, ...], generator: np.random.Generator) -> regions.Region:
    """Any positions along every dimension, in rising order."""
    chosen = (generator.permutation(size)[: generator.integers(1, size + 1)] for size in shape)
    return tuple(regions.index_of(np.sort(positions).tolist()) for positions in chosen)


def _hold_slices_against_whole(function: Callable[..., object], inputs: tuple[Input, ...], count: int = 6) -> None:
    def outputs(*given: Input) -> tuple[torch.Tensor, ...]:
        made = function(*given)
        return (made,) if isinstance(made, torch.Tensor) else tuple(made)  # pyright: ignore[reportArgumentType]

    slicer, generator = Slicer(inputs), np.random.default_rng(3)
    graph = trace(outputs, inputs, slicer.known, is_known)
    for whole, value in zip(outputs(*inputs), graph.outputs, strict=True):
        assert (value.shape, value.dtype) == (tuple(whole.shape), whole.dtype)
        for number in range(count):
            region = regions.everything(value.shape) if number == 0 else _random_region(value.shape, generator)
            program = slicer.program(value, region)
            got = program.run({n: regions.take(_tensor(inputs[n]), part) for n, part in program.reads.items()})
            wanted = regions.take(whole, region)
            slack = 1e-12 * max(1.0, float(wanted.abs().max())) if whole.is_floating_point() else 0
            torch.testing.assert_close(got, wanted, rtol=0, atol=slack, equal_nan=True)


def _tensor(value: Input) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


@pytest.mark.parametrize("name", REFERENCES)
def test_slices_equal_the_whole(name: str) -> None:
    function, inputs = REFERENCES[name]
    _hold_slices_against_whole(function, inputs)


@pytest.mark.parametrize("name", BUILTIN)
def test_slices_of_built_in_tasks_equal_the_whole(name: str) -> None:
    task = loading.load(name)
    for case in task.cases_of(CaseKind.CHECK):
        inputs = task.inputs(case, torch.Generator().manual_seed(1), "cpu")
        _hold_slices_against_whole(task.outputs, tuple(map(as_float64, inputs)), count=4)
