"""Promises that a kernel makes about its own values: what a vector would do otherwise is undefined, nothing else is."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from evo_kernel.fitness.ir.types import IRError
from tests.fitness.ir.support import fault, fine


@triton.jit
def gathered(x, index, y, B: tl.constexpr, PROMISED: tl.constexpr):
    lanes = tl.arange(0, B)
    at = tl.load(index + lanes)
    if PROMISED == "contiguous":
        at = tl.max_contiguous(tl.multiple_of(at, B), B)
    elif PROMISED == "in fours":
        at = tl.max_contiguous(tl.multiple_of(at, 4), 4)
    if tl.sum(tl.load(x + at), 0) > 0:  # a branch on what is undefined is found
        tl.store(y + lanes, 1.0)


@pytest.mark.parametrize(
    ("index", "promised", "found"),
    [
        (range(16), "contiguous", ""),
        ([4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11], "contiguous", ""),  # as far as a vector reaches
        ([4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11], "in fours", ""),
        ([*range(15), 0], "contiguous", "undefined"),
        ([1, 2, 3, 4, *range(12)], "in fours", "undefined"),  # not aligned
        ([0, 2, 4, 6] * 4, "contiguous", "undefined"),
        ([0, 2, 4, 6] * 4, "nothing", ""),
    ],
)
def test_lanes_of_one_vector_are_what_was_promised(index, promised, found):
    indices = torch.tensor(list(index), dtype=torch.int32)
    assert fault(gathered, 1, torch.ones(16), indices, torch.zeros(16), B=16, PROMISED=promised) == found


@triton.jit
def wrapped(x, y, rows, columns, stride, B: tl.constexpr, MASKED: tl.constexpr):
    """As Triton's tutorials read a matrix: columns beyond the end wrap, are promised to be contiguous, and are dropped."""
    column = tl.arange(0, B)
    at = tl.where(column < columns, column, 0)
    at = tl.max_contiguous(tl.multiple_of(at, B), B)
    row = tl.arange(0, 4)
    value = tl.load(x + row[:, None] * stride + at[None, :], mask=row[:, None] < rows, other=0.0)
    mask = (row[:, None] < rows) & (column[None, :] < columns) if MASKED else row[:, None] < rows
    tl.store(y + row[:, None] * B + column[None, :], value, mask=mask)


@pytest.mark.parametrize("columns", [5, 8, 11, 12, 16])
def test_promises_about_lanes_that_nobody_uses_are_forgiven(columns):
    x, y = torch.randn(3, columns), torch.zeros(3, 16)
    fine(wrapped, 1, x, y, 3, columns, columns, B=16, MASKED=True)
    assert torch.equal(y[:, :columns], x)


@triton.jit
def masked(x, y, n, B: tl.constexpr, STORES: tl.constexpr, CONSTANCY: tl.constexpr):
    lanes = tl.program_id(0) * B + tl.arange(0, B)
    mask = tl.max_constancy(lanes // 2, 4) * 2 < n if CONSTANCY else lanes < tl.multiple_of(n - 3, 16)
    if STORES:
        tl.store(y + lanes, 1.0, mask=mask)
    elif tl.sum(tl.load(x + lanes, mask=mask, other=0.0), 0) >= 0:
        tl.store(y, 1.0)


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize(
    ("n", "constancy", "found"),
    [(19, False, ""), (23, False, ""), (24, False, "undefined"), (12, True, ""), (14, True, "undefined")],
)
def test_one_mask_stands_for_a_vector(n, constancy, found, stores):
    args = torch.ones(32), torch.zeros(32)
    assert fault(masked, 2, *args, n, B=16, STORES=stores, CONSTANCY=constancy) == found


@triton.jit
def kept(x, y, keep, count, B: tl.constexpr, PROMISED: tl.constexpr):
    lanes, address = tl.arange(0, B), keep + tl.arange(0, B)
    if PROMISED == "the index":
        lanes = tl.max_constancy(lanes, 4)
    number = tl.load(tl.max_constancy(address, 4) if PROMISED == "the address" else address)
    if PROMISED == "bits":
        number = tl.max_constancy(number.to(tl.float32, bitcast=True), 4).to(tl.int32, bitcast=True)
    mask = lanes < count if PROMISED == "the index" else number > 0
    if PROMISED == "the mask":
        mask = tl.max_constancy(mask, 4)
    tl.store(y + lanes, tl.load(x + lanes), mask=mask)


@pytest.mark.parametrize("promised", ["the address", "the index", "bits", "the mask"])
@pytest.mark.parametrize("wrong", [False, True])
def test_masks_are_constant_by_what_they_are_made_of(promised, wrong):
    keep = torch.tensor([1] * 4 + [0] * 4 + [1] * 4 + [0, wrong, 0, 0], dtype=torch.int32)
    found = fault(kept, 1, torch.ones(16), torch.zeros(16), keep, 12 + wrong, B=16, PROMISED=promised)
    assert found == ("undefined" if wrong else "")


@triton.jit
def turned(x, y, B: tl.constexpr, HOW: tl.constexpr):
    lanes = tl.arange(0, B)
    if HOW == "constant too":
        at = tl.max_contiguous(tl.multiple_of(lanes // 4 * 4, 4), 4)
    else:
        at = tl.max_contiguous(lanes ^ 3, 4)
        if HOW == "equal too":
            at = tl.max_constancy(tl.multiple_of(at, 4), 4)
        if HOW == "wraps":
            at = tl.multiple_of(at.to(tl.int8).to(tl.int32), 4)
    if tl.sum(tl.load(x + at, mask=(at & 3) == 0 if HOW == "constant too" else (at & 3) >= 0, other=0.0), 0) >= 0:
        tl.store(y + lanes, 1.0)


def test_contiguous_for_the_compiler_whatever_else_is_promised():
    assert fault(turned, 1, torch.ones(128), torch.zeros(128), B=128, HOW="constant too") == "undefined"
    assert not fault(turned, 1, torch.ones(128), torch.zeros(128), B=128, HOW="not aligned")
    for how, says in (("wraps", "wrap"), ("equal too", "equal")):
        with pytest.raises(IRError, match=says):
            fault(turned, 1, torch.ones(128), torch.zeros(128), B=128, HOW=how)


@triton.jit
def divided(x, y, rows, size, B: tl.constexpr):
    """Of programs that go different ways, in a loop."""
    lanes = tl.arange(0, B)
    at = size * 1
    for row in range(tl.program_id(0), rows):
        at = tl.multiple_of(size + row, 4)
        if row == 2:
            at += 0
    tl.store(y + tl.program_id(0) * B + at - 8 + lanes, 1.0)


@pytest.mark.parametrize(("rows", "found"), [(5, ""), (4, "undefined")])
def test_promises_survive_control_flow(rows, found):
    assert fault(divided, 3, torch.zeros(1), torch.zeros(80), rows, 8, B=16) == found
