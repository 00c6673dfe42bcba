"""TritonBench problems as tasks: forms, fresh values, sizes of the timings, what writes to its arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evo_kernel.errors import TaskError
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.importers.tritonbench import entries
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.probe import probe
from evo_kernel.types import CaseKind
from tests.support.tritonbench import tritonbench


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tritonbench(tmp_path_factory.mktemp("tritonbench"))


@pytest.fixture(scope="module")
def scaled(root):
    return load(f"tritonbench:{root}/T/scaled_add")


def drawn(task, case, seed=3) -> Any:
    return task.inputs(case, torch.Generator().manual_seed(seed), "cpu")


def test_problems_are_found_by_channel_and_name(root):
    assert [entry.label for entry in entries(f"{root}")] == [
        "T/fill_rows", "T/of_a_box", "T/scaled_add", "T/uncut", "G/doubled", "G/powers",
    ]  # fmt: skip
    assert entries(f"{root}/T/scaled_add.py")[0].spec == f"tritonbench:{root}/T/scaled_add"


def test_timings_give_the_sizes_without_making_the_others(scaled):
    (search,), (confirm,) = scaled.cases_of(CaseKind.SEARCH), scaled.cases_of(CaseKind.CONFIRM)
    assert (dict(search), dict(confirm)) == ({"perf": 2}, {"perf": 1})  # 2^30 elements each are too many
    assert [spec.shape for spec in scaled.input_specs(search)] == [(1 << 22,)] * 2
    assert scaled.input_names == ("x", "y") and scaled.allow == "kernels"
    assert str(Path.cwd().parent) not in sys.path  # its script adds the folder above its own, wherever it runs


def test_a_case_has_fresh_values_of_one_form(scaled):
    larger, case = scaled.cases_of(CaseKind.CHECK)  # of that form the test has written numbers: small timings stand in
    assert (dict(larger), dict(case)) == ({"perf": 1}, {"perf": 0})
    one, again, other = drawn(scaled, case), drawn(scaled, case), drawn(scaled, case, 4)
    assert torch.equal(one[0], again[0]) and not torch.equal(one[0], other[0])
    assert torch.equal(scaled.reference(*one), one[0] + one[1])
    assert "1 calls of its test have other arguments" in scaled.description
    assert not [finding for finding in probe(scaled) if finding.fatal]
    assert "torch.ops" not in first_kernel(scaled).text


def test_what_is_written_in_numbers_is_varied_and_what_is_written_to_is_returned(root):
    task = load(f"tritonbench:{root}/T/fill_rows")
    case = task.cases_of(CaseKind.CHECK)[0]
    assert dict(case) == {"test": 1, "written": (1,)}  # the other form drops at random
    x, rows = drawn(task, case)
    assert sorted(rows.tolist()) == [0, 2]
    assert len({tuple(drawn(task, case, seed)[1].tolist()) for seed in range(8)}) == 2
    kept = x.clone()
    made, written = task.reference(x, rows)
    assert torch.equal(x, kept) and torch.equal(made, written) and made[rows].eq(2).all()


def test_triton_kernels_are_executed_and_are_their_own_first_kernel(root):
    task = load(f"tritonbench:{root}/G/doubled")
    assert (task.allow, task.host_known, task.input_names) == ("mixed", {1}, ("x", "order", "out"))
    case = task.cases_of(CaseKind.CHECK)[0]
    x, order, out = drawn(task, case)
    assert order.tolist() == sorted(order.tolist(), reverse=True)  # as it is written: a kernel goes where it points
    assert torch.equal(task.reference(x, order, out), 2 * x.flip(0)) and out.eq(0).all()
    assert torch.equal(task.truth(x.double() / 3, order, out)[0], x.double().flip(0) / 3 * 2)
    seed = first_kernel(task).text
    assert "out_given = out.clone()" in seed and "_tensors(Doubled.apply(x, order, out_given), out_given)" in seed


def test_what_runs_on_a_gpu_runs_on_a_cpu(root):
    task = load(f"tritonbench:{root}/G/powers")
    x, out = drawn(task, task.cases_of(CaseKind.CHECK)[0])
    wanted = x * x + x.float().pow(2).bfloat16()
    assert task.input_names == ("x", "out")
    assert torch.equal(task.reference(x, out), wanted) and out.eq(0).all()


def test_the_task_text_is_a_task_file_of_its_own(scaled, tmp_path):
    (tmp_path / "written.py").write_text(scaled.text)
    again = load(tmp_path / "written.py")
    case = scaled.cases_of(CaseKind.CHECK)[0]
    assert torch.equal(drawn(scaled, case)[0], drawn(again, again.case(case.name))[0])


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("T/of_a_box", "is called with a Box"),
        ("T/uncut", "has no line of 146 '#'"),
        ("T/scaled_ad", "Did you mean 'scaled_add'"),
        ("T", "names 4 problems"),
        ("G/scaled_add", "has no problem 'scaled_add'"),
        ("nowhere/T/abs", "There is no folder"),
        ("data", "is no TritonBench checkout"),
    ],
)
def test_mistakes_say_what_where_and_what_to_do(root, rest, says):
    with pytest.raises(TaskError, match=says) as caught:
        load(f"tritonbench:{root}/{rest}")
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_inputs_that_do_not_fit_are_refused_in_one_sentence(scaled, monkeypatch):
    monkeypatch.setattr("evo_kernel.tasks.scripts.free_bytes", lambda device: 1_000_000)
    with pytest.raises(TaskError, match=r"need 0\.0 GB and cpu has 0\.0 GB free\. Run it on"):
        drawn(scaled, scaled.cases_of(CaseKind.SEARCH)[0])
