"""Functions of elements: branches, loops, several elements at a time, what is undefined."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from evo_kernel.fitness.costmodel.facts import loop_work
from evo_kernel.fitness.ir.counting import Counter
from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import Pointer, Scalar
from tests.fitness.ir.support import fine, lowered

N = 64


@triton.jit
def larger_or_twice(x, y):
    if x > y:
        return x
    else:
        return y * 2


@triton.jit
def sums_of_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def exchanged(a, b):
    return b, a


@triton.jit
def halved(x):
    while x > 1.0:
        x = x * 0.5
    return x


@triton.jit
def remainder(x):
    return libdevice.fmod(x, 3.0)


@triton.jit
def mapped(x, y, z, n, KIND: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    if KIND == "branches":
        r = tl.map_elementwise(larger_or_twice, a, b)
    elif KIND == "pairs":
        (r,) = tl.map_elementwise(sums_of_two, a, b, pack=2)
    elif KIND == "mixes":
        (r,) = tl.map_elementwise(exchanged, a, pack=2)
    elif KIND == "loops":
        r = tl.map_elementwise(halved, a)
    else:
        r = tl.map_elementwise(remainder, a)  # pyright: ignore[reportArgumentType]
    tl.store(z + at, r, mask=at < n)


@pytest.mark.parametrize("n", [3 * N, 2 * N + 5])
@pytest.mark.parametrize("kind", ["branches", "pairs", "remainder"])
def test_every_element_goes_its_own_way(kind, n):
    x, y, z = torch.randn(n), torch.randn(n), torch.zeros(n)
    fine(mapped, 3, x, y, z, n, KIND=kind, N=N)
    want = {"branches": torch.where(x > y, x, y * 2), "pairs": x + y, "remainder": torch.fmod(x, 3.0)}[kind]
    torch.testing.assert_close(z, want)


def test_what_depends_on_the_layout_is_not_what_a_row_gives():
    x, z = torch.randn(N), torch.zeros(N)
    fine(mapped, 1, x, x, z, N, KIND="mixes", N=N)
    assert sorted(z.tolist()) == sorted(x.tolist())
    assert not torch.equal(z, x.reshape(-1, 2).flip(1).reshape(-1))


def test_each_element_of_a_program_takes_as_many_rounds_as_its_slowest():
    x, z = (
        torch.cat([torch.ones(N), torch.full((N,), 1.5), torch.arange(N).exp2().clamp(max=2.0**20)]),
        torch.zeros(3 * N),
    )
    module, memory = parse(lowered(mapped, x, x, z, 3 * N, KIND="loops", N=N)), DeviceMemory()
    for data in (x, x, z):
        memory.buffers[memory.add(4 * data.numel(), defined=True)].data.copy_(data.view(torch.uint8))
    counter = Counter(module, memory, 3, footprints=False)
    args = [*(Pointer(buffer=n) for n in range(3)), Scalar(type="i32", value=3 * N)]
    assert launch(module, (3, 1, 1), args, memory, observer=counter).finding is None
    assert memory.buffers[2].data.view(torch.float32).tolist() == [1.0] * N + [0.75] * N + [1.0] * N
    ((name, work),) = loop_work(module, 32).items()
    assert counter.by_program[f"loop.{name}.iterations"].tolist() == [0.0, 1.0, 20.0]
    assert work["calls"] == 2.0 and work["arithmetic"] == 1.0  # of a thread, and of one call
