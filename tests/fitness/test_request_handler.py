"""What the GPU process does with plans, on a simulated GPU."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import re
import struct

import pytest
import torch

from evo_kernel.errors import PlanError, TaskError
from evo_kernel.fitness.correctness.error_bounds import Expected, expect
from evo_kernel.fitness.correctness.references import SMALL_BYTES, SealedReferences
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.plan.launch_plan import Buffer, Constant, Relocation, View
from evo_kernel.fitness.runners.cuda_memory import Arena, ConstantTable, plan_bytes
from evo_kernel.fitness.runners.cuda_worker import RequestHandler
from evo_kernel.fitness.runners.sampling import Metronome, TimedWork, sample
from evo_kernel.fitness.runners.worker_state import Disturbed, MemoryShares, PlanFailed, fill
from evo_kernel.fitness.timing.ceilings import Ceilings
from evo_kernel.fitness.timing.estimates import CLAIM, TIMING, PairVerdict, summarise
from evo_kernel.types import CheckResult, Status
from tests.fitness.fake_gpu import SETTINGS, FakeDevice, memory, mixed, plan, task_in, timed

CHECK = {"plan": 0, "case": "m3-n7", "rounds": [[11, "nominal"], [12, "large"]]}
PASSED = CheckResult(case="", passed=True, error=0.0)
TIME = {"plan": 1, "case": "m64-n128", "seed": 5, "check": True, "against_us": None}


@pytest.fixture
def task(tmp_path):
    return task_in(tmp_path)


@pytest.fixture
def handler(task):
    return RequestHandler(task, FakeDevice(), SETTINGS)


def ask(handler, name, checks=(CHECK,), timings=(TIME,)):
    plans = [plan(name, 3, 7), plan(name, 64, 128)]
    return handler.answer(plans.__getitem__, checks, timings)


def damage(handler, asked):
    """What a kernel that writes far outside its buffers does to an input that is kept."""
    ((seed, regime), *_) = asked["rounds"]
    handler.state.draw(handler.state.task.case(asked["case"]), seed, regime)[0].mul_(2.0)


def test_an_honest_plan_passes_and_is_timed(handler):
    answer = ask(handler, "honest_80")
    assert [c["status"] for c in answer["checks"]] == ["passed"] and answer["checks"][0]["error"] <= 1
    timing = answer["timings"][0]
    assert timing["status"] == "passed" and timing["state"]["clock_mhz"] == 1980.0
    assert summarise(timing["samples_us"]).median_us == pytest.approx(80, rel=0.01)
    assert (
        0 <= timing["error"] <= 1
        and ask(handler, "honest_80", (), ({**TIME, "check": False},))["timings"][0]["error"] is None
    )
    assert timing["sets"] > 1 and not answer["fatal"] and answer["drift"] == pytest.approx(0, abs=0.01)
    assert {"load", "run", "compare", "capture", "time", "metronome"} <= set(answer["spent_s"])


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("wrong", Status.WRONG, "off by"),
        ("nothing", Status.WRONG, "never written"),
        ("random", Status.WRONG, "two runs"),
        ("unwritten", Status.WRONG, "memory nothing wrote"),
        ("beyond", Status.WRONG, "memory nothing wrote"),
        ("input", Status.WRONG, "changes its input 0"),
        ("outside", Status.WRONG, "outside a buffer"),
        ("refused", Status.REJECTED, "does not take it"),
        ("oom", Status.RUNTIME_ERROR, "out of GPU memory"),
        ("illegal", Status.RUNTIME_ERROR, "illegal memory access"),
    ],
)
def test_faults_are_answers_and_end_the_request(handler, name, status, reason):
    answer = ask(handler, name)
    assert len(answer["checks"]) == 1 and not answer["timings"]
    assert answer["checks"][0]["status"] == status and reason in answer["checks"][0]["reason"]
    assert answer["fatal"] == (name == "illegal")


def test_others_are_blamed_for_the_memory_that_they_have(handler, monkeypatch):
    monkeypatch.setattr(handler.state.device, "others_bytes", lambda: 1 << 27)
    with pytest.raises(Disturbed, match="of which other processes have"):
        ask(handler, "oom")


@pytest.mark.parametrize(("held", "others", "clears"), [(100, 20, 0), (100, 100, 1), (10, 240, 0), (200, 1, 1)])
def test_room_is_made_where_most_memory_is_taken(handler, monkeypatch, held, others, clears):
    state, device = handler.state, handler.state.device
    monkeypatch.setattr(device, "held_bytes", lambda: held << 20)
    monkeypatch.setattr(device, "others_bytes", lambda: others << 20)
    ask(handler, "honest")
    released = device.released
    state.make_room()
    assert device.released == released + clears


def test_a_torch_operation_that_no_graph_can_hold_is_named(handler):
    handler.state.device.waiting = True
    answer = handler.state.guarded(lambda: handler.state.device.capture(lambda: None))
    assert answer["reason"].startswith("a torch operation cannot be timed: CUDA error: operation not permitted")


SECOND = {"plan": 1, "case": "m4-n33", "rounds": [[21, "nominal"]]}


@pytest.mark.parametrize(
    ("names", "statuses"),
    [
        (("honest", "honest"), ["passed", "passed"]),
        (("wrong", "honest"), ["wrong"]),
        (("honest", "wrong"), ["passed", "wrong"]),
        (("honest", "refused"), ["passed", "rejected"]),
        (("wrong", "refused"), ["wrong"]),
        (("honest", "illegal"), [None, "runtime_error"]),
        (("wrong", "illegal"), [None, "runtime_error"]),
    ],
)
def test_a_group_of_checks_is_answered_part_by_part(handler, names, statuses):
    plans = [plan(names[0], 3, 7), plan(names[1], 4, 33)]
    answer = handler.answer(plans.__getitem__, [CHECK, SECOND], [])
    assert [c and c["status"] for c in answer["checks"]] == statuses
    assert answer["fatal"] == ("illegal" in names)


def test_a_damaged_input_is_drawn_again_within_a_group(handler):
    plans = [plan("honest", 3, 7), plan("honest", 4, 33)]
    handler.answer(plans.__getitem__, [CHECK, SECOND], [])
    for asked in (CHECK, SECOND):
        damage(handler, asked)
    answer = handler.answer(plans.__getitem__, [CHECK, SECOND], [])
    assert [c["status"] for c in answer["checks"]] == ["passed", "passed"]
    assert [c["status"] for c in handler.answer(plans.__getitem__, [SECOND], [])["checks"]] == ["passed"]


CHAOS_AT_FULL_SIZE = """

def reference(x):
    x = torch.softmax(x, dim=-1)
    for _ in range(200 if len(x) == 64 else 0):
        x = 3.9 * x * (1.0 - x)
    return x
"""


def test_a_timed_case_on_which_any_output_would_pass_is_rejected(tmp_path):
    handler = RequestHandler(task_in(tmp_path, CHAOS_AT_FULL_SIZE), FakeDevice(), SETTINGS)
    answer = ask(handler, "honest_80")
    assert answer["checks"][0]["status"] == "passed"
    assert answer["timings"][0]["status"] == Status.REJECTED
    assert answer["timings"][0]["reason"].startswith("on m64-n128: nothing can be told")


CONVERTS = """

def reference(x):
    return torch.softmax(x, dim=-1) + 0.0 * (x * 1e20).long()
"""


@pytest.mark.parametrize(("more", "seen"), [("", False), (CONVERTS, True)])
def test_inputs_whose_conversion_to_integers_is_undefined_are_refused_where_a_reference_converts(tmp_path, more, seen):
    handler = RequestHandler(task_in(tmp_path, more), FakeDevice(), SETTINGS)
    state, case = handler.state, handler.state.task.case("m3-n7")
    inputs = state.draw(case, 12, "large")
    refused = pytest.raises(TaskError, match="does not hold it") if seen else contextlib.nullcontext()
    with refused, state.expected(case, 12, "large", inputs):
        pass


def test_an_output_that_a_timed_launch_does_not_write_is_found(handler):
    answer = ask(handler, "lazy")
    assert answer["checks"][0]["status"] == "passed"
    assert answer["timings"][0]["status"] == Status.WRONG
    found = answer["timings"][0]["reason"]
    assert re.search(r"two timed launches on the same inputs differ.* \(\d+ of \d+ write other bits", found), found


@pytest.mark.parametrize("tolerance", ["", 'TOLERANCE = "atomics"\n'])
def test_a_kernel_that_is_idle_at_some_addresses_is_found(tmp_path, tolerance):
    handler = RequestHandler(task_in(tmp_path, tolerance), FakeDevice(), SETTINGS)
    found = ask(handler, "places", checks=())["timings"][0]
    assert found["status"] == Status.WRONG, found
    what = "wrong when timed" if tolerance else "differ"
    assert re.search(rf"{what}.*\(\d+ of \d+ write other bits than the first\)$", found["reason"]), found["reason"]


@pytest.mark.parametrize("settings", [SETTINGS, dataclasses.replace(CLAIM, rest=0.0)])
def test_every_timed_launch_finds_nothing_of_earlier_ones(task, settings):
    """In every mode: samples, claims, pairs, tuning (unchecked), baselines."""
    device = FakeDevice()
    handler = RequestHandler(task, device, settings)
    assert ask(handler, "honest_80")["timings"][0]["status"] == "passed"
    assert ask(handler, "honest_80", checks=(), timings=({**TIME, "check": False},))["timings"][0]["status"] == "passed"
    plans = [plan("honest_80", 64, 128), plan("honest_90", 64, 128)]
    handler.pair(plans.__getitem__, {"case": "m64-n128", "seed": 3, "check": False})
    assert device.launches > 60 and device.unprepared == 0 and device.unpins > 10
    assert len(device.poisons) > 60  # what no launch writes differs between launches
    before, timed_before = device.clears, device.launches
    handler.timer.time_function(task.case("m64-n128"), timed(task.reference_function, device, 70.0), settings)
    assert device.clears - before >= settings.few and device.launches == timed_before


def test_what_a_launch_finds_in_its_output_does_not_tell_that_it_is_timed(handler):
    answer = ask(handler, "sniffs_80")
    assert answer["checks"][0]["status"] == "passed"
    assert summarise(answer["timings"][0]["samples_us"]).median_us == pytest.approx(80, rel=0.01)


def test_where_buffers_lie_decides_no_comparison(task):
    device = FakeDevice()
    device.slow_places = 4
    both = [plan("honest_50", 64, 128)] * 2
    found = RequestHandler(task, device, SETTINGS).pair(
        both.__getitem__, {"case": "m64-n128", "seed": 3, "check": True}
    )
    comparison = found["comparison"]
    assert comparison["verdict"] == PairVerdict.EQUAL and abs(comparison["ratio"] - 1) < 0.005, comparison


def test_no_launch_finds_results_of_earlier_torch_operations(task):
    """In checks, samples and pairs; plans without such operations pay nothing."""
    device = FakeDevice()
    handler = RequestHandler(task, device, SETTINGS)
    plans = [mixed(plan("honest_80", 3, 7)), mixed(plan("honest_80", 64, 128))]
    assert handler.answer(plans.__getitem__, [CHECK], [TIME])["timings"][0]["status"] == "passed"
    handler.pair([plans[1], plans[1]].__getitem__, {"case": "m64-n128", "seed": 3, "check": False})
    assert device.launches > 60 and device.stale_results == 0
    wipes = device.wipes
    ask(handler, "honest_80", checks=(), timings=({**TIME, "check": False},) * 2)
    assert device.wipes - wipes == 1  # what the mixed plans left


def test_launches_of_a_check_begin_as_timed_ones_do(handler):
    ask(handler, "honest_80", timings=())
    assert handler.state.device.clears == handler.state.device.launches == 4
    assert handler.state.device.in_place == 2  # the second run of each round


@pytest.mark.parametrize("settings", [SETTINGS, dataclasses.replace(CLAIM, rest=0.0, metronome_bytes=1 << 12)])
@pytest.mark.parametrize("check", [True, False])
def test_one_wrong_launch_among_many_is_found(task, settings, check, launch=70):
    """Early or late (some 40 belong to the warm-up), whether or not outputs are compared with the reference."""
    device = FakeDevice()
    handler = RequestHandler(task, device, dataclasses.replace(settings, many=200, usual=150, few=100))
    answer = ask(handler, f"late_{launch}", checks=(), timings=({**TIME, "check": check},))["timings"][0]
    assert answer["status"] == Status.WRONG and "two timed launches on the same inputs differ" in answer["reason"]


@pytest.mark.parametrize("launch", range(58, 66))
def test_a_replay_that_leads_a_batch_is_compared_as_timed_ones_are(task, launch):
    """A batch has two sets here, so every other replay is not timed. Some 50 belong to the warm-up."""
    settings = dataclasses.replace(SETTINGS, many=200, usual=150, few=100, places=1)
    handler = RequestHandler(task, FakeDevice(), settings)
    both = [plan("honest_50", 64, 128), plan(f"late_{launch}", 64, 128)]
    paired = handler.pair(both.__getitem__, {"case": "m64-n128", "seed": 3, "check": True})
    for answer in (ask(handler, f"late_{launch}", checks=())["timings"][0], paired):
        assert answer["status"] == Status.WRONG and "two timed launches on the same inputs differ" in answer["reason"]


def test_where_bits_may_differ_the_launch_that_differs_most_is_compared(tmp_path):
    task = task_in(tmp_path, 'TOLERANCE = "atomics"\n')
    for _ in range(3):
        handler = RequestHandler(task, FakeDevice(), dataclasses.replace(SETTINGS, many=200, usual=150, few=100))
        assert ask(handler, "often", checks=())["timings"][0]["status"] == Status.WRONG
        assert ask(handler, "honest_50", checks=())["timings"][0]["status"] == "passed"


@pytest.mark.parametrize(("name", "reason"), [("once_30", "changes its input 0"), ("flips_50", "changes its input 0"),
                                              ("outside_50", "outside a buffer")])  # fmt: skip
def test_what_one_timed_launch_changes_is_noticed(handler, name, reason):
    answer = ask(handler, name, checks=())["timings"][0]
    assert answer["status"] == Status.WRONG and reason in answer["reason"]


def test_what_lies_between_the_elements_of_an_input_is_watched(task, handler):
    dense = plan("honest", 3, 7)
    sparse = dense.plan.inputs[0].model_copy(update={"strides": (9, 1)})
    sizes = (Buffer(kind="input", bytes=sparse.span()[1]), *dense.plan.buffers[1:])
    one = dense.model_copy(update={"plan": dense.plan.model_copy(update={"inputs": (sparse,), "buffers": sizes})})
    arena, values = Arena(one, memory), (torch.randn(3, 9)[:, :7],)
    fill(arena, one, values)
    handler.state.undisturbed(one, [arena], [values])
    arena.bytes_of(0)[7 * 4] = 0
    with pytest.raises(PlanFailed, match="changes its input 0"):
        handler.state.undisturbed(one, [arena], [values])


def test_a_baseline_that_changes_its_inputs_is_named(task, handler):
    case = task.case("m64-n128")
    with pytest.raises(TaskError, match="the baseline changes its inputs"):
        handler.timer.time_function(case, lambda x: x.neg_(), CLAIM)
    assert handler.state.intact()


def test_an_arena_is_poisoned_but_for_its_inputs_and_holds_the_scratch_of_its_launches():
    one = plan("honest", 8, 8)
    (binary,) = one.binaries
    binary = binary.model_copy(update={"global_scratch_bytes": 200, "global_scratch_align": 128})
    one = one.model_copy(update={"binaries": (binary,)})
    first, second = Arena(one, memory), Arena(one, memory)
    address, none = first.scratch(0)
    assert address % 128 == 0 and none == 0 and second.scratch(0)[0] != address
    assert plan_bytes(one) == 2 * 8 * 8 * 4 + 8 * 200
    first.memory.zero_()
    first.set_canary(0x11)
    first.poison()
    scratch = first.memory[address - first.memory.data_ptr() :][: 8 * 200]
    assert bool((scratch == 0xFF).all()) and bool((first.bytes_of(1) == 0xFF).all())
    assert not first.bytes_of(0).any() and first.broken_canary() is None
    first.poison(None)
    for dtype in (torch.float32, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        found = first.bytes_of(1).view(dtype).float()
        assert bool(found.isfinite().all()) and bool((found != 0).all()) and found.unique().numel() > 30
    assert not first.bytes_of(0).any() and first.broken_canary() is None
    first.memory[address - first.memory.data_ptr() + 8 * 200 + 128] = 0  # behind the scratch
    assert first.broken_canary() is not None
    seen = first.tensor(one.plan.outputs[0])  # all that a torch operation can reach of it is its buffer
    assert seen.data_ptr() == first.address(1) and seen.untyped_storage().nbytes() == first.bytes_of(1).numel()


def test_results_of_torch_are_buffers_where_they_lie_if_they_are_whole_ones():
    one = plan("honest", 3, 8)
    (output,) = one.plan.outputs
    inner = output.model_copy(update={"buffer": 2})
    buffers = (*one.plan.buffers, one.plan.buffers[1])
    arena = Arena(one.model_copy(update={"plan": one.plan.model_copy(update={"buffers": buffers})}), memory)
    arena.memory.zero_()
    at_home = arena.address(2)
    part, turned = torch.ones(2, 3, 8)[0], torch.ones(8, 3).t()
    for value in (part, turned, torch.ones(3, 8, dtype=torch.int32), arena.tensor(output)):
        assert not arena.adopt(inner, value) and arena.address(2) == at_home
    result = torch.ones(3, 8)
    assert not arena.adopt(one.plan.inputs[0], result), "what an input holds then would stay"
    assert not arena.adopt(output, result), "graphs that share a pool overwrite one another's"
    assert arena.adopt(inner, result) and arena.address(2) == result.data_ptr() != at_home
    assert arena.tensor(inner).equal(result)
    arena.release()
    assert arena.address(2) == at_home and not arena.tensor(inner).any()


def test_a_table_holds_the_addresses_of_its_own_arena():
    one = plan("honest", 8, 8)
    view = View(buffer=2, dtype="int64", shape=(3,), strides=(2,), offset=1)
    table = Constant(
        view=view, data=base64.b64encode(struct.pack("<3q", 0, 7, 0)).decode(),
        relocations=(Relocation(at=0, target=1, offset=12), Relocation(at=2, target=0)),
    )  # fmt: skip
    buffers = (*one.plan.buffers, Buffer(kind="scratch", bytes=56))
    one = one.model_copy(update={"plan": one.plan.model_copy(update={"buffers": buffers, "nodes": (table,)})})
    written = ConstantTable(one, table, "cpu")
    for arena in (Arena(one, memory), Arena(one, memory)):
        arena.poison()
        written.write(arena)
        want = [-1, arena.address(1) + 12, -1, 7, -1, arena.address(0), -1]
        assert arena.bytes_of(2).view(torch.int64).tolist() == want and arena.broken_canary() is None


def test_an_innocent_plan_survives_one_that_wrote_into_what_is_kept(handler):
    ask(handler, "honest_80")
    damage(handler, CHECK)
    assert not handler.state.inputs.intact()
    answer = ask(handler, "honest_80")
    assert answer["checks"][0]["status"] == answer["timings"][0]["status"] == "passed", answer
    assert handler.state.inputs.intact()


def test_freed_memory_is_wiped_between_a_comparison_and_the_next_kernel(handler):
    ask(handler, "honest_80")
    assert handler.state.device.wipes >= 1  # between the check's comparison and the timing
    before = handler.state.device.wipes
    ask(handler, "honest_80", timings=())
    assert handler.state.device.wipes > before


def test_what_is_asked_decides_how_long_it_is_timed(handler):
    plain = ask(handler, "honest_80", checks=())["timings"][0]["samples_us"]
    clear = ask(handler, "honest_80", checks=(), timings=({**TIME, "against_us": 40.0},))["timings"][0]["samples_us"]
    assert len(clear) == TIMING.few < len(plain)
    handler.timer.settings = CLAIM
    assert len(ask(handler, "honest_80", checks=())["timings"][0]["samples_us"]) >= CLAIM.few


def test_rounds_that_do_not_fit_at_once_are_run_in_turns(task):
    handler = RequestHandler(task, FakeDevice(), SETTINGS, budget=MemoryShares(check_bytes=1))
    assert ask(handler, "honest", timings=())["checks"][0]["status"] == "passed"


def test_a_large_reference_gets_the_memory_of_idle_buffers(task):
    def given_back(free_bytes):
        device = FakeDevice()
        device.free_bytes = lambda: free_bytes
        handler = RequestHandler(task, device, SETTINGS)
        ask(handler, "honest", checks=())
        cleared = []
        handler.state.arenas.clear = lambda: cleared.append(1)
        inputs = handler.state.draw(task.case("m64-n128"), 77)
        result = handler.state.compare(task.case("m64-n128"), 77, "nominal", inputs, (torch.softmax(*inputs, -1),))
        assert result.passed and handler.state.intact()
        return bool(cleared)

    size = 64 * 128 * 4
    assert given_back(7 * size) and not given_back(9 * size)


def test_a_kernel_whose_clocks_disagree_is_refused(task):
    device = FakeDevice()
    device.now = lambda: (device.us + 1e4 * device.launches) * 1e-6  # each of its launches takes more than events say
    answer = ask(RequestHandler(task, device, SETTINGS), "honest_2000", checks=())
    assert answer["timings"][0]["status"] == Status.REJECTED and "wall clock" in answer["timings"][0]["reason"]


def test_pairs_whose_clocks_disagree_are_refused(task):
    device = FakeDevice()
    handler = RequestHandler(task, device, SETTINGS)
    plans, part = [plan("honest_2000", 64, 128)] * 2, {"case": "m64-n128", "seed": 3, "check": True}
    assert handler.pair(plans.__getitem__, part)["status"] == Status.PASSED
    device.now = lambda: (device.us + 1e4 * device.launches) * 1e-6
    answer = handler.pair(plans.__getitem__, part)
    assert answer["status"] == Status.REJECTED and "wall clock" in answer["reason"]


def test_a_gpu_that_others_use_is_the_machines_fault(task):
    with pytest.raises(Disturbed, match=r"another process uses this GPU.*wall clock.*CUDA_VISIBLE_DEVICES"):
        ask(RequestHandler(task, FakeDevice(skew=3.0), SETTINGS), "honest_2000", checks=())


def test_our_own_copies_are_never_watched_for_long():
    device = FakeDevice(noise=0.0)
    metronome = Metronome(device, SETTINGS)
    assert metronome.disturbed(60e6) == ""  # a minute of the kernel's
    assert device.us < 2 * TIMING.looks * TIMING.stretch_us


def test_a_passing_disturbance_is_sampled_again(task):
    device, skewed = FakeDevice(), []

    def now():
        skewed.append(device.samples < 30)
        return device.us * 1e-6 * (3.0 if skewed[-1] else 1.0)

    device.now = now
    handler = RequestHandler(task, device, SETTINGS)
    handler.timer.metronome.disturbed = lambda stretch_us: ""
    assert ask(handler, "honest_2000", checks=())["timings"][0]["status"] == Status.PASSED and any(skewed)


def test_a_claim_rests_between_short_bursts(task):
    device, batches = FakeDevice(noise=0.05), []
    synchronize = device.synchronize
    device.synchronize = lambda: (batches.append(device.samples), synchronize())[1]
    handler = RequestHandler(task, device, SETTINGS)
    handler.timer.settings = dataclasses.replace(CLAIM, rest=0.0)
    ask(handler, "honest_2000", checks=())
    assert max(b - a for a, b in itertools.pairwise(batches)) <= CLAIM.burst_us / 2000 * 1.1 + 1  # not timed


def test_a_plan_for_other_inputs_is_refused(handler):
    answer = handler.answer([plan("honest", 3, 8)].__getitem__, [CHECK], [])
    assert answer["checks"][0]["status"] == Status.REJECTED

    def invalid(position):
        raise PlanError("not a plan")

    assert handler.answer(invalid, [CHECK], [])["checks"][0]["reason"] == "not a plan"


@pytest.mark.parametrize(
    ("challenger", "verdict"), [("honest_90", "faster"), ("honest_110", "slower"), ("honest_100", "equal")]
)
def test_pairs(handler, challenger, verdict):
    plans = [plan("honest_100", 64, 128), plan(challenger, 64, 128)]
    answer = handler.pair(plans.__getitem__, {"case": "m64-n128", "seed": 3, "check": True})
    assert answer["status"] == "passed" and answer["comparison"]["verdict"] == verdict


def test_pairs_check_both(handler):
    plans = [plan("honest_100", 64, 128), plan("wrong_50", 64, 128)]
    answer = handler.pair(plans.__getitem__, {"case": "m64-n128", "seed": 3, "check": True})
    assert answer["status"] == Status.WRONG


@pytest.mark.parametrize("waits", [False, True], ids=["replayed", "waits for the GPU"])
def test_a_baseline_is_timed_by_the_same_clock(task, handler, waits):
    handler.state.device.waiting = waits
    case = task.case("m64-n128")
    answer = handler.timer.time_function(case, timed(task.reference_function, handler.state.device, 70.0), CLAIM)
    assert summarise(answer["samples_us"]).median_us == pytest.approx(70, rel=0.01)


def test_ceilings_are_measured_and_bound_kernels(handler):
    handler.timer.bench_sizes = {"copy_bytes": 1 << 12, "side": 16}
    found = Ceilings.from_data(handler.timer.ceilings())
    assert found is not None and found.measured and found.l2_bytes == handler.state.device.l2_bytes
    assert found.copy_bytes_per_s == pytest.approx((2 << 12) / 30e-6, rel=0.02)  # torch's work takes 30 us there
    assert found.bf16_flops == pytest.approx(2 * 16**3 / 30e-6, rel=0.02)
    table = Ceilings.of_target(target_for(90))
    assert Ceilings.from_data(table.as_data()) == Ceilings(**{**vars(table), "measured": True})
    assert Ceilings.from_data({"copy_bytes/s": 1.0}) is None
    copied = table.light_us(0, 4.26e6)
    assert copied == pytest.approx(1.0)
    assert table.light_us(789e6, None) == pytest.approx(1.0)
    slow = Ceilings(1.0, 1.0, 1.0, 1.0, 5.0, 1.0, True)
    assert slow.widened(table).floor_us(1e9, 1e9) == table.floor_us(1e9, 1e9) and slow.widened(table).launch_us == 5.0
    assert table.floor_us(None, 60 << 20) == 0.0  # writes may still lie in the L2


def test_the_metronome_sees_drift():
    device = FakeDevice(noise=0.0)
    metronome = Metronome(device, SETTINGS)
    slower = [1.0]
    capture = device.capture
    device.capture = lambda work, rehearse=False: capture(lambda: device.run_for(30 * slower[0]))  # type: ignore[method-assign]
    assert metronome.tick() == pytest.approx(0.0)
    slower[0] = 1.1
    drifts = [metronome.tick() for _ in range(TIMING.metronome_every)]
    assert drifts[0] == pytest.approx(0.0) and drifts[-1] == pytest.approx(0.1, abs=0.01)


def test_references_are_unreadable_unless_open(task):
    inputs = (torch.randn(600, 600),)
    expected = expect(task, inputs)
    assert sum(t.numel() * t.element_size() for p in expected for t in (p.truth, p.honest, p.compared)) > SMALL_BYTES
    truth = expected[0].truth.clone()
    references = SealedReferences("cpu", 1 << 30)
    with references.open(("case", 1, "nominal"), lambda: expected) as opened:
        assert torch.equal(opened[0].truth, truth) and opened[0].frobenius == expected[0].frobenius
        kept = opened[0].truth
        assert not references.intact()
    assert references.intact()
    assert (kept == truth).sum() == 0 and abs(float((kept.view(torch.int64) < 0).double().mean()) - 0.5) < 0.02
    with references.open(("case", 1, "nominal"), lambda: pytest.fail("it is kept")) as opened:
        assert torch.equal(opened[0].truth, truth)
    kept.view(torch.int64)[0, 0] ^= 1  # one word: a row of them might cancel in the sum
    assert not references.intact()


def test_the_vault_keeps_within_its_limit():
    made = []

    def make():
        made.append(1)
        values = torch.zeros(1 << 18, dtype=torch.float64)
        return (Expected(values, values.float(), values.bool(), 1.0, 1.0),)

    references = SealedReferences("cpu", 5 << 20)
    for seed in (1, 2, 2, 1):
        with references.open(("case", seed, "nominal"), make) as opened:
            assert float(opened[0].truth.abs().sum()) == 0.0
    assert len(made) == 3


@pytest.mark.parametrize(("us", "batches"), [(50, ["201", "120"]), (2000, ["012", "0"])])
def test_batches_of_short_kernels_begin_with_a_replay_on_another_set_that_is_not_timed(us, batches):
    device, ran = FakeDevice(noise=0.0), []

    def look(numbers):
        assert "".join(map(str, numbers)) in ("".join(ran).split()[-1], "012")
        ran.append(" ")

    work = TimedWork([lambda: device.run_for(us)] * 3, lambda number: ran.append(str(number)), look)
    sampled = sample(device, work, dataclasses.replace(SETTINGS, few=4, usual=4, many=4, short_factor=1))
    assert "".join(ran).split()[-2:] == batches and len(sampled.samples_us) == 4
