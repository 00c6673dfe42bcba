"""Sums of products without the products: exact in float64, and no larger product is left."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from evo_kernel.tasks.lowering.lower import lower_function
from evo_kernel.tasks.lowering.trace import trace

aten = torch.ops.aten
X, W, B = (5, 7), (7, 9), (9,)


def traced(reference, shapes, dtype=torch.float32, fixed=False):
    """`fixed`: sizes are numbers, which are traced in a fifth of the time."""
    sizes = frozenset((place, dim) for place, shape in enumerate(shapes) for dim in range(len(shape)) if fixed)
    return trace(reference, [torch.randn(shape, dtype=dtype) for shape in shapes], sizes, simplify=True)


def largest(traced, *products):
    """Elements that the largest product writes; 0 without one."""
    nodes = [node for node in traced.graph.graph.nodes if node.target in products]
    return max((int(node.meta["val"].numel()) for node in nodes), default=0)


def assert_same(reference, shapes, fixed=False):
    found = traced(reference, shapes, fixed=fixed)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    (made,), wanted = found.graph(*inputs), reference(*inputs)
    assert made.shape == wanted.shape
    torch.testing.assert_close(made, wanted, rtol=1e-12, atol=1e-12)
    return found


@pytest.mark.parametrize(
    ("reference", "shapes"),
    [
        (lambda x, w: (x @ w).sum(1), (X, W)),
        (lambda x, w: (x @ w).sum(0), (X, W)),
        (lambda x, w: (x @ w).sum(), (X, W)),
        (lambda x, w: (x @ w).mean(), (X, W)),
        (lambda x, w: ((x @ w) / 2).mean(1, keepdim=True) * 1.5, (X, W)),
        (lambda x, w, b: (F.linear(x, w.t(), b) - b * 3).mean(dim=1), (X, W, B)),
        (lambda x, w, b: (-F.linear(x, w.t(), b)).sum(dim=0), (X, W, B)),
        (lambda x, w, b: torch.sub(b, x @ w, alpha=2).sum(1), (X, W, B)),
        (lambda x, w, c: ((x @ w) * c + 1).sum(1), (X, W, (5, 1))),
        (lambda x, w, c: ((x @ w) * c).sum(2), (X, W, (4, 1, 1))),
        (lambda x, w, c: (c * (x @ w)).sum(1), (X, W, (4, 1, 1))),
        (lambda x, w, c: (x @ w + c).mean((1, 2)), (X, W, (4, 1, 1))),
        (lambda x, w, b: (F.linear(x, w.t(), b)).sum(-1), ((2, 5, 7), W, B)),
        (lambda x, w: torch.bmm(x, w).sum(1), ((3, 5, 7), (3, 7, 9))),
        (lambda x, w: torch.bmm(x, w).mean((1, 2)), ((3, 5, 7), (3, 7, 9))),
    ],
)
def test_sums_of_products_are_products_of_sums(reference, shapes):
    found = assert_same(reference, shapes)
    assert not largest(found, aten.mm.default, aten.addmm.default, aten.bmm.default)


@pytest.mark.parametrize(
    "reference",
    [
        lambda x, w, c: ((x @ w) * c).sum(1),  # the factor differs along the sum
        lambda x, w, c: torch.relu(x @ w).sum(1) + c.sum(1),
        lambda x, w, c: (lambda y: y.sum(1) + (y * c).amax(1))(x @ w),  # the product is needed anyway
    ],
)
def test_what_is_not_linear_stays(reference):
    found = assert_same(reference, (X, W, (5, 9)))
    assert largest(found, aten.mm.default) == 45


def test_half_types_stay():
    found = traced(lambda x, w: (x @ w).sum(1), (X, W), torch.bfloat16)
    assert largest(found, aten.mm.default) == 45


@pytest.mark.parametrize("dims", [(2, 3), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("transposed", [False, True])
def test_sums_over_convolutions(transposed, dims):
    """All of small strides, paddings, dilations and output paddings; of sizes that are symbols, all pairs of these where
    each axis is summed on its own, and two where others are summed too, which is done in front of that or behind it."""
    size = 9
    for stride, padding, dilation, out in itertools.product((1, 2), (0, 1), (1, 2), (0, 1)):
        if out >= max(stride, dilation) or (out and not transposed):
            continue

        def reference(x, w, b, stride=stride, padding=padding, dilation=dilation, out=out):
            options = {"stride": stride, "padding": padding, "dilation": dilation}
            if transposed:
                return (F.conv_transpose2d(x, w, b, output_padding=out, **options) * 0.5).mean(dims, keepdim=True)
            return (F.conv2d(x, w, b, **options) - 1).sum(dims)

        shapes = ((2, 3, size, size + 1), (3, 4, 3, 2) if transposed else (4, 3, 3, 2), (4,))
        paired = (stride + padding + dilation) % 2 == 0 and (dims == (2, 3) or dilation == 2)
        found = assert_same(reference, shapes, fixed=not paired)
        before = largest(found, aten.convolution.default)
        if set(dims) >= {2, 3}:
            assert not before or (stride > 1 and padding and not transposed)


def test_a_convolution_whose_taps_overlap_nowhere_stays():
    found = assert_same(lambda x, w: F.conv2d(x, w, dilation=2).mean((2, 3)), ((2, 3, 6, 6), (4, 3, 3, 3)))
    assert largest(found, aten.convolution.default)


def test_grouped_and_three_dimensional_convolutions():
    found = assert_same(lambda x, w: F.conv2d(x, w, groups=2).mean((2, 3)), ((2, 4, 6, 6), (4, 2, 3, 3)))
    assert largest(found, aten.convolution.default)
    found = assert_same(lambda x, w: F.conv3d(x, w, padding=1).mean(2), ((2, 3, 5, 6, 7), (4, 3, 3, 3, 3)))
    assert largest(found, aten.convolution.default) == 2 * 4 * 6 * 7
    found = assert_same(lambda x, w: F.conv1d(x, w, padding=1).mean(2), ((2, 3, 5), (4, 3, 3)))
    assert not largest(found, aten.convolution.default)


def test_kernels_are_written_for_what_is_left():
    text = lower_function(lambda x, w: (x @ w).sum(1), [[torch.randn(X), torch.randn(W)]])
    assert text.count("@triton.jit") == 2 and "tl.dot" not in text
