"""Checked memory: what no correct kernel does is found, and what correct kernels do is not."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from evo_kernel.fitness.ir.engine import Stuck, Unsupported
from evo_kernel.fitness.ir.execute import traits_of
from evo_kernel.fitness.ir.lanes import Sum
from evo_kernel.fitness.ir.memory import PADDING, DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from tests.fitness.ir.support import fault, fine, lowered, run


@triton.jit
def copy(x, y, n, shift, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, tl.load(x + at + shift, mask=at < n, other=0), mask=at < n)


@pytest.mark.parametrize("seed", range(3))
def test_masks_keep_a_kernel_inside(seed):
    x, y = torch.randn(100), torch.zeros(100)
    fine(copy, 4, x, y, 100, 0, N=32, scratch=(1,), seed=seed)
    assert torch.equal(x, y)


@pytest.mark.parametrize(("n", "shift"), [(101, 0), (100, 1), (100, -1), (100, 1 << 20), (100, -(1 << 20))])
def test_one_element_outside_is_found(n, shift):
    done = run(copy, 4, torch.randn(100), torch.zeros(100), n, shift, N=32)
    assert done.finding is not None and done.finding.kind == "out_of_bounds"
    assert "buffer" in done.finding.message and done.finding.line
    if (n, shift) == (101, 0):
        assert done.finding.program == (3, 0, 0) and "just behind the end" in done.finding.message


@triton.jit
def unmasked(x, y, n, N: tl.constexpr, USE: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at, mask=at < n)
    if USE == "stored":
        tl.store(y + at, value)
    elif USE == "masked":
        tl.store(y + at, value, mask=at < n)
    elif USE == "chosen":
        tl.store(y + at, tl.where(at < n, value, 0.0))
    elif USE == "summed":
        tl.store(y + at, tl.sum(value, 0))
    elif USE == "address":
        tl.store(y + value.to(tl.int32), 1.0)
    elif USE == "mask":
        tl.store(y + at, 1.0, mask=value > 0)
    elif USE == "branch":  # noqa: SIM102  the one is decided by the compiler, the other by the kernel
        if tl.sum(value, 0) > 0:
            tl.store(y + at, 1.0)


@pytest.mark.parametrize("use", ["masked", "chosen"])
def test_lanes_off_without_other_may_be_left_alone(use):
    y = torch.zeros(32)
    fine(unmasked, 1, torch.ones(20), y, 20, N=32, USE=use)
    assert y.tolist() == [1.0] * 20 + [0.0] * 12


@pytest.mark.parametrize("use", ["address", "mask", "branch"])
def test_lanes_off_without_other_decide_nothing(use):
    assert fault(unmasked, 1, torch.ones(20), torch.zeros(32), 20, N=32, USE=use) == "undefined"


@pytest.mark.parametrize("use", ["stored", "summed"])
def test_what_is_undefined_stays_so_in_memory(use):
    y, z = torch.zeros(32), torch.zeros(32)
    both = INDIRECT.replace(
        "BODY", "%m = arith.cmpf ogt, %v, %c : f32\n      scf.if %m {\n        tt.store %z, %c : !tt.ptr<f32>\n      }"
    )
    assert not fault(unmasked, 1, torch.ones(20), y, 20, N=32, USE=use)
    assert fault(both, 1, torch.ones(1), z[:1], scratch=(0,)) == "undefined"
    assert not fault(both, 1, torch.ones(1), z[:1])


INDIRECT = """module {
  tt.func public @k(%x: !tt.ptr<f32>, %z: !tt.ptr<f32>) {
      %c = arith.constant 0.0 : f32
      %v = tt.load %x : !tt.ptr<f32>
      BODY
      tt.return
  }
}"""


@triton.jit
def narrow(x, y, shift):
    tl.store((y.to(tl.pointer_type(tl.int8)) + shift).to(tl.pointer_type(tl.float32)), tl.load(x))


def test_addresses_are_aligned():
    x, y = torch.ones(1), torch.zeros(2)
    fine(narrow, 1, x, y, 4)
    assert y.tolist() == [0.0, 1.0]
    assert fault(narrow, 1, x, y, 2) == "misaligned"


@triton.jit
def everybody(y, KIND: tl.constexpr):
    me = tl.program_id(0)
    if KIND == "other":
        tl.store(y, me)
    elif KIND == "same":
        tl.store(y, 7)
    elif KIND == "neighbour":
        tl.store(y + me + 1, tl.load(y + me) + 1)
    elif KIND == "own":
        tl.store(y + me, tl.load(y + me) + 1)
    elif KIND == "lanes":
        tl.store(y + tl.arange(0, 8) // 2, tl.arange(0, 8))
    elif KIND == "late":
        tl.store(y + me, 5)
        tl.store(y + 8 + me, tl.load(y + (me + 1) % 8))


@pytest.mark.parametrize("kind", ["other", "neighbour", "late"])
@pytest.mark.parametrize("seed", range(2))
def test_races_are_found(kind, seed):
    assert fault(everybody, 8, torch.zeros(16, dtype=torch.int32), KIND=kind, seed=seed) == "race"


@pytest.mark.parametrize("kind", ["same", "own"])
def test_what_is_no_race(kind):
    y = torch.zeros(16, dtype=torch.int32)
    fine(everybody, 8, y, KIND=kind)
    assert y[0] == (7 if kind == "same" else 1)


def test_programs_of_different_chunks_race_too():
    y = torch.zeros(1 << 15, dtype=torch.int32)
    assert fault(everybody, (1 << 15) - 1, y, KIND="neighbour") == "race"


@triton.jit
def counted(y, old, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(old + at, tl.atomic_add(y + at % 2, 1))


def test_atomics_return_what_was_there():
    orders = []
    for reverse in (False, True):
        y, old = torch.zeros(2, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
        fine(counted, 4, y, old, N=8, reverse=reverse)
        assert y.tolist() == [16, 16]
        for half in (old[::2], old[1::2]):
            assert sorted(half.tolist()) == list(range(16))
            orders.append(half.tolist())
    assert orders[:2] != orders[2:]


@pytest.mark.parametrize("reverse", [False, True])
def test_lanes_of_an_atomic_have_no_order(reverse):
    y, old = torch.zeros(2, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    fine(counted, 1, y, old, N=64, reverse=reverse)
    assert old[::2].tolist() not in (list(range(32)), list(range(32))[::-1])


@triton.jit
def exchanged(y, N: tl.constexpr):
    at = y + tl.arange(0, N)
    tl.atomic_cas(at, tl.zeros((N,), tl.float32), tl.full((N,), 1.0, tl.float32))


def test_what_is_compared_before_an_exchange_are_bits():
    y = torch.tensor([0.0, -0.0, 2.0, 0.0])
    fine(exchanged, 1, y, N=4)
    assert y.tolist() == [1.0, 0.0, 2.0, 1.0] and y[1].signbit()


@triton.jit
def atomics(y, x, KIND: tl.constexpr):
    value = tl.load(x + tl.program_id(0))
    if KIND == "max":
        tl.atomic_max(y, value)
    elif KIND == "min":
        tl.atomic_min(y, value)
    elif KIND == "and":
        tl.atomic_and(y, value)
    elif KIND == "or":
        tl.atomic_or(y, value)
    elif KIND == "xor":
        tl.atomic_xor(y, value)
    elif KIND == "add":
        tl.atomic_add(y, value)


@pytest.mark.parametrize("kind", ["max", "min", "and", "or", "xor", "add"])
def test_atomics_combine(kind):
    x = torch.tensor([5, -3, 12, 9], dtype=torch.int32)
    y = torch.tensor([4], dtype=torch.int32)
    want = 4
    for one in x.tolist():
        want = {"max": max(want, one), "min": min(want, one), "and": want & one, "or": want | one, "xor": want ^ one,
                "add": want + one}[kind]  # fmt: skip
    fine(atomics, 4, y, x, KIND=kind)
    assert y.item() == want


def test_atomic_sums_take_denormals_for_zeros():
    y, x = torch.tensor([2.0**-127]), torch.full((4,), 2.0**-128)
    fine(atomics, 4, y, x, KIND="add")
    assert y.item() == 0.0
    y = torch.tensor([2.0**-127], dtype=torch.float64)
    fine(atomics, 4, y, x.double(), KIND="add")
    assert y.item() == 2.0**-127 + 2.0**-126


@pytest.mark.parametrize("kind", ["max", "min", "add"])
def test_atomics_on_floats(kind):
    x, y = torch.tensor([0.5, -3.0, 2.5, -0.25]), torch.tensor([-1.0])
    want = {"max": 2.5, "min": -3.0, "add": -1.25}[kind]
    fine(atomics, 4, y, x, KIND=kind)
    assert y.item() == want


@triton.jit
def locked(lock, y):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(y, tl.load(y) + tl.program_id(0))
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@pytest.mark.parametrize("shuffled", [False, True])
def test_programs_take_turns_at_a_lock(shuffled):
    lock, y = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    fine(locked, 16, lock, y, shuffled=shuffled)
    assert (lock.item(), y.item()) == (0, 120)


@triton.jit
def last(x, part, count, y, N: tl.constexpr):
    me = tl.program_id(0)
    tl.store(part + me, tl.sum(tl.load(x + me * N + tl.arange(0, N)), 0))
    if tl.atomic_add(count, 1) == tl.num_programs(0) - 1:
        tl.store(y, tl.sum(tl.load(part + tl.arange(0, 8)), 0))


def test_the_last_program_adds_up():
    x, part, count, y = torch.ones(128), torch.zeros(8), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    fine(last, 8, x, part, count, y, N=16, scratch=(1, 3))
    assert y.item() == 128.0


@triton.jit
def hasty(x, part, count, y, N: tl.constexpr):
    """As `last`, but program 3 does not wait until it comes last."""
    me = tl.program_id(0)
    tl.store(part + me, tl.sum(tl.load(x + me * N + tl.arange(0, N)), 0))
    if tl.atomic_add(count, 1) >= 0 and me == 3:
        tl.store(y, tl.sum(tl.load(part + tl.arange(0, 8)), 0))


def test_atomics_that_order_nothing_are_no_excuse():
    right = 0
    for seed in range(20):
        x, part, count, y = torch.ones(128), torch.zeros(8), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
        found = fault(hasty, 8, x, part, count, y, N=16, scratch=(1, 3), seed=seed)
        right += not found and y.item() == 128.0
    assert right < 10  # program 3 is the last to come in one of eight


@triton.jit
def handed_on(flag, y, PUBLISH: tl.constexpr, WAIT: tl.constexpr, EARLY: tl.constexpr):
    """Programs add to `y` one after another; the one that is early sets the flag before it stores."""
    me = tl.program_id(0)
    while tl.atomic_add(flag, 0, sem=WAIT) < me:
        pass
    value = tl.load(y) + me
    if EARLY:
        tl.atomic_add(flag, 1, sem=PUBLISH)
    tl.store(y, value)
    if not EARLY:
        tl.debug_barrier()
        tl.atomic_add(flag, 1, sem=PUBLISH)


@pytest.mark.parametrize(
    ("publish", "wait", "early", "kind"),
    [
        ("release", "acquire", False, ""),
        ("acq_rel", "acq_rel", False, ""),
        ("acquire", "acquire", False, "race"),
        ("release", "release", False, "race"),
        ("acq_rel", "acq_rel", True, "race"),
    ],
)
def test_stores_are_seen_once_released_and_acquired(publish, wait, early, kind):
    flag, y = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    assert fault(handed_on, 8, flag, y, PUBLISH=publish, WAIT=wait, EARLY=early) == kind
    assert kind or y.item() == 28


@triton.jit
def unanswered(y, count, z):
    me = tl.program_id(0)
    tl.atomic_add(count, 1)
    tl.store(y + me + 1, me)
    tl.store(z + me, tl.load(y + me))


def test_who_asks_nothing_of_atomics_learns_nothing():
    y, count, z = (torch.zeros(9, dtype=torch.int32) for _ in range(3))
    assert fault(unanswered, 8, y, count, z) == "race"


@triton.jit
def sums_at_once(x, sums, y, N: tl.constexpr):
    me = tl.program_id(0)
    value = tl.load(x + me * N + tl.arange(0, N))
    tl.atomic_add(sums + me // 2, tl.sum(value, 0))
    tl.store(y + me, tl.load(sums + me // 2))


def test_atomics_of_others_are_not_there_at_once():
    x, y = torch.ones(8 * 16, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    fine(sums_at_once, 8, x, torch.zeros(4, dtype=torch.int32), y, N=16)
    assert (y == 16).any() and (y <= 32).all()


@triton.jit
def in_blocks(x, y, SHARED: tl.constexpr):
    me = tl.program_id(0)
    at = me * 0 if SHARED else me
    tl.atomic_add(y + at, tl.load(x + me), scope="cta", sem="relaxed")
    tl.atomic_add(y + at, 1, scope="cta", sem="relaxed")


def test_atomics_of_block_scope_are_atomic_in_a_program_only():
    x, y = torch.ones(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    fine(in_blocks, 4, x, y, SHARED=False)
    assert (y == 2).all() and fault(in_blocks, 4, x, y, SHARED=True) == "race"


@triton.jit
def last_lane(keys, y, count, N: tl.constexpr):
    at = tl.arange(0, N)
    key = tl.load(keys + at)
    tl.store(y + key, at * 0 + 7)
    before = tl.atomic_add(count, 1)
    tl.store(y + key, at + before)


def test_lanes_of_a_program_race_whatever_orders_programs():
    keys = torch.arange(32, dtype=torch.int32) // 2
    y, count = torch.zeros(32, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    assert fault(last_lane, 1, keys, y, count, N=32) == "race"


@triton.jit
def chained(flag, y):
    me = tl.program_id(0)
    while tl.atomic_add(flag, 0) < me:
        pass
    tl.store(y, tl.load(y) + me)
    tl.atomic_add(flag, 1)


def test_who_waits_for_others_comes_after_them():
    flag, y = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    fine(chained, 8, flag, y)
    assert y.item() == 28
    with pytest.raises(Stuck):
        run(chained, 8, flag.zero_(), y, shuffled=True)


@triton.jit
def scratch(y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, tl.load(y + at))


def test_what_nobody_wrote_is_undefined():
    text = INDIRECT.replace("BODY", "%m = arith.cmpf ogt, %v, %c : f32\n    %w = tt.load %z, %m : !tt.ptr<f32>")
    assert fault(text, 1, torch.ones(1), torch.ones(1), scratch=(0,)) == "undefined"
    assert not fault(text, 1, torch.ones(1), torch.ones(1))
    assert not fault(scratch, 1, torch.ones(8), torch.ones(8), N=8, scratch=(0,))  # copying it is no fault yet


@triton.jit
def elsewhere(x, y, N: tl.constexpr, USE: tl.constexpr):
    at = tl.arange(0, N)
    far = x + (1 << 38)  # where y happens to be
    if USE == "loads":
        tl.store(y + at, tl.load(far + at))
    elif USE == "stores":
        tl.store(far + at, tl.load(x + at) + tl.load(y + at))
    elif USE == "indexes":
        tl.store(y + at, tl.load(y + at) + tl.load(far.to(tl.pointer_type(tl.int32), bitcast=True) + at))
    elif USE == "difference":
        between = y.to(tl.int64, bitcast=True) - x.to(tl.int64, bitcast=True)
        tl.store(y + at, tl.load(x + between // 4 + at))


@pytest.mark.parametrize("use", ["loads", "stores", "indexes"])
def test_an_address_from_numbers_reaches_no_other_buffer(use):
    done = run(elsewhere, 1, torch.ones(16), torch.zeros(16), N=16, USE=use)
    assert done.finding is not None and "another one's" in done.finding.message


def test_an_address_may_come_from_the_difference_of_two():
    y = torch.arange(16.0)
    fine(elsewhere, 1, torch.ones(16), y, N=16, USE="difference")
    assert torch.equal(y, torch.arange(16.0))


@triton.jit
def asks_again(flag, y, INSIDE: tl.constexpr):
    """Programs add to `y` in order; the value that decides on another round is carried by the loop."""
    me = tl.program_id(0)
    seen = tl.atomic_add(flag, 0)
    while seen < me:
        if INSIDE == "add":
            seen = tl.atomic_add(flag, 0)
        elif INSIDE == "cas":
            seen = tl.atomic_cas(flag, -1, -1)
        else:
            seen = tl.load(flag, volatile=True)
    tl.store(y, tl.load(y) + me)
    tl.debug_barrier()
    tl.atomic_add(flag, 1)


@pytest.mark.parametrize("inside", ["add", "cas", "volatile"])
def test_a_loop_that_carries_what_it_waits_for_waits(inside):
    flag, y = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    fine(asks_again, 8, flag, y, INSIDE=inside)
    assert y.item() == 28


@triton.jit
def tickets(count, y, n):
    row = tl.atomic_add(count, 1)
    while row < n:
        tl.store(y + row, tl.program_id(0))
        row = tl.atomic_add(count, 1)


def test_a_loop_that_takes_tickets_does_not_wait():
    count, y = torch.zeros(1, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    assert not traits_of(parse(lowered(tickets, count, y, 32))).waits
    fine(tickets, 4, count, y, 32)
    assert len(set(y.tolist())) > 1


@triton.jit
def grid_barrier(here, y):
    tl.atomic_add(here, 1)
    while tl.atomic_add(here, 0) < tl.num_programs(0):
        pass
    tl.store(y + tl.program_id(0), 1)


@triton.jit
def counted_by_one_loop(here, y):
    while tl.atomic_add(here, 1) < 3000:
        pass
    tl.store(y + tl.program_id(0), 1)


def test_a_program_that_waits_for_a_later_one_is_found_and_one_that_goes_on_is_not():
    here, y = torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(Unsupported, match="barrier of the whole grid"):
        fine(grid_barrier, 3, here, y)
    fine(counted_by_one_loop, 3, here.zero_(), y.zero_())
    assert y.tolist() == [1, 1, 1] and int(here) == 3003


def test_buffers_are_told_apart_where_branches_share_names() -> None:
    traits = traits_of(
        parse("""
module {
  tt.func public @either(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<f32>, %arg2: i32) {
    %cst = arith.constant 1.000000e+00 : f32
    %0 = arith.cmpi sgt, %arg2, %arg2 : i32
    scf.if %0 {
      %1 = tt.addptr %arg0, %arg2 : !tt.ptr<f32>, i32
      %2 = tt.load %1 : !tt.ptr<f32>
    } else {
      %1 = tt.addptr %arg1, %arg2 : !tt.ptr<f32>, i32
      tt.store %1, %cst : !tt.ptr<f32>
    }
    tt.return
  }
}
""")
    )
    assert (traits.loaded.arguments, traits.stored.arguments) == ({0, 2}, {1, 2})


def test_marks_become_as_fine_as_what_a_kernel_loads_of_a_filled_buffer():
    memory = DeviceMemory()
    number = memory.add(64, defined=False)
    buffer = memory.buffers[number]
    buffer.define(0, 64)  # a fill marks 8 bytes at once
    coarse = buffer.marks()
    coarse[PADDING // 8] = True
    assert memory.access(Sum(memory.address(number)), 4, 1, 0) is not None
    assert len(buffer.marks()) == 2 * len(coarse)
    assert buffer.refined(coarse).nonzero().flatten().tolist() == [PADDING // 4, PADDING // 4 + 1]
