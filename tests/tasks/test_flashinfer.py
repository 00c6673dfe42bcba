"""FlashInfer-Bench definitions as tasks: axes, workloads, files of tensors, and solutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evo_kernel.errors import TaskError
from evo_kernel.export.solutions import flashinfer_solution
from evo_kernel.tasks.importers.flashinfer import entries
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.probe import probe
from evo_kernel.types import CaseKind
from tests.support.more_benchmarks import flashinfer


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return flashinfer(tmp_path_factory.mktemp("flashinfer"))


def drawn(task, case, seed=3) -> Any:
    return task.inputs(case, torch.Generator().manual_seed(seed), "cpu")


def test_definitions_are_found_from_the_root_by_kind_and_by_name(root):
    assert [entry.label for entry in entries(f"{root}")] == ["gemm_n256", "rms_h512"]
    assert [entry.group for entry in entries(f"{root}/gemm")] == ["gemm"]


def test_workloads_are_cases_and_small_ones_are_made_where_any_size_will_do(root):
    task = load(f"flashinfer:{root}/gemm_n256")
    assert [(case["M"], case["N"]) for case in task.cases_of(CaseKind.CHECK)] == [(5, 128)]
    assert [case["M"] for case in task.cases_of(CaseKind.SEARCH)] == [4096, 100]
    assert [case["M"] for case in task.cases_of(CaseKind.CONFIRM)] == [64]
    assert task.allow == "kernels" and not probe(task)


def test_what_a_file_holds_is_read_and_small_integers_are_known_to_the_host(root):
    task = load(f"flashinfer:{root}/rms_h512")
    assert task.host_known == {2} and task.input_names == ("x", "weight", "rows", "eps")
    (case,) = task.cases_of(CaseKind.CHECK)
    x, weight, rows, eps = drawn(task, case)
    assert (x.shape, weight.dtype, rows.tolist(), eps) == ((9, 512), torch.bfloat16, [0, 1], 1e-5)
    y, scale = task.outputs(x, weight, rows, eps)
    assert y.shape == (2, 512) and torch.allclose(scale, x.float()[:2].pow(2).mean(-1).add(eps).rsqrt())
    assert not [finding for finding in probe(task) if finding.fatal]
    assert task.description == "FlashInfer-Bench rms_h512: Rows by number, normalised."


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("gemm_n25", "Did you mean 'gemm_n256'"),
        ("", "names 2 problems"),
        ("blob/x", "no definition|is no FlashInfer|no folder"),
    ],
)
def test_mistakes_say_what_where_and_what_to_do(root, rest, says):
    with pytest.raises(TaskError, match=says) as caught:
        load(f"flashinfer:{root}/{rest}".rstrip("/"))
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_a_data_set_with_holes_says_where(root, tmp_path):
    broken = flashinfer(tmp_path)
    (broken / "blob/rows_0.safetensors").unlink()
    with pytest.raises(TaskError, match=r"rows_0\.safetensors cannot be read .*Fetch the data set's files too"):
        load(f"flashinfer:{broken}/rms_h512").host_values(load(f"flashinfer:{broken}/rms_h512").cases[0])
    (broken / "workloads/gemm/gemm_n256.jsonl").write_text('{"uuid": 3}\n')
    with pytest.raises(TaskError, match="line 1 of its workloads"):
        load(f"flashinfer:{broken}/gemm_n256")
    (broken / "workloads/gemm/gemm_n256.jsonl").unlink()
    with pytest.raises(TaskError, match=r"has no gemm_n256\.jsonl"):
        load(f"flashinfer:{broken}/gemm_n256")
    (broken / "definitions/gemm/gemm_n256.json").write_text("[]")
    with pytest.raises(TaskError, match="is no definition"):
        load(f"flashinfer:{broken}/gemm_n256")


def test_a_solution_is_one_file_with_its_source():
    found = flashinfer_solution("gemm_n256", "def run(A, B):\n    return A @ B.T\n", "me", "NVIDIA H200")
    assert found["spec"]["entry_point"] == "kernel.py::run" and not found["spec"]["destination_passing_style"]
    assert found["sources"][0]["path"] == "kernel.py" and found["definition"] == "gemm_n256"
