"""The runner without a GPU, with its real child: rounds share a process and nothing else; real sizes are looked at."""

from __future__ import annotations

import dataclasses
import json
import operator
from pathlib import Path

import pytest
import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness.check import changed_reason
from evo_kernel.fitness.correctness.error_bounds import Expected
from evo_kernel.fitness.correctness.slicing.rules import RULES, SliceStep
from evo_kernel.fitness.ir.child import _Work
from evo_kernel.fitness.ir.counting import Counter
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.module import Function, IRModule, Region
from evo_kernel.fitness.ir.program_sampling import MOST, draw
from evo_kernel.fitness.plan.launch_plan import Binary, Buffer, CompiledPlan, Fill, Launch, Plan, Pointer, View
from evo_kernel.fitness.runners import cpu_references, executor
from evo_kernel.fitness.runners.base import Checked, CheckPart
from evo_kernel.fitness.runners.cpu_references import CpuReferences, LookLimits, index_inputs
from evo_kernel.fitness.runners.cpu_runner import CpuRunner, batches, traffic_key
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Status
from tests.fitness.handmade import HEADER, lowered, softmax_plan
from tests.fitness.handmade import SOFTMAX as SOFTMAX_TEXT

ROUNDS = [(11, "nominal"), (12, "nominal"), (13, "large")]
CASE = Case("8x40", CaseKind.CHECK, {})


def task_of(reference, inputs, case=CASE) -> Task:
    return Task(
        name="t", path=Path("t.py"), text="t", cases=(case,), inputs_function=inputs, reference_function=reference,
        baselines={},
    )  # fmt: skip


SOFTMAX = task_of(
    lambda x: torch.softmax(x, -1), lambda case, generator, device: torch.randn(8, 40, generator=generator)
)


@pytest.fixture(scope="module")
def runner():
    made = CpuRunner(SOFTMAX, 90, 20.0)
    made.start()
    yield made
    made.close()


def executed(plan: Plan) -> CompiledPlan:
    """Of binaries the runner reads the IR, and what the GPU's limits are compared with."""
    binaries = tuple(Binary.model_construct(ir=kernel.code, num_warps=4, symbol=kernel.name) for kernel in plan.kernels)
    return CompiledPlan.model_construct(plan=plan, binaries=binaries)


def softmax(text: str = SOFTMAX_TEXT) -> CompiledPlan:
    return executed(softmax_plan(8, 40, text=text))


def test_every_round_is_judged_on_its_own_inputs(runner):
    assert runner.check(softmax(), CASE, ROUNDS).passed
    assert runner.check(softmax(), CASE, ROUNDS * 4).passed


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cooperative": True, "registers": 128, "num_warps": 16}, "with 133 blocks, but only 132 fit"),
        ({"global_scratch_bytes": 1 << 30}, "GB of scratch"),
        ({"parameter_bytes": (8, 8)}, "takes parameters of"),
        ({"num_warps": 64}, "2048 threads a block"),
    ],
)
def test_what_the_gpu_would_not_launch_is_not_executed(runner, fields, reason):
    compiled = softmax()
    plan, (binary,) = compiled.plan, compiled.binaries
    launch = plan.launches[0].model_copy(update={"grid": (133, 1, 1)})
    plan = plan.model_copy(update={"nodes": (launch,)})
    compiled = CompiledPlan.model_construct(plan=plan, binaries=(binary.model_copy(update=fields),))
    found = runner._checked(CheckPart(compiled, CASE, tuple(ROUNDS)))
    assert (found.status, reason in found.reason) == (Status.REJECTED, True)


def test_memory_is_poisoned_before_every_round(runner):
    """What the first round leaves in the output is not found by the second."""
    lazy = SOFTMAX_TEXT.replace("mask=mask)\n", "mask=mask & (row > 0))\n")
    assert lazy != SOFTMAX_TEXT
    result = runner.check(softmax(lazy), CASE, ROUNDS)
    assert result.status is Status.WRONG and "never written" in result.reason, result


@pytest.mark.parametrize(("was", "becomes", "status"), [("", "", Status.PASSED),
                                                        ("mask=mask)\n", "mask=mask & (row != 5))\n", Status.WRONG)])  # fmt: skip
def test_all_of_a_large_case_is_compared_if_there_is_time(runner, was, becomes, status):
    plan, large = softmax(SOFTMAX_TEXT.replace(was, becomes)), dataclasses.replace(CASE, kind=CaseKind.SEARCH)
    assert runner.check_in_full(plan, large, 0.0) is None
    assert runner.check_in_full(plan, large, 30.0).status is status


def test_what_memory_does_not_suffice_for_is_refused_in_words(runner, monkeypatch):
    large = dataclasses.replace(CASE, kind=CaseKind.SEARCH)
    monkeypatch.setattr("evo_kernel.tasks.scripts.free_bytes", lambda device: 2 * 8 * 40 * 4 - 1)
    with pytest.raises(TaskError, match=r"case 8x40: .* need 0\.0 GB and cpu has 0\.0 GB free\..* judge it on a GPU"):
        runner.check(softmax(), large, ROUNDS[:1])
    monkeypatch.setattr("evo_kernel.tasks.scripts.free_bytes", lambda device: 2 * 8 * 40 * 4)
    assert runner.check(softmax(), large, ROUNDS[:1]).passed


def test_a_late_round_is_a_timeout():
    endless = SOFTMAX_TEXT.replace(
        "    row = tl.program_id(0)\n",
        "    row = tl.program_id(0)\n    while tl.load(x_ptr, volatile=True) < 1e30:\n        tl.debug_barrier()\n",
    )
    assert endless != SOFTMAX_TEXT
    quick = CpuRunner(SOFTMAX, 90, 1.0)
    try:
        result = quick.check(softmax(endless), CASE, ROUNDS * 20)
    finally:
        quick.close()
    assert result.status is Status.TIMEOUT and "within 1 s" in result.reason, result


def test_a_write_far_away_is_named_with_its_line(runner):
    result = runner.check(softmax(SOFTMAX_TEXT + "    tl.store(y_ptr + 2**33, 0.0)\n"), CASE, ROUNDS)
    assert result.status is Status.RUNTIME_ERROR and "behind the end of output 0" in result.reason, result


def test_loads_whose_masked_lanes_count_are_named(runner):
    """Only where nothing else is undefined."""
    text = SOFTMAX_TEXT.replace(', other=-float("inf")', "")
    assert text != SOFTMAX_TEXT
    result = runner.check(softmax(text), CASE, ROUNDS)
    assert result.status is Status.WRONG and "Write other=0" in result.reason and "(line " in result.reason, result
    lazy = text.replace("mask=mask)\n", "mask=mask & (row > 0))\n")
    result = runner.check(softmax(lazy), CASE, ROUNDS)
    assert result.status is Status.WRONG and "never written" in result.reason, result


def test_an_input_that_is_changed_is_named(runner):
    text = SOFTMAX_TEXT + "    tl.store(x_ptr + row * x_stride, 0.0)\n"
    result = runner.check(softmax(text), CASE, ROUNDS)
    assert (result.status, result.reason) == (Status.WRONG, changed_reason(0))


@pytest.mark.parametrize(
    "answer",
    [
        {"rounds": []},
        {"rounds": 3},
        {"rounds": [{}]},
        {"rounds": [{"outputs": [4]}]},
        {"rounds": [{"outputs": [1 << 40]}]},
        {"rounds": [None]},
        {"rounds": [{"fault": {"status": "passed", "reason": ""}}]},
        b"",
        b"\xff" * 64,
    ],
)
def test_a_forged_answer_never_passes(runner, monkeypatch, answer):
    text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    data = text if isinstance(answer, bytes) else len(text).to_bytes(8, "little") + text
    forged = executor.Zygote.run
    monkeypatch.setattr(executor.Zygote, "run", lambda *args: dataclasses.replace(forged(*args), data=data))
    assert runner.check(softmax(), CASE, ROUNDS).status is not Status.PASSED


def test_large_rounds_travel_alone():
    plan = softmax_plan(2048, 4096)
    assert [len(batch) for batch in batches(plan, ROUNDS)] == [1, 1, 1]
    assert [len(batch) for batch in batches(softmax_plan(8, 40), ROUNDS)] == [3]


def test_warps_alone_are_not_counted_again():
    keys = [traffic_key(executed(softmax_plan(8, 40, num_warps=n)), CASE) for n in (4, 8)]
    assert keys[0] == keys[1]
    assert keys[0] != traffic_key(executed(softmax_plan(8, 41)), CASE)
    assert keys[0] != traffic_key(executed(softmax_plan(8, 40)), dataclasses.replace(CASE, name="other"))


# --- real size ------------------------------------------------------------------------------------------------------

LARGE = Case("large", CaseKind.SEARCH, {})


PARTLY = LookLimits(whole_s=0.0, part_s=0.1, slices_s=0.3)


def look(text: str, rows: int, columns: int, limits: LookLimits = PARTLY) -> Checked:
    return look_at(softmax_plan(rows, columns, text=text), rows, columns, limits)


def look_at(plan: Plan, rows: int, columns: int, limits: LookLimits, timed: bool = False) -> Checked:
    task = task_of(
        lambda x: torch.softmax(x, -1), lambda case, g, device: torch.randn(rows, columns, generator=g), LARGE
    )
    looking = CpuRunner(task, 90, 60.0, limits)
    try:
        if not timed:
            return looking.check(executed(plan), LARGE, ROUNDS[:1])
        measured = looking.measure(executed(plan), LARGE, ROUNDS[0][0])
        return measured if isinstance(measured, Checked) else Checked(Status.PASSED)
    finally:
        looking.close()


HOW_MUCH = [(256, LookLimits(whole_s=60.0)), (2048, PARTLY)]


@pytest.mark.parametrize(("rows", "limits"), HOW_MUCH)
def test_a_right_kernel_passes_whole_and_in_part(rows, limits):
    found = look(SOFTMAX_TEXT, rows, 512, limits)
    assert (found.status, found.reason, found.error) == (Status.PASSED, "", pytest.approx(0, abs=1))
    told, whole = found.compared, limits is not PARTLY
    assert told is not None and (told.whole, told.of, told.error) == (whole, rows * 512, found.error)
    assert told.error > 0 and (told.elements == told.of) == whole and told.elements >= 512


@pytest.mark.parametrize(("rows", "limits"), HOW_MUCH)
@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ("mask=mask)\n", "mask=mask & (row % 2 == 0))\n", "never written"),
        ("row * x_stride", "(row % 128) * x_stride", "off by"),
        ("row * y_stride", "(row % 128) * y_stride", ""),
    ],
)
def test_a_kernel_that_saves_work_at_real_size_is_found(was, becomes, says, rows, limits):
    text = SOFTMAX_TEXT.replace(was, becomes) if was != "mask=mask)\n" else becomes.join(SOFTMAX_TEXT.rsplit(was, 1))
    assert text != SOFTMAX_TEXT
    for timed in (False, True):  # which counts first, and surveys what takes long only
        result = look_at(softmax_plan(rows, 512, text=text), rows, 512, limits, timed)
        assert result.status in (Status.WRONG, Status.RUNTIME_ERROR) and says in result.reason, result


def test_a_plan_whose_count_says_that_it_is_short_is_executed_whole():
    plan, child = executed(softmax_plan(2048, 2048)), executor.Executor(60.0, repeat=True)
    try:
        counted = child.count(plan, {}, 1, complete=False)
        assert not isinstance(counted, Checked)
        free = [dataclasses.replace(one, load_bytes=0.0, store_bytes=0.0, flops={}) for one in counted]
        for known, is_whole in (((), False), (counted, False), (free, True)):
            answer = child.execute_large(plan, (torch.randn(2048, 2048),), 0.02, 0.01, known)
            assert not isinstance(answer, Checked) and answer[0].whole == is_whole
    finally:
        child.close()


OTHER_ROWS = ("    tl.store(", "    if row % 41 == 7:\n        e += 1.0\n    tl.store(")


def test_programs_that_go_another_way_are_looked_at():
    """Every 41st row is wrong: of 8 random programs that would stay unseen four times in five."""
    result = look(SOFTMAX_TEXT.replace(*OTHER_ROWS), 4096, 64, LookLimits(whole_s=0.0, part_s=1e-9))
    assert result.status is Status.WRONG and "off by" in result.reason, result


PEAK_IF_NEEDED = (
    "    e = tl.exp(x - tl.max(x, axis=0))\n",
    "    peak = 0.0\n    if tl.max(x, axis=0) > 3.0:\n        peak = tl.max(x, axis=0)\n    e = tl.exp(x - peak)\n",
)
STORE_IF = "    if tl.max(x, axis=0) > {}:\n        tl.store("


@pytest.mark.parametrize(
    ("was", "becomes", "parts", "says"),
    [
        (*PEAK_IF_NEEDED, 1, ""),
        ("    tl.store(", STORE_IF.format(-1e30), 0, ""),
        ("    tl.store(", STORE_IF.format(2.0), 0, "never written"),
    ],
)
def test_what_data_decides_is_executed_whole_only_where_it_stores(was, becomes, parts, says, monkeypatch):
    compared, compare = [], CpuReferences.compare_part
    monkeypatch.setattr(CpuReferences, "compare_part", lambda *args: compared.append(1) or compare(*args))
    result = look(SOFTMAX_TEXT.replace(was, becomes), 2048, 64)
    assert result.passed is not bool(says) and says in result.reason, result
    assert len(compared) == parts


def test_programs_are_drawn_in_corners_where_they_differ_and_at_random():
    grid, generator = (50, 40, 2), torch.Generator()
    entry = Function("none", (), (), Region(()), public=True)
    nothing = IRModule(entry, {"none": entry})
    counter = Counter(nothing, DeviceMemory(), 4000, footprints=False)
    counter.reached[7][::41] += 1
    counter.by_program["load_bytes"][33] = 4.0
    for seed in range(20):
        few, many = (
            draw(grid, counter, torch.full((4000,), seconds), 1.0, generator.manual_seed(seed))
            for seconds in (0.01, 1e-6)
        )
        for drawn in (few, many):
            assert {0, 3999, 33} <= set(drawn.tolist()) and bool((drawn % 41 == 0).any())
            assert torch.equal(drawn, drawn.unique())
        assert len(few) == 100 and len(many) == MOST
    assert draw((3, 1, 1), Counter(nothing, DeviceMemory(), 3, False), torch.ones(3), 1e-9, generator).tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(("stored", "count"), [(64.0, 1250), (4096.0, MOST)])
def test_more_programs_are_drawn_where_they_store_little(stored, count):
    entry = Function("none", (), (), Region(()), public=True)
    counter = Counter(IRModule(entry, {"none": entry}), DeviceMemory(), 40_000, footprints=False)
    counter.by_program["store_bytes"] += stored
    assert len(draw((40_000, 1, 1), counter, torch.full((40_000,), 1e-6), 1.0, torch.Generator())) == count


WRONG_TEXT = SOFTMAX_TEXT.replace("row * x_stride", "0 * x_stride")


@pytest.mark.parametrize("text", [SOFTMAX_TEXT, WRONG_TEXT])
def test_where_no_element_can_be_had_in_time_more_is_taken(text):
    assert look(text, 256, 512, LookLimits(whole_s=0.0, part_s=0.1, slices_s=1e-9)).passed == (text == SOFTMAX_TEXT)


ONE_ROW = ("    tl.store(", "    if row == 3:\n        e += 1.0\n    tl.store(")


@pytest.mark.parametrize("instead_s", [60.0, 0.0])
def test_where_slices_are_of_few_rows_the_whole_reference_decides(instead_s):
    limits = LookLimits(whole_s=0.0, slices_s=1e-5, instead_s=instead_s)
    told = look(SOFTMAX_TEXT, 16, 1 << 15, limits).compared
    assert told is not None and (told.elements > 1 << 17) == (instead_s > 0)
    if instead_s:
        assert look(SOFTMAX_TEXT.replace(*ONE_ROW), 16, 1 << 15, limits).status is Status.WRONG


@pytest.mark.parametrize("text", [SOFTMAX_TEXT, WRONG_TEXT])
@pytest.mark.parametrize("raises_at", ["planning", "running"])
def test_where_a_rule_of_slicing_fails_the_whole_reference_decides(text, raises_at, monkeypatch):
    def fail(*_):
        raise IndexError("a rule that does not know this reference")

    def rule(value, region, known):
        return fail() if raises_at == "planning" else SliceStep([], fail)

    monkeypatch.setitem(RULES, "_softmax", rule)
    assert look(text, 256, 512).passed == (text == SOFTMAX_TEXT)


def test_an_output_that_no_program_writes_is_compared_whole():
    """Its input given back, as no launch has a part in it."""
    plan = softmax_plan(2048, 512)
    result = look_at(plan.model_copy(update={"outputs": plan.inputs}), 2048, 512, PARTLY)
    assert result.status is Status.WRONG and "off by" in result.reason, result


@pytest.mark.parametrize(("path", "says"), [((0, 2, 0, 1), ""), ((0, 2, 2, 0, 0, 1), "changes its input 0")])
def test_launches_that_no_output_needs_are_looked_at_where_they_change_an_input(path, says):
    """`path`: what launches read and write, in turn; buffer 2 is a workspace, buffer 1 the output."""
    plan = softmax_plan(2048, 64)
    (launch,) = plan.launches
    ways = [tuple(Pointer(buffer=number) for number in path[at : at + 2]) for at in range(0, len(path), 2)]
    nodes = tuple(launch.model_copy(update={"args": (*way, *launch.args[2:])}) for way in ways)
    plan = plan.model_copy(update={"nodes": nodes, "buffers": (*plan.buffers, plan.buffers[1])})
    found = look_at(plan, 2048, 64, PARTLY)
    assert found.passed is not bool(says) and says in found.reason, found


@pytest.mark.parametrize("limits", [PARTLY, LookLimits(whole_s=0.005, slices_s=0.3)])
def test_zeros_that_no_program_stores_are_compared_where_most_are_zero(limits, monkeypatch):
    """One element in 740 exceeds 3; of them the launch stores those of eight rows."""
    monkeypatch.setattr(CpuReferences, "compare", None)  # slices tell
    text = SOFTMAX_TEXT.replace("tl.exp(x - tl.max(x, axis=0))", "tl.maximum(x - 3.0, 0.0)").replace(
        " / tl.sum(e, axis=0)", ""
    )
    plan = softmax_plan(2048, 512, text=text)
    (launch,) = plan.launches
    nodes = (Fill(view=plan.outputs[0], value=0.0), launch.model_copy(update={"grid": (8, 1, 1)}))
    task = task_of(lambda x: torch.relu(x - 3.0), lambda case, g, device: torch.randn(2048, 512, generator=g), LARGE)
    looking = CpuRunner(task, 90, 60.0, limits)
    try:
        lazy = plan.model_copy(update={"nodes": nodes})
        results = [looking.check(executed(made), LARGE, ROUNDS[:1]) for made in (plan, lazy)]
    finally:
        looking.close()
    assert results[0].passed and results[1].status is Status.WRONG and "off by" in results[1].reason, results


# --- index inputs ---------------------------------------------------------------------------------------------------

ROWS, WIDTH = 50_000, 256


def embedding_inputs(case, generator, device):
    table = torch.randn(ROWS, WIDTH, generator=generator, device=device)
    return table, torch.randint(0, case.get("rows", ROWS), (4096,), generator=generator, device=device)


FIRST_ROW = Case("first row", CaseKind.CHECK, {"rows": 1})


GATHERED = "tl.store(y_ptr + at * WIDTH + columns, tl.load(t_ptr + row * WIDTH + columns))"
SCATTERED = "tl.atomic_add(y_ptr + row % 4096 * WIDTH + columns, tl.load(t_ptr + at * WIDTH + columns))"


def gather_plan(last: str = GATHERED) -> Plan:
    text = (
        HEADER + "@triton.jit\ndef gather_kernel(t_ptr, i_ptr, y_ptr, WIDTH: tl.constexpr):\n"
        "    at = tl.program_id(0)\n    row = tl.load(i_ptr + at)\n    columns = tl.arange(0, WIDTH)\n"
        f"    {last}\n"
    )
    kinds = (("t_ptr", "*fp32"), ("i_ptr", "*i64"), ("y_ptr", "*fp32"), ("WIDTH", "constexpr"))
    kernel = lowered(text, "gather_kernel", kinds, (WIDTH,), (), ())
    views = (
        View(buffer=0, dtype="float32", shape=(ROWS, WIDTH), strides=(WIDTH, 1)),
        View(buffer=1, dtype="int64", shape=(4096,), strides=(1,)),
        View(buffer=2, dtype="float32", shape=(4096, WIDTH), strides=(WIDTH, 1)),
    )
    sizes = [view.elements * view.item_bytes for view in views]
    return Plan(
        case="8x40",
        target=90,
        inputs=views[:2],
        buffers=(*(Buffer(kind="input", bytes=size) for size in sizes[:2]), Buffer(kind="scratch", bytes=sizes[2])),
        kernels=(kernel,),
        nodes=(Launch(kernel=0, grid=(4096, 1, 1), args=tuple(Pointer(buffer=i) for i in range(3))),),
        outputs=(views[2],),
    )


def test_a_gather_reads_the_rows_that_its_indices_name():
    drawing = CpuRunner(task_of(lambda t, i: t[i], embedding_inputs), 90, 20.0)
    try:
        (real,) = drawing.traffic(executed(gather_plan()), CASE)
        (zeros,) = drawing.traffic(executed(gather_plan()), FIRST_ROW)
    finally:
        drawing.close()
    assert real.grid_load_bytes > 0.9 * 4096 * WIDTH * 4
    assert zeros.grid_load_bytes < 0.2 * real.grid_load_bytes  # every program would read row 0


def test_updates_of_one_row_crowd_unless_its_indices_are_unknown(monkeypatch):
    task = task_of(lambda t, i: torch.zeros(4096, WIDTH).index_add(0, i % 4096, t[:4096]), embedding_inputs)
    for case, most_bytes, most in ((FIRST_ROW, 1 << 20, 4.0 * 4096), (CASE, 1 << 20, 4.0 * 16), (CASE, 0, 0.0)):
        monkeypatch.setattr(cpu_references, "MOST_BYTES", most_bytes)
        drawing = CpuRunner(task, 90, 20.0)
        try:
            (seen,) = drawing.traffic(executed(gather_plan(SCATTERED)), case)
        finally:
            drawing.close()
        assert seen.crowd == most or 4.0 < seen.crowd < most < 4096


def test_index_inputs_are_drawn_without_the_floats():
    huge = dataclasses.replace(CASE, name="huge")

    def inputs(case, generator, device):
        logits = torch.randn(1 << 20, 1 << 20, generator=generator, device=device) * 0.5  # four terabytes
        return logits, torch.randint(5, 9, (64,), generator=generator, device=device), 3

    task = task_of(lambda x, i, n: x, inputs, huge)
    found = index_inputs(task, huge, 3)
    assert list(found) == [1] and found[1].min() >= 5 and found[1].max() < 9
    assert torch.equal(found[1], index_inputs(task, huge, 3)[1])


@pytest.mark.parametrize(
    "mine",
    [
        lambda x, generator: x.argmax(-1),  # needs the floats themselves: drawn whole
        lambda x, generator: operator.setitem(made := torch.zeros(4, dtype=torch.int64), ..., x.argmax(-1)) or made,
        lambda x, generator: torch.randint(0, int(x.abs().max()) + 1, (4,), generator=generator),
        lambda x, generator: torch.randperm(4, generator=generator).to(torch.int32),
        lambda x, generator: torch.arange(4) % 2 == 0,
    ],
)
def test_odd_ways_to_draw_are_read(mine):
    def inputs(case, generator, device):
        x = torch.randn(4, 100, generator=generator, device=device)
        return x, mine(x, generator)

    found = index_inputs(task_of(lambda x, i: x, inputs), CASE, 3)
    assert found[1].device.type == "cpu" and found[1].shape == (4,) and bool(found[1].any())


def test_no_integers_no_draw():
    def inputs(case, generator, device):
        assert torch._C._len_torch_dispatch_stack() > 0, "floats alone must not be drawn"
        return torch.randn(4, generator=generator)

    assert index_inputs(task_of(lambda x: x, inputs), CASE, 3) == {}


def test_cross_entropy_targets_are_had():
    task = load("cross_entropy")
    for case in task.cases_of(CaseKind.SEARCH):
        (targets,) = index_inputs(task, case, 3).values()
        assert targets.shape == (case["m"],) and 0 <= int(targets.min()) < int(targets.max()) < case["n"]


def test_integers_that_are_counted_are_the_runners_secret():
    task = task_of(lambda t, i: t[i], embedding_inputs)
    one, other = CpuRunner(task, 90, 20.0), CpuRunner(task, 90, 20.0)
    assert torch.equal(one.counted_indices(CASE)[1], one.counted_indices(CASE)[1])
    assert not torch.equal(one.counted_indices(CASE)[1], other.counted_indices(CASE)[1])


def test_whether_a_whole_reference_binds_anything_is_asked_once_a_draw(monkeypatch):
    asked = []
    monkeypatch.setattr(cpu_references, "unbound", lambda task, case, expected: asked.append(case) or "")
    task = task_of(torch.relu, lambda case, g, device: torch.randn(64, 64, generator=g), LARGE)
    references = cpu_references.CpuReferences(task, 60.0, LookLimits(whole_s=60.0))
    for seed in (1, 1, 2):
        inputs = references.inputs((LARGE, seed, "nominal"))
        assert references.compare_large((LARGE, seed, "nominal"), inputs, [torch.relu(inputs[0])]).passed
    assert asked == [LARGE, LARGE]


def test_integers_of_a_part_may_differ_by_their_number():
    whole = torch.zeros(10_000, dtype=torch.int32)
    expected = Expected(whole, whole, whole == 0, frobenius=100.0, largest=1.0)
    assert cpu_references._chosen(expected, torch.arange(100)).frobenius <= 2.0


COUNTING_UP = (
    HEADER
    + """@triton.jit
def count_kernel(flag_ptr, y_ptr, SIZE: tl.constexpr):
    flag = tl.load(flag_ptr)
    at = tl.arange(0, SIZE)
    tl.store(y_ptr + at, 1.0, mask=at < tl.where(flag > 0, SIZE, 8))
    tl.store(flag_ptr, flag + 1)
"""
)


@pytest.mark.parametrize("mutates", [(0,), ()])
def test_a_launch_that_an_input_changed_in_place_decides_is_counted_each_time(tmp_path, mutates):
    kinds = (("flag_ptr", "*i32"), ("y_ptr", "*fp32"), ("SIZE", "constexpr"))
    kernel = lowered(COUNTING_UP, "count_kernel", kinds, (1024,), (0, 1))
    flag = View(buffer=0, dtype="int32", shape=(1,), strides=(1,))
    launch = Launch(kernel=0, grid=(1, 1, 1), args=(Pointer(buffer=0), Pointer(buffer=1)))
    plan = Plan(
        case="flag", target=90, inputs=(flag,), kernels=(kernel,), nodes=(launch, launch),
        buffers=(Buffer(kind="input", bytes=4), Buffer(kind="scratch", bytes=4096)),
        outputs=(View(buffer=1, dtype="float32", shape=(1024,), strides=(1,)), flag),
    )  # fmt: skip
    (tmp_path / "buffer0.bin").write_bytes(bytes(4))
    answer = _Work(plan, [kernel.code], mutates, tmp_path, 20.0).count(1, complete=False)
    size = int.from_bytes(answer[:8], "little")
    first, second = json.loads(answer[8 : 8 + size])["traffic"]
    assert (first != second) == bool(mutates)
