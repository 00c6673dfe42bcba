"""What a reference must at least move and compute, found without data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evo_kernel.tasks.loading import load
from evo_kernel.tasks.traits import LeastWork, least_work
from evo_kernel.types import CaseKind


def unstated(task, reference=None):
    """The task as if its file said nothing of its work."""
    changed = {"reference_function": reference, "text": f"{reference}"} if reference else {"text": task.text + "#"}
    return replace(task, flops_function=None, bytes_function=None, **changed)


@pytest.mark.parametrize("name", ["softmax", "matmul", "add_rmsnorm"])
def test_it_is_what_task_files_state(name):
    task = load(name)
    for case in task.cases_of(CaseKind.SEARCH):
        stated, found = least_work(task, case), least_work(unstated(task), case)
        assert found.moved_bytes == stated.moved_bytes == task.bytes(case)
        assert found.flops == (task.flops(case) if name == "matmul" else 0)


def test_what_is_not_read_does_not_count_and_what_is_read_twice_counts_once():
    task = load("softmax")
    case = task.cases_of(CaseKind.SEARCH)[0]
    whole = task.bytes(case) // 2
    rows = case["m"]
    read = {
        "half": (lambda x: x[: rows // 2] * 2, whole),  # half is read, half is written
        "picked": (lambda x: torch.nn.functional.embedding(torch.zeros(1, dtype=torch.int64, device=x.device), x),
                   2 * whole // rows),
        "twice": (lambda x: (x + 1, x * 2), 3 * whole),
    }  # fmt: skip
    for reference, moved in read.values():
        assert least_work(unstated(task, reference), case).moved_bytes == moved


def test_of_an_input_that_changes_in_place_what_is_written_counts():
    task = load("softmax")
    case = task.cases_of(CaseKind.SEARCH)[0]
    row = task.bytes(case) // 2 // case["m"]
    for reference, moved in ((lambda x: x[0].mul_(2), 2 * row), (lambda x: x[:3].copy_(x[3]), 4 * row)):
        in_place = replace(unstated(task, lambda x, change=reference: (change(x), None)[1]), mutates=(0,))
        assert least_work(in_place, case).moved_bytes == moved


def test_a_reference_that_reads_values_leaves_it_unknown():
    task = load("softmax")
    assert least_work(unstated(task, lambda x: x * x.sum().item()), task.cases[0]) == LeastWork(None, None)
