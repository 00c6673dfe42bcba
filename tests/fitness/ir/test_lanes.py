"""Values that are kept as sums: exact, and small where a tile's rows and columns are taken modulo a size."""

from __future__ import annotations

import functools

import pytest
import torch
import triton
import triton.language as tl

from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.lanes import SMALL, Lanes, separated
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.ir.types import Type
from evo_kernel.fitness.plan.launch_plan import Pointer, Scalar
from tests.fitness.ir.support import fine, lowered

ROWS, COLUMNS = torch.arange(6).reshape(6, 1, 1) * 7, torch.arange(5).reshape(1, 5, 1)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (ROWS + COLUMNS, 2),
        (ROWS * 3 - COLUMNS + 4, 2),
        (ROWS + COLUMNS + torch.arange(3) * 11, 3),
        (ROWS, 1),
        ((ROWS + COLUMNS) % 13, 1),
        (ROWS * COLUMNS, 1),
        (torch.where((ROWS == 14) & (COLUMNS == 2), 0, ROWS + COLUMNS), 1),  # its ends alone would not tell
        (torch.zeros(6, 5, 1, dtype=torch.int64), 2),
    ],
)
def test_a_tensor_is_taken_apart_only_where_its_parts_add_up_to_it(data, parts):
    found = separated(data)
    assert len(found) == parts and torch.equal(functools.reduce(torch.add, found), data)
    assert all(part.numel() < data.numel() for part in found) or parts == 1


def test_a_value_that_does_not_vary_along_an_axis_keeps_its_sum_whatever_its_size():
    tile = Type("i32", (4, 8))
    wide = torch.arange(SMALL, dtype=torch.int32)
    assert Lanes(tile, wide.reshape(-1, 4, 1).repeat(8, 1, 1)).has_sum
    assert not Lanes(tile, wide.reshape(-1, 4, 8).repeat(8, 1, 1)).has_sum


@triton.jit
def wrapped(x, y, m, n, width, M: tl.constexpr, N: tl.constexpr):
    rows = (tl.program_id(0) * M + tl.arange(0, M)) % m
    columns = tl.arange(0, N) % n
    for start in range(0, width, N):
        at = rows[:, None] * width + start + columns[None, :]
        tl.store(y + at, tl.load(x + at))


@pytest.mark.parametrize(("m", "n"), [(64, 16), (60, 16), (64, 12)])
def test_rows_and_columns_modulo_a_size_are_where_they_belong(m, n):
    x, y = torch.randn(m, 48), torch.zeros(m, 48)
    fine(wrapped, 8, x, y, m, n, 48, M=8, N=16)
    reached = (torch.arange(48) % 16) < n
    assert torch.equal(y[:, reached], x[:, reached])


class Watcher:
    def __init__(self):
        self.seen: list[int] = []  # elements of the largest term of each address

    def operation(self, operation, programs, result): ...

    def iteration(self, operation, programs): ...

    def library(self, programs, elements, instructions): ...

    def arrived(self, program, size, begun): ...

    def access(self, operation, pointer, mask, programs, item, shape):
        self.seen.append(max(term.data.numel() for term in pointer.sum.terms))


@pytest.mark.parametrize(("m", "most"), [(1 << 17, 1 << 14), (1 << 17 | 1, 1 << 17)])
def test_addresses_of_tiles_stay_parts_that_are_smaller_than_the_tiles(m, most):
    """Where rows do not wrap, programs and rows vary apart; else together, but without the columns."""
    x, memory, watcher = torch.zeros(m, 32), DeviceMemory(), Watcher()
    for _ in range(2):
        memory.add(x.nbytes, defined=True)
    args = [Pointer(buffer=0), Pointer(buffer=1), *(Scalar(type="i32", value=value) for value in (m, 16, 32))]
    text = lowered(wrapped, x, x, m, 16, 32, M=8, N=16)
    assert launch(parse(text), (-(-m // 8), 1, 1), args, memory, observer=watcher).finding is None
    assert max(watcher.seen) <= most
