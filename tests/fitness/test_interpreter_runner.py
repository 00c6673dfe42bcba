"""The no-GPU runner with its real child: rounds share a process and nothing else; index inputs steer the sample."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from evo_kernel.fitness.interpreting.sampling_inputs import index_inputs
from evo_kernel.fitness.plan import Buffer, CompiledPlan, Kernel, Launch, Plan, Pointer, View
from evo_kernel.fitness.runners import interpreter_runner
from evo_kernel.fitness.runners.interpreter_runner import InterpreterRunner, _batches, _traffic_key
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Status
from tests.fitness.handmade import HEADER, in_interpreter, matmul_plan, softmax_plan

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
    made = InterpreterRunner(SOFTMAX, 90, 20.0)
    made.start()
    yield made
    made.close()


def uncompiled(plan: Plan) -> CompiledPlan:
    """Checking does not look at binaries."""
    return CompiledPlan.model_construct(plan=plan, binaries=())


def softmax(text: str = "") -> CompiledPlan:
    return uncompiled(softmax_plan(8, 40, text=text))


def test_every_round_is_judged_on_its_own_inputs(runner):
    assert runner.check(softmax(), CASE, ROUNDS).passed
    assert runner.check(softmax(), CASE, ROUNDS * 4).passed


def test_memory_is_poisoned_again_before_every_round(runner, monkeypatch):
    """What the first round leaves in the output must not be found by the second, which skips the first row.

    Kernel text may not tell the interpreter from the compiler; this one must, to know the round.
    """
    monkeypatch.setattr("evo_kernel.fitness.runners.interpreter_runner.interpreter_gap", lambda *_: "")
    text = softmax().plan.kernels[0].text
    lazy = text.replace("import triton\n", "import os\nimport triton\n", 1).replace(
        "mask=mask)\n", "mask=mask & (row > first_row()))\n", 2
    )
    assert "first_row" in lazy
    lazy = lazy.replace(
        "@triton.jit",
        "def first_row():\n    seen = os.path.exists('seen')\n    open('seen', 'w').close()\n"
        "    return 0 if seen else -1\n\n\n@triton.jit",
        1,
    )
    result = runner.check(softmax(lazy), CASE, ROUNDS)
    assert result.status is Status.WRONG and "never written" in result.reason, result


def test_a_late_round_is_a_timeout(runner):
    endless = (
        softmax()
        .plan.kernels[0]
        .text.replace("    row = tl", "    while tl.program_id(0) >= 0:\n        pass\n    row = tl")
    )
    quick = InterpreterRunner(SOFTMAX, 90, 1.0)
    try:
        result = quick.check(softmax(endless), CASE, ROUNDS * 20)
    finally:
        quick.close()
    assert result.status is Status.TIMEOUT and "within 1 s" in result.reason


def test_what_only_the_text_does_wrong_is_not_held_against_the_same_code(runner):
    text = softmax().plan.kernels[0].text
    result = runner.check(softmax(text + "    row.too(tl.int64)\n"), CASE, ROUNDS)
    assert result.status is Status.RUNTIME_ERROR and result.of_text, result
    assert "fails at `row.too(tl.int64)`: AttributeError" in result.reason
    result = runner.check(softmax(text + "    tl.store(y_ptr + 2**33, 0.0)\n"), CASE, ROUNDS)
    assert result.status is Status.RUNTIME_ERROR and not result.of_text, result


def test_an_input_that_is_changed_is_named(runner):
    text = softmax().plan.kernels[0].text + "    tl.store(x_ptr + row * x_stride, 0.0)\n"
    result = runner.check(softmax(text), CASE, ROUNDS)
    assert (result.status, result.reason) == (Status.WRONG, "the kernel changes its input 0")


@pytest.mark.parametrize(
    "answer",
    [
        {"rounds": []},
        {"rounds": 3},
        {"rounds": [{}]},
        {"rounds": [{"outputs": {"1": "AAAA"}, "inputs": {"0": "0"}}]},
        {"rounds": [None]},
        {"rounds": [{"fault": {"status": "passed", "reason": ""}}]},
    ],
)
def test_a_forged_answer_never_passes(runner, monkeypatch, answer):
    forged = interpreter_runner.Zygote.run
    monkeypatch.setattr(
        interpreter_runner.Zygote,
        "run",
        lambda *args: dataclasses.replace(forged(*args), data=json.dumps(answer).encode()),
    )
    assert runner.check(softmax(), CASE, ROUNDS).status is not Status.PASSED


def test_large_rounds_travel_alone():
    plan = softmax_plan(2048, 4096)
    assert [len(batch) for batch in _batches(plan, ROUNDS)] == [1, 1, 1]
    assert [len(batch) for batch in _batches(softmax_plan(8, 40), ROUNDS)] == [3]


def test_warps_alone_are_not_sampled_again():
    keys = [_traffic_key(softmax_plan(8, 40, num_warps=n), CASE) for n in (4, 8)]
    assert keys[0] == keys[1]
    assert keys[0] != _traffic_key(softmax_plan(8, 41), CASE)
    assert keys[0] != _traffic_key(softmax_plan(8, 40, text=HEADER), CASE)
    assert keys[0] != _traffic_key(softmax_plan(8, 40), dataclasses.replace(CASE, name="other"))


# --- what is sampled ------------------------------------------------------------------------------------------------

SAMPLE = """
import json, sys, tempfile, dataclasses, pathlib
from evo_kernel.fitness.interpreting import sampling
from evo_kernel.fitness.plan import read_plan
from evo_kernel.fitness.interpreting.sampling import sample_traffic
plan = read_plan(pathlib.Path(sys.argv[1]).read_text())
found = []
for few in (sampling.FEW, 10**6):
    sampling.FEW = few
    with tempfile.TemporaryDirectory() as folder:
        found.append([dataclasses.asdict(launch) for launch in sample_traffic(plan, pathlib.Path(folder))])
print(json.dumps(found))
"""
UNEVEN = HEADER + softmax_plan(8, 40, 32).kernels[0].text.split("\n\n\n", 1)[1].replace(
    "    row = tl.program_id(0)\n", "    row = tl.program_id(0)\n    n_cols = n_cols - 32 * (row % 7)\n"
)


@pytest.mark.parametrize(
    ("plan", "few"),
    [
        (softmax_plan(4096, 4096, 256), True),
        (softmax_plan(16384, 1000, 256), True),
        (softmax_plan(4096, 129), False),  # rows share lines
        (softmax_plan(4096, 1000, 32, text=UNEVEN), False),
        (matmul_plan(512, 512, 64, (16, 16, 16)), False),
    ],
)
def test_few_programs_are_enough_only_where_they_are_all_alike(tmp_path, plan, few):
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    (short,), (whole,) = json.loads(in_interpreter(SAMPLE, str(tmp_path / "plan.json")))
    sampled = short.pop("sampled"), whole.pop("sampled")
    assert short == whole  # the very same numbers
    assert (sampled[0] <= 20 < sampled[1]) if few else sampled[0] >= sampled[1]


# --- index inputs ---------------------------------------------------------------------------------------------------

ROWS, WIDTH = 50_000, 256


def embedding_inputs(case, generator, device):
    table = torch.randn(ROWS, WIDTH, generator=generator, device=device)
    return table, torch.randint(0, ROWS, (4096,), generator=generator, device=device)


def gather_plan() -> Plan:
    text = (
        HEADER + "@triton.jit\ndef gather_kernel(t_ptr, i_ptr, y_ptr, WIDTH: tl.constexpr):\n"
        "    at = tl.program_id(0)\n    row = tl.load(i_ptr + at)\n    columns = tl.arange(0, WIDTH)\n"
        "    tl.store(y_ptr + at * WIDTH + columns, tl.load(t_ptr + row * WIDTH + columns))\n"
    )
    kernel = Kernel(
        name="gather_kernel", text=text, constants=(((3,), WIDTH),),
        signature=(("t_ptr", "*fp32"), ("i_ptr", "*i64"), ("y_ptr", "*fp32"), ("WIDTH", "constexpr")),
    )  # fmt: skip
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
    drawing = InterpreterRunner(task_of(lambda t, i: t[i], embedding_inputs), 90, 20.0)
    try:
        (real,) = drawing.traffic(gather_plan(), CASE)
        drawing._sampled.clear()
        drawing._indices[CASE.name] = {}
        (zeros,) = drawing.traffic(gather_plan(), CASE)
    finally:
        drawing.close()
    assert real.grid_load_bytes > 0.9 * 4096 * WIDTH * 4
    assert zeros.grid_load_bytes < 0.2 * real.grid_load_bytes  # every program would read row 0


def test_index_inputs_are_drawn_without_the_floats():
    huge = dataclasses.replace(CASE, name="huge")

    def inputs(case, generator, device):
        logits = torch.randn(1 << 20, 1 << 20, generator=generator, device=device) * 0.5  # four terabytes
        return logits, torch.randint(5, 9, (64,), generator=generator, device=device), 3

    task = task_of(lambda x, i, n: x, inputs, huge)
    found = index_inputs(task, huge)
    assert list(found) == [1] and found[1].min() >= 5 and found[1].max() < 9
    assert torch.equal(found[1], index_inputs(task, huge)[1])


@pytest.mark.parametrize(
    "mine",
    [
        lambda x, generator: x.argmax(-1),  # needs the floats themselves: drawn whole
        lambda x, generator: torch.randint(0, int(x.abs().max()) + 1, (4,), generator=generator),
        lambda x, generator: torch.randperm(4, generator=generator).to(torch.int32),
        lambda x, generator: torch.arange(4) % 2 == 0,
    ],
)
def test_odd_ways_to_draw_are_read_or_left_out(mine):
    def inputs(case, generator, device):
        x = torch.randn(4, 100, generator=generator, device=device)
        return x, mine(x, generator)

    found = index_inputs(task_of(lambda x, i: x, inputs), CASE)
    assert all(value.device.type == "cpu" and value.shape == (4,) for value in found.values())


def test_no_integers_no_draw():
    def inputs(case, generator, device):
        assert torch._C._len_torch_dispatch_stack() > 0, "floats alone must not be drawn"
        return torch.randn(4, generator=generator)

    assert index_inputs(task_of(lambda x: x, inputs), CASE) == {}


def test_cross_entropy_targets_are_had():
    task = load("cross_entropy")
    for case in task.cases_of(CaseKind.SEARCH):
        (targets,) = index_inputs(task, case).values()
        assert targets.shape == (case["m"],) and 0 <= int(targets.min()) < int(targets.max()) < case["n"]
