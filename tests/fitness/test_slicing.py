"""Slices of references: they equal the same elements of the whole, whatever the reference does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from evo_kernel.fitness.correctness import check
from evo_kernel.fitness.correctness.error_bounds import expect
from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.program import Slicer
from evo_kernel.fitness.correctness.slicing.reference import SlicedReference
from evo_kernel.fitness.correctness.slicing.regions import cover
from evo_kernel.fitness.correctness.slicing.rules import is_known
from evo_kernel.fitness.correctness.slicing.tracing import NotSliceable, trace
from evo_kernel.tasks import loading
from evo_kernel.tasks.task import Case, Input, Task, as_float64
from evo_kernel.types import CaseKind

BUILTIN = loading.builtin_names()
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


def _columns_put(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[:, index] = x[:, :2] * 2
    return out


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
    "attention of torch": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        _draw(*[HEADS] * 3),
    ),
    "attention with a mask": (F.scaled_dot_product_attention, (*_draw(*[HEADS] * 3), torch.randn(6, 6).double())),
    "grouped attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        _draw((2, 4, 6, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    ),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=(1, 2), dilation=2),
        _draw(PICTURE, (5, 4, 3, 2), (5,)),
    ),
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
    "mean cross entropy": (F.cross_entropy, (*_draw(M), INTEGERS)),
    "index put": (lambda x, i: x.index_put((i, i), x[0, :6], accumulate=True), (*_draw((6, 9)), INTEGERS)),
    "rows put": (lambda x, i: torch.zeros_like(x).index_put((i,), x.exp()), (*_draw(M), torch.randperm(6))),
    "columns put": (_columns_put, (*_draw(M), torch.tensor([2, 0]))),
    "pixels shuffled": (lambda x: F.pixel_shuffle(x, 2).exp(), _draw((2, 8, 3, 5))),
    "pixels gathered": (lambda x: F.pixel_unshuffle(x, 2).exp(), _draw((3, 2, 4, 6))),
    "folded": (lambda x: F.fold(x, (5, 5), 3), _draw((2, 18, 9))),
    "scatter": (lambda x, i: x.scatter_add(1, i[:, None].expand(6, 2), x), (*_draw(M), INTEGERS)),
    "index add": (lambda x, i: torch.zeros_like(x).index_add(0, i, x), (*_draw(M), INTEGERS)),
    "segments": (_segments, (*_draw(M), torch.tensor([1, 4]))),
    "solved": (lambda a, b: torch.linalg.solve(a @ a.mT + torch.eye(6), b), _draw((3, 6, 6), (3, 6, 2))),
    "cholesky": (lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(6)), _draw((3, 6, 6))),
    "singular values": (torch.linalg.svdvals, _draw(BATCH)),
    "spectrum": (lambda x: torch.fft.rfft(x).abs(), _draw(BATCH)),
    "gradient": (_by_gradient, _draw(M, (8, 5))),
    "scalars": (lambda x, n: x * n + torch.arange(8, dtype=x.dtype) // 3 + torch.tensor(2.0), (*_draw(M), 3)),
}


def _random_region(shape: tuple[int, ...], generator: np.random.Generator) -> regions.Region:
    """Any positions along every dimension, in rising order."""
    chosen = (generator.permutation(size)[: generator.integers(1, size + 1)] for size in shape)
    return tuple(regions.index_of(np.sort(positions).tolist()) for positions in chosen)


def _different_slices(function: Callable[..., object], inputs: tuple[Input, ...], count: int = 6) -> list[str]:
    """What `assert_close` says of slices at random places that are not as the whole has them."""

    def outputs(*given: Input) -> tuple[torch.Tensor, ...]:
        made = function(*given)
        return (made,) if isinstance(made, torch.Tensor) else tuple(made)  # pyright: ignore[reportArgumentType]

    slicer, generator = Slicer(inputs), np.random.default_rng(3)
    graph, different = trace(outputs, inputs, slicer.known, is_known), []
    for whole, value in zip(outputs(*inputs), graph, strict=True):
        assert (value.shape, value.dtype) == (tuple(whole.shape), whole.dtype)
        for number in range(count):
            region = regions.everything(value.shape) if number == 0 else _random_region(value.shape, generator)
            program = slicer.program(value, region)
            got = program.run({n: regions.take(_tensor(inputs[n]), part) for n, part in program.reads.items()})
            wanted = regions.take(whole, region)
            slack = 1e-12 * max(1.0, float(wanted.abs().max())) if whole.is_floating_point() else 0
            try:
                torch.testing.assert_close(got, wanted, rtol=0, atol=slack, equal_nan=True)
            except AssertionError as error:
                different.append(f"{region}: {error}")
    return different


def _tensor(value: Input) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


@pytest.mark.parametrize("name", REFERENCES)
def test_slices_equal_the_whole(name: str) -> None:
    function, inputs = REFERENCES[name]
    assert not _different_slices(function, inputs)


@pytest.mark.parametrize("name", BUILTIN)
def test_slices_of_built_in_tasks_equal_the_whole(name: str) -> None:
    task = loading.load(name)
    for case in task.cases_of(CaseKind.CHECK):
        inputs = task.inputs(case, torch.Generator().manual_seed(1), "cpu")
        assert not _different_slices(task.outputs, tuple(map(as_float64, inputs)), count=4)


def _changed_by_hand(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_changed_by_hand, "changes its input"),
        (lambda x: x * torch.rand_like(x), "random"),
        (lambda x: x[x > 0], "floating-point values"),
        (lambda x: x * 2 if float(x.sum()) > 0 else x, "floating-point values"),
        (lambda x: torch.from_numpy(x.numpy() + 1), "floating-point values"),
    ],
)
def test_what_cannot_be_sliced_says_why(function: Callable[..., torch.Tensor], why: str) -> None:
    inputs = _draw(M)
    with pytest.raises(NotSliceable, match=why):
        trace(lambda *given: (function(*given),), inputs, Slicer(inputs).known, is_known)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.as_strided((3, 3), (2, 1)), "by strides"),
        (_with(lambda x: x.fill_diagonal_(2.0)), "by strides"),
        (lambda x: x.float().view(torch.int16), "another width"),
    ],
)
def test_what_no_slice_can_be_had_of_is_told_before_one_is_asked_for(function: Any, why: str) -> None:
    reference = SlicedReference(_task_of(function), _draw(M))
    assert why in reference.fault
    assert reference.whole_seconds == math.inf


def test_an_output_without_elements_needs_no_slice() -> None:
    reference = SlicedReference(_task_of(lambda x: (x[:0] * 2, x.exp())), _draw(M))
    asked = (torch.empty(0, dtype=torch.int64), torch.arange(5))
    assert not reference.fault
    sample = reference.sample(asked, 10.0, np.random.default_rng(1))
    assert [part.truth.numel() for part in reference.expect(sample)] == [0, 5]


def _task_of(function: Callable[..., Any]) -> Task:
    return Task(
        name="t", path=Path("t.py"), text="t", cases=(Case("c", CaseKind.CHECK, {}),),
        inputs_function=lambda *_: (), reference_function=function, baselines={},
    )  # fmt: skip


_SHAPES = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


@st.composite
def _views(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[Any, ...]]]:
    """A shape, and views that can be taken of it one after the other."""
    shape = draw(_SHAPES)
    x, steps = torch.empty(shape), []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["permute", "reshape", "slice", "select", "expand", "unsqueeze", "pad", "write"]))
        dim = draw(st.integers(0, x.dim() - 1)) if x.dim() else 0
        if kind == "permute":
            step = (kind, tuple(draw(st.permutations(range(x.dim())))))
        elif kind == "reshape":
            step = (kind, draw(st.sampled_from(_factored(x.numel()))))
        elif kind == "unsqueeze":
            step = (kind, dim)
        elif kind == "expand":
            step = (kind, (draw(st.integers(1, 3)), *x.shape))
        elif not x.dim():
            continue
        elif kind == "select":
            step = (kind, dim, draw(st.integers(0, x.shape[dim] - 1)))
        else:
            start = draw(st.integers(0, x.shape[dim] - 1))
            step = (kind, dim, start, draw(st.integers(start + 1, x.shape[dim])), draw(st.integers(1, 3)))
        x = _viewed(x, step)
        steps.append(step)
    return shape, steps


def _factored(size: int) -> list[tuple[int, ...]]:
    pairs = [(a, size // a) for a in range(1, size + 1) if size % a == 0]
    return [
        (size,),
        *pairs,
        *((a, b, c) for a, rest in pairs for b, c in [(rest, 1), (1, rest), (2, rest // 2)] if a * b * c == size),
    ]


def _viewed(x: torch.Tensor, step: tuple[Any, ...]) -> torch.Tensor:
    kind, *given = step
    if kind in ("permute", "reshape", "unsqueeze"):
        return getattr(x, str(kind))(given[0])
    if kind == "expand":
        return x.expand(given[0])
    dim, start, *rest = (int(number) for number in given)
    if kind == "select":
        return x.select(dim, start)
    places = (*[slice(None)] * dim, slice(start, *rest))
    if kind == "slice":
        return x[places]
    if kind == "pad":
        return F.pad(x, (*[0, 0] * (x.dim() - dim - 1), start, rest[1]), value=0.5)
    copy = x.clone()
    copy[places] *= 2
    return copy


@given(_views())
@settings(max_examples=200, deadline=None)
def test_views_of_views(case: tuple[tuple[int, ...], list[tuple[Any, ...]]]) -> None:
    shape, steps = case
    count = int(np.prod(shape, dtype=int))

    def reference(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = _viewed(x, step)
        return x

    assert not _different_slices(reference, (torch.arange(count, dtype=torch.float64).reshape(shape),), count=4)


@given(st.lists(st.integers(2, 7), min_size=1, max_size=4).map(tuple), st.data())
@settings(max_examples=100, deadline=None)
def test_cover_has_every_element_once(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = int(np.prod(shape))
    asked = torch.tensor(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))))
    found = cover(asked, shape, 10**6, np.random.default_rng(0))
    numbers = torch.cat([regions.flat_of(region, shape) for region in found])
    assert set(asked.tolist()) <= set(numbers.tolist())
    assert len(set(numbers.tolist())) == numbers.numel() <= 4 * asked.numel()


def test_tiles_are_covered_by_a_region_each() -> None:
    shape, generator = (3, 400, 500), np.random.default_rng(0)
    tiles = [
        (range(k % 3, k % 3 + 1), range(64 * k, 64 * k + 64), range(100 * (k % 4), 100 * (k % 4) + 64))
        for k in range(6)
    ]
    asked = torch.cat([regions.flat_of(tile, shape) for tile in tiles])
    found = cover(asked, shape, 64, generator)
    assert sorted(map(regions.key_of, found)) == sorted(map(regions.key_of, tiles))
    assert len(cover(asked, shape, 2, generator)) == 2


def _case_of(name: str) -> tuple[Task, tuple[Input, ...]]:
    task = loading.load(name)
    case = task.cases_of(CaseKind.CHECK)[1]
    return task, task.inputs(case, torch.Generator().manual_seed(4), "cpu")


@pytest.mark.parametrize("name", ["matmul", "conv2d_tf32", "attention", "attention_backward", "cross_entropy_backward"])
def test_what_is_expected_of_all_elements_is_what_the_whole_reference_says(name: str) -> None:
    task, inputs = _case_of(name)
    whole = expect(task, inputs)
    reference = SlicedReference(task, inputs)
    numbers = [torch.arange(part.truth.numel()) for part in whole]
    sample = reference.sample(numbers, 60.0, np.random.default_rng(0))
    for part, wanted, places in zip(reference.expect(sample), whole, sample.elements, strict=True):
        assert places.sort().values.equal(torch.arange(wanted.truth.numel()))
        torch.testing.assert_close(part.truth, wanted.truth.flatten()[places], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(part.honest, wanted.honest.flatten()[places], rtol=0.02, atol=0.02)
        assert part.largest == pytest.approx(wanted.largest, rel=0.2)
        assert part.frobenius == pytest.approx(wanted.frobenius, rel=0.2)
    assert reference.wrong() == ""


def test_a_decomposition_that_gives_other_values_is_not_used() -> None:
    task = loading.load(str(Path(__file__).parents[1] / "integrity" / "tasks" / "margins.py"))
    inputs = task.inputs(task.cases_of(CaseKind.CHECK)[0], torch.Generator().manual_seed(4), "cpu")
    why = SlicedReference(task, inputs).wrong()
    assert "decomposition" in why
    assert SlicedReference(task, inputs, why).fault == why


ALIKE = {"attention", "attention_full", "gqa", "linear_gelu", "qk_norm", "shared_prompt_backward"}
"""Built-in tasks whose references are made of what others have: their slices are compared above."""


@pytest.mark.parametrize("name", [name for name in BUILTIN if name not in ALIKE])
def test_samples_pass_what_is_right_and_no_other(name: str) -> None:
    task, inputs = _case_of(name)
    right = task.outputs(*inputs)
    generator = np.random.default_rng(7)
    reference = SlicedReference(task, inputs)
    asked = [torch.as_tensor(generator.permutation(part.numel())[:150].copy()) for part in right]
    sample = reference.sample(asked, 60.0, generator)
    expected = reference.expect(sample)
    assert all(
        set(found.tolist()) <= set(wanted.tolist()) for found, wanted in zip(sample.elements, asked, strict=True)
    )
    got = [part.flatten()[places] for part, places in zip(right, sample.elements, strict=True)]
    assert check.compare("case", got, expected, task.tolerance).passed
    for number, part in enumerate(got):
        wrong = part.clone()
        wrong[0] = 4 + 2 * wrong[0].abs()
        changed = [*got[:number], wrong, *got[number + 1 :]]
        assert not check.compare("case", changed, expected, task.tolerance).passed


def test_a_sample_keeps_to_its_time() -> None:
    task, inputs = _case_of("matmul")
    reference = SlicedReference(task, inputs)
    everything = [torch.arange(int(np.prod(reference.shape(0))))]
    sample = reference.sample(everything, 1e-9, np.random.default_rng(0))
    assert sample.elements[0].numel() == 0
