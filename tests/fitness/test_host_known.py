"""Host-known inputs from end to end: `run` reads sequence offsets while it is recorded, and meets the same ones after."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.record.recorder import record_case
from evo_kernel.tasks.loading import load
from evo_kernel.types import Purpose, Source, Status

TASK = '''"""Sums of packed sequences of different lengths."""

import torch

HOST_KNOWN = {1}
CASES = {"check": [{"rows": 37, "parts": 5}, {"rows": 129, "parts": 1}], "search": [{"rows": 40000, "parts": 64}]}


def inputs(case, generator, device):
    x = torch.randn(case["rows"], 16, generator=generator, device=device)
    cuts = torch.randint(0, case["rows"] + 1, (case["parts"] - 1,), generator=generator, device=device)
    ends = torch.tensor([0, case["rows"]], device=device)
    return x, torch.cat([cuts, ends]).sort().values.to(torch.int32)


def reference(x, offsets):
    bounds = offsets.tolist()
    return torch.stack([x[a:b].sum(0) for a, b in zip(bounds, bounds[1:])])
'''
KERNEL = """import torch
import triton
import triton.language as tl

BLOCK = 32


@triton.jit
def sum_kernel(x_ptr, y_ptr, first, last, part, BLOCK: tl.constexpr):
    columns = tl.arange(0, 16)
    total = tl.zeros((16,), dtype=tl.float32)
    for start in range(first, last, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + rows[:, None] * 16 + columns[None, :], mask=rows[:, None] < last, other=0.0)
        total += tl.sum(x, axis=0)
    tl.store(y_ptr + part * 16 + columns, total)


def run(x, offsets):
    bounds = offsets.tolist()
    y = torch.empty(len(bounds) - 1, 16, device=x.device)
    for part, (first, last) in enumerate(zip(bounds, bounds[1:])):
        sum_kernel[(1,)](x, y, first, last, part, BLOCK=BLOCK)
    return y
"""


def written(folder: Path, text: str = TASK) -> Path:
    path = folder / "packed_sum.py"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    task = load(written(tmp_path_factory.mktemp("packed")))
    with open_judge(task, device="cpu", settings=JudgeSettings(tune_plans=0)) as made:
        yield made


def test_run_may_size_its_launches_by_host_known_values(judge):
    evaluation = judge.evaluate(Source(KERNEL), Purpose.PROBE)
    assert evaluation.status is Status.PASSED, evaluation.reason


@pytest.mark.parametrize(
    "reading",
    [
        "[offsets[i].item() for i in range(len(offsets))]",
        "offsets.cpu().tolist()",
        "[0, *(torch.diff(offsets.cpu()).cumsum(0)).tolist()]",
    ],
)
def test_honest_ways_to_read(judge, reading):
    evaluation = judge.evaluate(Source(KERNEL.replace("offsets.tolist()", reading)), Purpose.PROBE)
    assert evaluation.status is Status.PASSED, evaluation.reason


def test_a_kernel_that_reads_them_can_be_wrong(judge):
    text = KERNEL.replace("y, first, last, part,", "y, first, last - (part == 0), part,")
    evaluation = judge.evaluate(Source(text), Purpose.PROBE)
    assert evaluation.status is Status.WRONG, evaluation.reason


@pytest.mark.parametrize(
    "reading", ["x[0, 0].item()", "x.cpu()[0, 0].item()", "(x[:5, 0].cpu() + offsets[:5].cpu()).sum()"]
)
def test_other_inputs_stay_unknown(judge, reading):
    bounds = "    bounds = offsets.tolist()"
    evaluation = judge.evaluate(Source(KERNEL.replace(bounds, f"{bounds}\n    assert {reading} < 100")), Purpose.PROBE)
    assert evaluation.status is Status.REJECTED
    assert "HOST_KNOWN" in evaluation.reason or "on cpu" in evaluation.reason


def test_a_changed_copy_is_forgotten(judge):
    text = KERNEL.replace("offsets.tolist()", "offsets.cpu().add_(0).tolist()")
    assert judge.evaluate(Source(text), Purpose.PROBE).status is Status.REJECTED


def test_what_is_recorded_is_what_is_checked(tmp_path):
    task = load(written(tmp_path))
    case = task.cases[0]
    told = record_case(task, case).inputs[1]["host"]
    seen = set()
    for seed in range(3):
        for regime in regimes.REGIMES:
            x, offsets = regimes.apply(regime, task.inputs(case, torch.Generator().manual_seed(seed), "cpu"))
            assert offsets.tolist() == told
            seen.add(float(x[0, 0]))
    assert len(seen) > 8  # the other inputs stay fresh
    assert "host" not in record_case(task, case).inputs[0]


def test_only_what_they_depend_on_is_drawn(tmp_path):
    large = TASK.replace("torch.randn(case", "torch.randn(1 << 20, case")  # 2.4 TB
    task = load(written(tmp_path, large))
    assert task.host_values(task.cases[2])[1].shape == (65,)
    by_floats = TASK.replace("[cuts, ends]", "[cuts * (x[0, 0] < 9), ends]")
    assert load(written(tmp_path, by_floats)).host_values(task.cases[2])[1][-1] == 40000
    in_place = TASK.replace("    return x,", "    cuts[:] = 9 + x[0, 0].abs()\n    return x,", 1)
    assert load(written(tmp_path, in_place)).host_values(task.cases[2])[1][1:-1].unique().numel() == 1


def test_values_cannot_be_changed_from_outside(tmp_path):
    task = load(written(tmp_path))
    case = task.cases[0]
    told = record_case(task, case).inputs[1]["host"]
    task.inputs(case, torch.Generator(), "cpu")[1].zero_()
    assert record_case(task, case).inputs[1]["host"] == told


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("HOST_KNOWN = {1}", "HOST_KNOWN = {0}", "float32. Only integer inputs"),
        ('"rows": 37, "parts": 5', '"rows": 37, "parts": 70000', "70001 elements; at most 65536"),
    ],
)
def test_what_cannot_be_host_known_is_said(tmp_path, old, new, says):
    task = load(written(tmp_path, TASK.replace(old, new)))
    with pytest.raises(TaskError, match=says):
        record_case(task, task.cases[0])


def test_a_shape_that_the_generator_decides_is_said(tmp_path):
    text = TASK.replace(
        "return x, torch.cat([cuts, ends])", "n = int(cuts[0])\n    return x, torch.cat([cuts, ends])[: n % 3 + 2]"
    )
    task = load(written(tmp_path, text))
    with pytest.raises(TaskError, match="another shape or dtype"):
        for seed in range(9):
            task.inputs(task.cases[0], torch.Generator().manual_seed(seed), "cpu")
