"""A warp-specialised product, right and with faults that a GPU may not show: each is found, whatever the order."""

from __future__ import annotations

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from evo_kernel.fitness.ir.counting import Counter, most_of
from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.nodes import undefined_of
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import Descriptor, Pointer, Scalar, View
from tests.support.boundary import Subject, ir_of

SIZE, STEPS = 64, 5
AT_ONCE = gl.constexpr(10)
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def produce(a_desc, b_desc, a_ring, b_ring, full, empty, steps, FAULT: gl.constexpr):
    for j in range(steps):
        slot = j % 2
        if FAULT != 2:
            mbarrier.wait(empty.index(slot), ((j // 2) & 1) ^ 1)
        mbarrier.expect(full.index(slot), 2 * 64 * 64 * 2)
        _load(a_desc, [0, j * 64], full.index(slot), a_ring.index(slot))
        _load(b_desc, [j * 64, 0], full.index(slot), b_ring.index(slot))
        _load(b_desc, [0, 0], full.index(slot), b_ring.index(slot), pred=steps == 0)  # never
        if FAULT == 9:
            layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
            a_ring.index(slot).store(gl.zeros([64, 64], gl.float16, layout))
        if FAULT == AT_ONCE:
            mbarrier.wait(full.index(slot), (j // 2) & 1)


@gluon.jit
def consume(c_desc, a_ring, b_ring, tile, full, empty, steps, FAULT: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    acc = gl.zeros([64, 64], gl.float32, layout)
    for j in range(steps):
        slot = j % 2
        if FAULT != 1 and FAULT != 7:  # noqa: PLR1714  what Gluon compiles
            mbarrier.wait(full.index(slot), (j // 2) & 1)
        acc = warpgroup_mma(a_ring.index(slot), b_ring.index(slot), acc, is_async=True)
        if FAULT == 7:
            mbarrier.wait(full.index(slot), (j // 2) & 1)
        if FAULT == 3:
            mbarrier.arrive(empty.index(slot), count=1)
        acc = warpgroup_mma_wait(0 if FAULT != 5 else 1, deps=[acc])
        if FAULT != 3 and FAULT != 4:  # noqa: PLR1714
            mbarrier.arrive(empty.index(slot), count=1)
    if FAULT == 8:
        _store(c_desc, [0, 0], tile)
    tile.store(acc.to(gl.float16))
    fence_async_shared()
    if FAULT != 8:
        _store(c_desc, [0, 0], tile)
    if FAULT == 6:
        tile.store(gl.zeros([64, 64], gl.float16, layout))
    tma.store_wait(0)


@gluon.jit
def product(a_desc, b_desc, c_desc, steps, FAULT: gl.constexpr):
    a_ring = gl.allocate_shared_memory(gl.float16, [2, 64, 64], a_desc.layout)
    b_ring = gl.allocate_shared_memory(gl.float16, [2, 64, 64], b_desc.layout)
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (consume, (c_desc, a_ring, b_ring, tile, full, empty, steps, FAULT)),
            (produce, (a_desc, b_desc, a_ring, b_ring, full, empty, steps, FAULT)),
        ],
        [1],
        [24],
    )


FAULTS = {
    1: "does not wait for copies",
    2: "loads over what is in use",
    3: "gives a slot back before the product has read it",
    4: "never gives a slot back",
    5: "uses a product that it has not waited for",
    6: "overwrites what a store has yet to read",
    7: "begins a product before its copies have arrived",
    8: "begins a store before it writes what is stored",
    9: "writes where a copy is on its way",
}


def launched(fault: int, seed: int, skips_floats: bool = False):
    """(what was found, the result with NaN where it is undefined, what is right, counts)"""
    a, b = torch.randn(SIZE, STEPS * SIZE).half(), torch.randn(STEPS * SIZE, SIZE).half()
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    kinds = dict.fromkeys(("a_desc", "b_desc", "c_desc"), f"tensordesc<fp16[64, 64],{layout!r}>")
    text = ir_of(Subject(product, kinds | {"steps": "i32", "FAULT": "constexpr"}, (fault,)))
    memory, args = DeviceMemory(), []
    for tensor in (a, b, torch.empty(SIZE, SIZE).half()):
        number = memory.add(2 * tensor.numel(), defined=len(args) < 2)
        memory.buffers[number].data.copy_(tensor.reshape(-1).view(torch.uint8))
        shape = tuple(tensor.shape)
        args.append(Descriptor(buffer=number, dtype="float16", shape=shape, strides=(shape[1], 1), block=(64, 64)))
    args.append(Scalar(type="i32", value=STEPS))
    counter = Counter(module := parse(text), memory, 1, footprints=False)
    done = launch(module, (1, 1, 1), args, memory, seed=seed, skips_floats=skips_floats, observer=counter)
    buffer = memory.buffers[2]
    made = buffer.data.view(torch.float16).reshape(SIZE, SIZE).float()
    view = View(buffer=2, dtype="float16", shape=(SIZE, SIZE), strides=(SIZE, 1))
    undefined = undefined_of(buffer, view) if not skips_floats and done.finding is None else None
    if undefined is not None:
        made[undefined.reshape(SIZE, SIZE)] = torch.nan
    return done.finding, made, a.float() @ b.float(), counter


@pytest.mark.parametrize("seed", range(3))
def test_a_right_kernel_is_right_in_every_order(seed):
    finding, made, right, _ = launched(0, seed)
    assert finding is None
    torch.testing.assert_close(made, right, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("fault", FAULTS, ids=FAULTS.get)
def test_a_fault_is_found(fault):
    finding, made, right, _ = launched(fault, 1)
    assert finding is not None or not torch.allclose(made, right, rtol=2e-3, atol=2e-2), FAULTS[fault]
    if fault == 4:
        assert finding.kind == "stuck" and "would hang" in finding.sentence and finding.program == (0, 0, 0)


def test_addresses_are_looked_at_without_data():
    finding, _, _, counter = launched(0, 1, skips_floats=True)
    assert finding is None and float(counter.by_program["rounds"]) == STEPS
    assert float(counter.by_program["load_bytes"]) == STEPS * 2 * 64 * 64 * 2  # without what is never copied


def test_copies_share_latencies_as_far_as_they_are_ahead_in_every_order():
    for seed in range(4):
        ring, at_once = (most_of(launched(fault, seed)[3])["latencies"] for fault in (0, AT_ONCE.value))
        assert ring < at_once == STEPS


TURNED = """
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
module attributes {"ttg.num-warps" = 1 : i32} {
  tt.func public @k(%p: !tt.ptr<f32>, %q: !tt.ptr<i32>) attributes {noinline = false} {
    %end = arith.constant dense<END> : tensor<8xi32, #b>
    %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32, #b>
    %ps = tt.splat %p : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>, #b>
    %pi = tt.addptr %ps, %i : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>
    %x = tt.load %pi : tensor<8x!tt.ptr<f32>, #b>
    %at = arith.TURN %end, %i : tensor<8xi32, #b>
    %m = ttg.local_alloc : () -> !ttg.memdesc<8xf32, #s, #smem, mutable>
    ttg.local_scatter %m[%at], %x {axis = 0 : i32} : !ttg.memdesc<8xf32, #s, #smem, mutable>, tensor<8xi32, #b>, tensor<8xf32, #b>
    %bits = ttg.memdesc_reinterpret %m : !ttg.memdesc<8xf32, #s, #smem, mutable> -> !ttg.memdesc<8xi32, #s, #smem, mutable>
    %y = ttg.local_gather %bits[%i] {axis = 0 : i32} : !ttg.memdesc<8xi32, #s, #smem, mutable>, tensor<8xi32, #b> -> tensor<8xi32, #b>
    %qs = tt.splat %q : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>, #b>
    %qi = tt.addptr %qs, %i : tensor<8x!tt.ptr<i32>, #b>, tensor<8xi32, #b>
    tt.store %qi, %y : tensor<8x!tt.ptr<i32>, #b>
    tt.return
  }
}
"""


@pytest.mark.parametrize(("turn", "end", "found"), [("subi", 7, ""), ("subi", 8, "out_of_bounds"), ("andi", 6, "race")])
def test_elements_of_shared_memory_are_found_by_their_numbers(turn, end, found):
    memory, x = DeviceMemory(), torch.randn(8)
    for defined in (True, False):
        memory.add(32, defined=defined)
    memory.buffers[0].data.copy_(x.view(torch.uint8))
    text = TURNED.replace("TURN", turn).replace("END", str(end))
    done = launch(parse(text), (1, 1, 1), [Pointer(buffer=0), Pointer(buffer=1)], memory)
    assert (done.finding.kind if done.finding else "") == found
    if not found:
        assert torch.equal(memory.buffers[1].data.view(torch.float32), x.flip(0))
