import base64
import math

import numpy as np
import pytest
import torch

from evo_kernel.fitness.ir import counting, footprints
from evo_kernel.fitness.ir.coalescing import Runs, sectors_of
from evo_kernel.fitness.ir.count_launch import programs_with_lines, touched
from evo_kernel.fitness.ir.counting import Counter
from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.footprints import BINS, Footprints, Reuse, expand, reuse_of
from evo_kernel.fitness.ir.launch_traffic import at_least
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.nodes import memory_of, modules_of
from evo_kernel.fitness.plan.launch_plan import Constant, View
from tests.fitness.handmade import SOFTMAX, compiled_plan, counted_traffic, matmul_plan, softmax_plan


def test_one_pass_softmax_moves_every_byte_once():
    (seen,) = counted_traffic(softmax_plan(4096, 4096, num_warps=8))
    assert seen.programs == seen.sampled == 4096
    assert seen.load_bytes == seen.store_bytes == seen.load_sector_bytes == 16384
    assert seen.grid_load_bytes == seen.grid_store_bytes == pytest.approx(4096 * 16384)
    assert seen.wave_load_bytes == pytest.approx(264 * 16384)
    assert seen.rounds == 1
    assert seen.elements["mufu"] == pytest.approx(2 * 4096)  # an exponential and a division


def test_three_passes_ask_three_times_for_the_same_lines():
    (seen,) = counted_traffic(softmax_plan(4096, 4096, 256))
    assert seen.load_bytes == pytest.approx(3 * 16384)
    assert seen.grid_load_bytes == pytest.approx(4096 * 16384)
    assert seen.rounds == seen.iterations == 48


def test_a_matmul_counts_flops_and_sees_shared_tiles():
    (seen,) = counted_traffic(matmul_plan(4096, 4096, 4096, (128, 128, 64), num_warps=8))
    assert seen.programs * sum(seen.flops.values()) == pytest.approx(2 * 4096**3)
    assert seen.load_bytes == pytest.approx(2 * 128 * 4096 * 2)
    assert seen.grid_load_bytes == pytest.approx(2 * 4096 * 4096 * 2, rel=0.05)
    assert seen.wave_load_bytes == pytest.approx(43e6, rel=0.3)  # 9 rows of tiles and all 32 columns, 1 MiB each
    assert seen.rounds == 64


def test_strided_access_touches_a_sector_an_element():
    text = SOFTMAX.replace("x_ptr + row * x_stride + columns", "x_ptr + row + columns * x_stride")
    (seen,) = counted_traffic(softmax_plan(4096, 4096, text=text))
    assert seen.load_bytes == 16384
    assert seen.load_sector_bytes == 32 * 4096


def test_steps_along_an_axis_with_jumps_are_no_run():
    """Places of flat rows, of which some begin in the middle of a block: no run along the axis, which masks cut."""
    text = SOFTMAX.replace(
        "mask = columns < n_cols",
        """places = row * BLOCK + columns
    line = places // n_cols
    columns = line * (x_stride + 24) + (places - line * n_cols) - row * x_stride
    mask = line < tl.num_programs(0) - 2""",
    )
    (seen,) = counted_traffic(softmax_plan(64, 1000, text=text))
    assert seen.grid_load_bytes == pytest.approx(62 * 4096, rel=0.05)


def test_tables_say_what_programs_do():
    """Each program reads how many columns are its own; in a table left as zeros it would have none."""
    text = SOFTMAX.replace("mask = columns < n_cols", "mask = columns < tl.load(y_ptr + row * x_stride + n_cols - 1)")
    plan = softmax_plan(64, 4096, text=text)
    view = View(buffer=1, dtype="float32", shape=(64,), strides=(4096,), offset=4095)  # where nothing is stored
    table = Constant(view=view, data=base64.b64encode(np.full(64, 1000.0, np.float32).tobytes()).decode())
    (seen,) = counted_traffic(plan.model_copy(update={"nodes": (table, *plan.nodes)}))
    assert seen.load_bytes == 4 + 1000 * 4


def test_the_same_plan_has_the_same_traffic():
    plan = matmul_plan(512, 512, 512, (64, 64, 32))
    assert counted_traffic(plan) == counted_traffic(plan)


@pytest.mark.parametrize(("groups", "sampled", "count"), [(32, 24, 264), (8, 20, 1000), (4, 16, 132)])
def test_groups_are_found_from_what_a_sample_shares(groups, sampled, count):
    different = groups * (1 - (1 - 1 / groups) ** sampled)
    assert expand(different, sampled, count) == pytest.approx(groups * (1 - (1 - 1 / groups) ** count), rel=1e-3)


def test_nothing_shared_means_everything_is_different():
    assert expand(16.0, 16, 264) == 264
    assert expand(1.0, 16, 264) == pytest.approx(1.0)


def test_lines_of_all_hide_nobodys_own_lines():
    """Each of 4096 programs reads 16 KiB of its own, and 2 KiB that all read: as groups, they were taken to be few."""
    text = SOFTMAX.replace("e = tl.exp(x", "x += tl.sum(tl.load(x_ptr + tl.arange(0, 512))) * 1e-9\n    e = tl.exp(x")
    (seen,) = counted_traffic(softmax_plan(4096, 4096, text=text))
    assert seen.load_bytes == 16384 + 2048
    assert seen.grid_load_bytes == 4096 * 16384


@pytest.fixture
def pages():
    """4096 programs, each with a page of 4 KiB of its own, one of ten for 16 of them, and one for all."""
    memory = DeviceMemory()
    memory.add(64 << 20, defined=True)
    programs = torch.arange(4096)
    places = torch.stack([programs, 8192 + programs // 16 * 10, torch.full((4096,), 12288)], dim=1).reshape(-1)

    def made(seed: int) -> Footprints:
        found = Footprints(memory, seed)
        for part in torch.arange(places.numel()).split(1000):
            starts = DeviceMemory.address(0) + places[part] * 4096
            found.add("load", Runs(starts, torch.full_like(starts, 4096), part // 3, starts))
        return found

    return made, (4096 + 256 + 1) * 4096


def test_where_lines_are_too_many_a_part_of_memory_stands_for_all(pages, monkeypatch):
    made, truth = pages
    assert made(1).different("load") == truth
    monkeypatch.setattr(footprints, "MOST_KEPT", 1500)
    for seed in range(5):
        assert made(seed).different("load") == pytest.approx(truth, rel=0.06)


@pytest.mark.parametrize("most_kept", [60, 700, 1_000_000])
def test_many_small_accesses_are_counted_together_as_one_by_one(most_kept, monkeypatch):
    """Lines are thinned out at the same accesses, by the same draws."""
    monkeypatch.setattr(footprints, "MOST_KEPT", most_kept)
    memory, draw = DeviceMemory(), torch.Generator().manual_seed(5)
    for size in (8 << 20, 1 << 20, 2 << 20):
        memory.add(size, defined=True)

    def access(number: int) -> tuple[str, Runs]:
        programs = torch.arange(8)
        buffers = torch.randint(min(3, 1 + number // 20), (8,), generator=draw)  # some of several, the last ones later
        buffers = buffers if number % 7 == 0 else buffers[:1].expand(8)
        places = torch.randint(1 << 19, (8,), generator=draw) if number % 3 else programs * 256 + number * 2048
        lengths = torch.randint(4, 600, (8,), generator=draw)
        starts = torch.tensor([DeviceMemory.address(b) for b in (0, 1, 2)])[buffers] + places * (number != 33)
        starts = starts - (1 << 50) * (number == 33)  # at no buffer
        return ("store" if number % 5 == 0 else "load"), Runs(starts, lengths, programs, programs)

    accesses = [access(number) for number in range(200)]
    alone, grouped = Footprints(memory, 3), Footprints(memory, 3)
    for kind, runs in accesses:
        alone.add(kind, runs)
    for first, end in ((0, 1), (1, 90), (90, 92), (92, 200)):
        grouped.add_all(accesses[first:end])
    assert alone.seen == grouped.seen
    for kind in ("load", "store"):
        for some in (None, torch.tensor([1, 4, 6])):
            assert alone.different(kind, some) == grouped.different(kind, some) > 0
        assert alone.expanded(kind, torch.arange(8), 100) == grouped.expanded(kind, torch.arange(8), 100)


@pytest.mark.parametrize("plan", [softmax_plan(300, 1000, 256), matmul_plan(512, 512, 256, (64, 64, 32))])
def test_traffic_is_the_same_whether_accesses_wait_for_others(plan, monkeypatch):
    together = counted_traffic(plan)
    monkeypatch.setattr(counting, "_SMALL", -1)
    assert counted_traffic(plan) == together


def test_what_all_of_a_sample_share_says_nothing_of_the_rest():
    memory = DeviceMemory()
    memory.add(64 << 20, defined=True)
    found, few = Footprints(memory, 1), torch.arange(0, 4096, 64)
    places = torch.stack([few, torch.full_like(few, 8192)], dim=1).reshape(-1)
    starts = DeviceMemory.address(0) + places * 4096
    found.add("load", Runs(starts, torch.full_like(starts, 4096), few.repeat_interleave(2), starts))
    assert found.expanded("load", few, 4096) == 4097 * 4096


def test_gaps_between_lines_are_no_lines():
    memory = DeviceMemory()
    memory.add(64 << 20, defined=True)
    found, programs = Footprints(memory, 1), torch.arange(8)
    starts = DeviceMemory.address(0) + programs // 2 * (1 << 20)  # by twos: four groups, or a few more
    found.add("load", Runs(starts, torch.full_like(starts, 4096), programs, starts))
    assert found.expanded("load", programs, 264) == pytest.approx(4.5 * 4096, rel=0.1)


@pytest.mark.parametrize(
    ("lanes", "sectors"),
    [
        (torch.arange(64).flip(0), 8),
        (torch.arange(64) ^ 1, 8),
        (torch.randperm(32, generator=torch.Generator().manual_seed(1)), 4),
        (torch.arange(64) * 4, 32),
        (torch.arange(64) % 2 * 32 + torch.arange(64) // 2, 8),  # 16 lanes of a warp here, 16 there: 2 sectors each
        (torch.arange(64) * 8, 64),
    ],
)
def test_a_warp_asks_for_a_sector_once_in_whatever_order_its_lanes_lie(lanes, sectors):
    starts = DeviceMemory.address(0) + 4 * torch.cat([lanes, lanes + 1024])
    owners = torch.arange(2).repeat_interleave(lanes.numel())
    runs = Runs(starts, torch.full_like(starts, 4), owners, torch.arange(lanes.numel()).repeat(2))
    who, counts = sectors_of(runs)
    assert torch.zeros(2, dtype=torch.int64).index_add_(0, who, counts).tolist() == [sectors, sectors]


def test_lines_that_an_execution_touched_are_more_than_what_was_counted():
    (seen,) = counted_traffic(softmax_plan(1024, 1024))
    same = {"touched.load_sectors": 1.0, "touched.load_lines": 1.2 * seen.few_load_bytes}
    assert at_least(seen, same) == seen
    more = at_least(seen, {"touched.load_sectors": 8.0, "touched.load_lines": 4.0 * seen.few_load_bytes})
    assert more.load_bytes == seen.load_bytes and more.load_sector_bytes == 8 * seen.load_sector_bytes
    assert more.grid_load_bytes == 4 * seen.grid_load_bytes and more.wave_load_bytes == 4 * seen.wave_load_bytes


@pytest.mark.parametrize("rows", [40, 96, 1024])
def test_as_many_programs_are_compared_as_an_execution_looks_at(rows):
    (seen,) = counted_traffic(softmax_plan(rows, 1024))
    assert seen.few_load_bytes == programs_with_lines(torch.arange(rows), 1).numel() * 4096


def test_lines_are_kept_of_the_programs_that_are_looked_at():
    plan = compiled_plan(matmul_plan(512, 512, 64, (128, 128, 64)))
    (module,), memory, node = (
        modules_of(plan.plan, [one.ir for one in plan.binaries]), memory_of(plan.plan, {}), plan.plan.launches[0],
    )  # fmt: skip
    few, told = torch.tensor([0, 5, 9]), []
    for kept, ran in ((few, None), (True, few)):
        counter = Counter(module, memory, 16, footprints=kept)
        launch(module, node.grid, node.args, memory, programs=ran, observer=counter)
        told.append(touched(counter, few))
    assert told[0] == told[1] and told[0]["touched.store_lines"] == 3 * 128 * 128 * 2


def test_reuse_distances_are_those_of_a_stack():
    generator = torch.Generator().manual_seed(0)
    owners = torch.randint(3, (400,), generator=generator).sort().values
    lines = torch.randint(60, (400,), generator=generator)
    stacks: dict[int, list[int]] = {program: [] for program in range(3)}
    found = []
    for program, line in zip(owners.tolist(), lines.tolist(), strict=True):
        stack = stacks[program]
        if line in stack:
            found.append((program, len(stack) - stack.index(line)))
            stack.remove(line)
        stack.append(line)
    bins = [0.0] * BINS
    for program, distance in found:
        bins[min(BINS - 1, math.floor(-2 * math.log2(distance / len(stacks[program]))))] += 1
    distinct = sum(map(len, stacks.values()))
    rounds = torch.arange(400)
    reuse = reuse_of(owners, lines, lines, rounds, 1, distances=True)
    assert reuse.again == pytest.approx([count / distinct for count in bins])
    assert reuse.new_rounds == distinct / 400  # each line in a round of its own


def test_of_many_lines_some_are_observed():
    owners, first = torch.arange(4).repeat_interleave(300), (torch.arange(100) * 16384).repeat(12)
    rounds = torch.arange(300).repeat(4)
    reuse = reuse_of(owners, first, first + 4999, rounds, 1, distances=True)
    assert reuse.again[0] == sum(reuse.again) == pytest.approx(2.0)
    assert reuse.new_rounds == pytest.approx(1 / 3)
    assert reuse_of(owners[:100], first[:100], first[:100] + 4999, rounds[:100], 1, distances=True) == Reuse()


STORE = "    tl.store(y_ptr + row * y_stride + columns, e / tl.sum(e, axis=0), mask=mask)\n"
OTHER = "    tl.store(y_ptr + row * y_stride + columns, tl.load(y_ptr + row * y_stride + columns, mask=mask) * 2.0, mask=mask)\n"


@pytest.mark.parametrize(
    ("body", "own"),
    [
        (STORE, 0.0),
        (STORE + OTHER, 1.0),
        (OTHER + STORE, 0.0),  # memory is asked before anything is stored
        (OTHER + STORE + OTHER, 0.0),
        (STORE.replace("mask=mask", "mask=mask & (columns % 32 > 0)") + OTHER, 0.0),  # never a whole line
        (STORE.replace("mask=mask", "mask=columns < n_cols // 2") + OTHER, 0.5),
        (STORE.replace("tl.store", "tl.atomic_add") + OTHER, 0.0),  # reads what it adds to
    ],
)
def test_what_a_program_stored_before_it_loads_it_is_told_apart(body: str, own: float):
    (seen,) = counted_traffic(softmax_plan(64, 1024, text=SOFTMAX.replace(STORE, body)))
    assert STORE in SOFTMAX and seen.own_load_bytes == pytest.approx(own * 64 * 4096)
    assert seen.grid_load_bytes == pytest.approx((2 if OTHER in body else 1) * 64 * 4096, rel=0.01) or "atomic" in body


@pytest.mark.parametrize("rows", [64, 40_000])
@pytest.mark.parametrize(
    ("update", "requests"),
    [
        ("y_ptr + columns, e, mask=mask", 4.0),  # sectors of a line, by each program
        ("y_ptr + columns * 0, e, mask=mask", 64.0),
        ("y_ptr, tl.sum(e, axis=0)", 1.0),
        ("y_ptr + row * y_stride + columns, e, mask=mask", 0.0),
    ],
)
def test_requests_of_the_line_that_most_are_of_are_counted(rows: int, update: str, requests: float):
    """All programs update the same lines, or each its own: of the many, a part is counted."""
    body = f"    tl.atomic_add({update})\n"
    (seen,) = counted_traffic(softmax_plan(rows, 64, text=SOFTMAX.replace(STORE, body)))
    assert seen.crowd == pytest.approx(max(4.0, requests * rows), rel=0.01)


@pytest.mark.parametrize(
    ("places", "lines"),
    [
        ("columns", 8),
        ("columns * 8", 64),
        ("columns * 32", 256),
        ("columns // 4 * 32", 64),
        ("columns // 8 * 8 + columns % 8", 8),
    ],
)
def test_lines_that_warps_store_to_are_counted(places: str, lines: int):
    for how in (f"atomic_add(y_ptr + {places}, e", f"store(y_ptr + {places}, 0.0"):
        text = SOFTMAX.replace(STORE, f"    tl.{how}, mask=mask)\n")
        (seen,) = counted_traffic(softmax_plan(64, 256, text=text))
        assert seen.store_lines == lines


@pytest.mark.parametrize(
    ("places", "mask", "lanes"),
    [
        ("columns", "mask", 256),
        ("columns", "columns < n_cols // 2", 128),
        ("columns * 7 % 256", "mask", 256),
        ("columns * 0", "mask", 1),
        ("columns // 32", "mask", 8),
        ("columns % 32", "mask", 32),
        ("columns % 32 * 4", "columns % 2 == 0", 16),
        ("(tl.arange(0, 8) * 4)[:, None] + tl.arange(0, 8)[None, :]", "True", 36),
    ],
)
def test_what_several_lanes_load_counts_once(places: str, mask: str, lanes: int):
    body = f"    x = tl.load(x_ptr + row * x_stride + {places}, mask={mask}, other=0.0)\n"
    text = (
        SOFTMAX[: SOFTMAX.index("    x = ")]
        + body
        + "    tl.store(y_ptr + row, tl.max(tl.reshape(x, x.numel), axis=0))\n"
    )
    (seen,) = counted_traffic(softmax_plan(64, 256, text=text))
    assert seen.distinct_load_bytes == 4 * lanes


@pytest.mark.parametrize("most_kept", [5000, 1_000_000])
@pytest.mark.parametrize(
    ("row", "own"), [("row", 1.0), ("0", 0.0), ("(row // 2)", 0.0), ("(row // 1024 * 1024 + row % 7)", 0.0)]
)
def test_lines_that_others_store_too_are_no_programs_own(row: str, own: float, most_kept: int, monkeypatch):
    """In a buffer of which all lines are loaded and stored, so that its size tells nothing."""
    monkeypatch.setattr(footprints, "MOST_KEPT", most_kept)
    body = f"""    part = tl.arange(0, BLOCK // 4)
    own = x_ptr + {row} * x_stride + part
    tl.store(own, tl.zeros((BLOCK // 4,), tl.float32))
    rest = x_ptr + row * x_stride + BLOCK // 4 + part
    ticket = tl.atomic_add((rest + BLOCK // 2).to(tl.pointer_type(tl.int32)), 1)
    tl.store(rest, tl.load(rest) + tl.load(own + tl.where(ticket < 0, 1, 0)))
"""
    text = SOFTMAX[: SOFTMAX.index("    columns")] + body
    (seen,) = counted_traffic(softmax_plan(4096, 1024, text=text))
    assert seen.own_load_bytes == pytest.approx(own * 4096 * 1024, rel=0.1)


def test_rows_that_begin_inside_a_line_lose_that_line_alone():
    (seen,) = counted_traffic(softmax_plan(64, 1000, text=SOFTMAX.replace(STORE, STORE + OTHER)))
    assert 0.95 * 64 * 4000 < seen.own_load_bytes < 64 * 4000
