"""Control flow of programs that go different ways, and calls."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from evo_kernel.fitness.ir.counting import Counter
from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import Pointer
from tests.fitness.ir.support import fault, fine, lowered

PROGRAMS = 9


def ints(n: int = PROGRAMS) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int32)


@triton.jit
def branches(y, N: tl.constexpr):
    me = tl.program_id(0)
    value = tl.arange(0, N)
    if me % 3 == 0:
        value += 100
        if me > 4:
            value *= 2
    elif me % 3 == 1:
        value = -value
    tl.store(y + me * N + tl.arange(0, N), value)


def test_nested_branches():
    y = ints(PROGRAMS * 4)
    fine(branches, PROGRAMS, y, N=4)
    base = torch.arange(4, dtype=torch.int32)
    rows = [(base + 100) * (2 if me > 4 else 1) if me % 3 == 0 else -base if me % 3 == 1 else base for me in range(9)]
    assert torch.equal(y.reshape(9, 4), torch.stack(rows))


@triton.jit
def loops(y, x, KIND: tl.constexpr):
    me = tl.program_id(0)
    total = 0
    if KIND == "for":
        for i in range(me):
            total += i
    elif KIND == "from":
        for i in range(me, 20, 3):
            total += i
    elif KIND == "down":
        for i in range(me, 0, -1):
            total += i * i
    elif KIND == "nested":
        for i in range(me):
            for j in range(i, me):
                if (i + j) % 2 == 0:
                    total += i * j
    elif KIND == "while":
        n = me + 1
        while n != 1:
            n = tl.where(n % 2 == 0, n // 2, 3 * n + 1)
            total += 1
    elif KIND == "memory":
        at = me
        while tl.load(x + at) != 0:
            at = tl.load(x + at)
            total += 1
    tl.store(y + me, total)


def collatz(n: int) -> int:
    return 0 if n == 1 else 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)


EXPECTED = {
    "for": lambda me: sum(range(me)),
    "from": lambda me: sum(range(me, 20, 3)),
    "down": lambda me: sum(i * i for i in range(me, 0, -1)),
    "nested": lambda me: sum(i * j for i in range(me) for j in range(i, me) if (i + j) % 2 == 0),
    "while": lambda me: collatz(me + 1),
    "memory": lambda me: max(0, me - 1),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_loops_of_different_lengths(kind):
    y, x = ints(), torch.arange(-1, PROGRAMS - 1, dtype=torch.int32).clamp(min=0)
    fine(loops, PROGRAMS, y, x, KIND=kind)
    assert y.tolist() == [EXPECTED[kind](me) for me in range(PROGRAMS)]


@triton.jit
def mixed(y, n, N: tl.constexpr):
    """Values that leave a loop at different times, some the same for all programs and some not."""
    me = tl.program_id(0)
    at = tl.arange(0, N)
    kept = tl.full((N,), 3, tl.int32)
    ahead = at < n
    moved = at
    for i in range(me % 4):
        kept = at + i
        ahead = ahead & (at > i)
        moved += n
    tl.store(y + me * N + at, kept * 1000 + moved * 10 + ahead.to(tl.int32))


def test_values_of_several_forms_are_put_together():
    y, at = ints(PROGRAMS * 8), torch.arange(8)
    fine(mixed, PROGRAMS, y, 5, N=8)
    for me, row in enumerate(y.reshape(-1, 8)):
        kept, ahead, moved = torch.full((8,), 3), at < 5, at
        for i in range(me % 4):
            kept, ahead, moved = at + i, ahead & (at > i), moved + 5
        assert torch.equal(row.long(), kept * 1000 + moved * 10 + ahead.long()), me


@triton.jit
def early(x, y, n):
    me = tl.program_id(0)
    value = tl.load(x + me)
    if n > 0:
        if me % 2 == 0:
            tl.store(y + me, -1.0)
            return
        value += 1
        if me == 5:
            return
    tl.store(y + me, value)


@pytest.mark.parametrize("n", [0, 1])
def test_early_returns_through_blocks_with_arguments(n):
    x, y = torch.arange(9.0), torch.zeros(9)
    assert "cf.cond_br" in lowered(early, x, y, n)
    fine(early, PROGRAMS, x, y, n)
    assert y.tolist() == ([-1, 2, -1, 4, -1, 0, -1, 8, -1] if n else x.tolist())


@triton.jit(noinline=True)
def callee(value, at, flag):
    if flag:
        return value * 2
    return value + at


@triton.jit
def caller(x, y, N: tl.constexpr):
    me = tl.program_id(0)
    tl.store(y + me * N + tl.arange(0, N), callee(tl.load(x + me), me.to(tl.float32), me % 2 == 0))


def test_calls_that_are_not_inlined():
    x, y = torch.randn(6), torch.zeros(6, 8)
    assert len(parse(lowered(caller, x, y, N=8)).functions) == 2
    fine(caller, 6, x, y, N=8)
    want = torch.where(torch.arange(6) % 2 == 0, x * 2, x + torch.arange(6))
    assert torch.equal(y, want[:, None].expand(6, 8))


@triton.jit
def pointers(x, y, z, N: tl.constexpr):
    me = tl.program_id(0)
    at = tl.arange(0, N)
    source = x if me % 2 == 0 else y
    lanes = tl.where(at % 2 == 0, source + at, y + at)
    tl.store(z + me * N + at, tl.load(lanes))


def test_a_choice_between_pointers():
    x, y, z = torch.randn(8), torch.randn(8), torch.zeros(4, 8)
    fine(pointers, 4, x, y, z, N=8)
    even = torch.where(torch.arange(8) % 2 == 0, x, y)
    assert torch.equal(z, torch.stack([even, y, even, y]))


@triton.jit
def narrow(x, y, N: tl.constexpr):
    me, at = tl.program_id(0), tl.arange(0, N)
    value = tl.load(x + at)
    if me % 2 == 0:
        value = tl.load(x + N + at)
    for _ in range(me):
        value = tl.load(x + me * N + at)
    tl.store(y + me * N + at, tl.where(at == 0, tl.load(x), value))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.bfloat16])
def test_narrow_types_go_different_ways(dtype):
    bits = torch.arange(32 * dtype.itemsize, dtype=torch.uint8)
    x = (bits % 2 == 0) if dtype is torch.bool else bits.view(dtype)
    y = torch.zeros(32 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    fine(narrow, 4, x, y, N=8)
    rows = x.view(torch.uint8).reshape(4, 8, -1)
    want = torch.stack([rows[1], rows[1], rows[2], rows[3]])
    want[:, 0] = rows[0, 0]
    assert torch.equal(y.view(torch.uint8).reshape(want.shape), want)


STEP = """module {
  tt.func public @k(%y: !tt.ptr<i32>, %step: i32) {
    %c0 = arith.constant 0 : i32
    %c9 = arith.constant 9 : i32
    %s = scf.for %i = %c0 to %c9 step %step iter_args(%t = %c0) -> (i32)  : i32 {
      %u = arith.addi %t, %i : i32
      scf.yield %u : i32
    }
    tt.store %y, %s : !tt.ptr<i32>
    tt.return
  }
}"""


def test_a_step_is_above_zero():
    y = ints(1)
    fine(STEP, 1, y, 4)
    assert y.item() == 12
    assert [fault(STEP, 1, y, step) for step in (0, -1)] == ["undefined", "undefined"]


BLOCKS = """module {
  tt.func public @k(%y: !tt.ptr<i32>) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %p = tt.get_program_id x : i32
    cf.br ^bb1(%c0, %p : i32, i32)
  ^bb1(%sum: i32, %left: i32):  // 2 preds: ^bb0, ^bb2
    %more = arith.cmpi sgt, %left, %c0 : i32
    cf.cond_br %more, ^bb2(%sum, %left : i32, i32), ^bb3(%sum : i32)
  ^bb2(%a: i32, %b: i32):  // pred: ^bb1
    %s = arith.addi %a, %b : i32
    %l = arith.subi %b, %c1 : i32
    cf.br ^bb1(%s, %l : i32, i32)
  ^bb3(%r: i32):  // pred: ^bb1
    %q = tt.addptr %y, %p : !tt.ptr<i32>, i32
    tt.store %q, %r : !tt.ptr<i32>
    tt.return
  }
}"""


def test_a_loop_of_blocks_carries_values():
    y = ints()
    fine(BLOCKS, PROGRAMS, y)
    assert y.tolist() == [me * (me + 1) // 2 for me in range(PROGRAMS)]


CALLS = """module {
  tt.func public @k(%y: !tt.ptr<i32>) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %p = tt.get_program_id x : i32
    scf.for %i = %c0 to %c3 step %c1 : i32 {
      tt.call @f(%p) : (i32) -> ()
    }
    tt.return
  }
  tt.func private @f(%n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    scf.for %i = %c0 to %n step %c1 : i32 {
      %u = arith.addi %i, %i : i32
    }
    tt.return
  }
}"""


@pytest.mark.parametrize(
    ("text", "each"), [(BLOCKS, [lambda me: me]), (CALLS, [lambda me: 3, lambda me: 3, lambda me: 3 * me])]
)
def test_iterations_and_calls_are_counted_by_loop(text, each):
    memory, module = DeviceMemory(), parse(text)
    memory.add(4 * PROGRAMS, defined=True)
    counter = Counter(module, memory, PROGRAMS, footprints=False)
    launch(module, (PROGRAMS, 1, 1), [Pointer(buffer=0)], memory, observer=counter)
    told = [counts.tolist() for name, counts in counter.by_program.items() if name.startswith("loop.")]
    assert sorted(told) == sorted([count(me) for me in range(PROGRAMS)] for count in each)


@triton.jit
def counting(y, last, step):
    me = tl.program_id(0)
    total = 0
    for _ in range(me, last, step):
        total += 1
    tl.store(y + me, total)


def test_a_counter_that_overflows_never_ends():
    y = torch.zeros(4, dtype=torch.int32)
    fine(counting, 4, y, 2**31 - 100, 2**30 - 8)
    assert y.tolist() == [2, 2, 2, 2]
    assert fault(counting, 4, y, 2**31 - 1, 2**30) == "undefined"
    assert fault(counting, 1, y, 2**31 - 1, 2**30) == "undefined"
