"""Rounds of the loops inside library functions."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from evo_kernel.fitness.ir.counting import Counter
from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import Pointer
from tests.fitness.ir.support import lowered

N = 64


@triton.jit
def kernel(x, y, z, KIND: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    if KIND == "fmod":
        r = libdevice.fmod(a, b)
    elif KIND == "sin":
        r = tl.sin(a)
    elif KIND == "power":
        r = libdevice.pow(a, b.to(tl.int32))
    else:
        r = tl.sum(a, 0) + a + tl.reduce(a, 0, longest)
    tl.store(z + at, r)


@triton.jit
def longest(a, b):
    return libdevice.fmod(a, 1.0) + b * 0


def library(kind: str, x: torch.Tensor, y: torch.Tensor) -> dict[str, list[float]]:
    memory, programs = DeviceMemory(), x.numel() // N
    for value in (x, y, torch.zeros_like(x)):
        number = memory.add(value.nbytes, defined=True)
        memory.buffers[number].data.copy_(value.view(torch.uint8))
    module = parse(lowered(kernel, x, y, x, KIND=kind, N=N))
    counter = Counter(module, memory, programs, footprints=False)
    arguments = [Pointer(buffer=place) for place in range(3)]
    assert launch(module, (programs, 1, 1), arguments, memory, observer=counter).finding is None
    return {name: told.tolist() for name, told in counter.by_program.items() if name.startswith("library.")}


def test_a_remainder_of_doubles_takes_a_round_for_each_bit_of_the_longest_quotient_of_a_warp():
    x, y = torch.ones(2 * N, dtype=torch.float64), torch.full((2 * N,), 1.0, dtype=torch.float64)
    x[3], x[40] = 2.0**100, 2.0**20
    assert library("fmod", x, y) == {"library.64": [8.0 * (101 + 21) / 2, 8.0 * 1]}


@pytest.mark.parametrize(("size", "rounds"), [(2.0**22, 0), (2.0**24, 2), (2.0**120, 6)])
def test_a_remainder_of_floats_takes_a_round_for_23_bits(size, rounds):
    told = library("fmod", torch.full((N,), size), torch.ones(N))
    assert told == ({"library.64": [13.0 * rounds]} if rounds else {})


def test_large_angles_and_powers_of_integers_take_rounds():
    small, large = torch.full((N,), 3.0), torch.full((N,), 1e6)
    assert library("sin", small, small) == {} and library("sin", large, small) == {"library.64": [6 * 24.0]}
    assert library("power", small, torch.full((N,), 1000.0)) == {"library.64": [10 * 6.0]}


def test_combiners_take_rounds_too():
    told = library("combiner", torch.full((N,), 2.0**120), torch.ones(N))
    assert sum(amount for (amount,) in told.values()) >= 13 * 6
