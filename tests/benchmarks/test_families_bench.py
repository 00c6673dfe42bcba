"""The script that compares families of kernels, on a CPU at small sizes; no time here means anything."""

import dataclasses

import pytest

from benchmarks import families
from evo_kernel.tasks.loading import load


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(families, "MOST_RUNS", 2)


def test_every_method_has_a_row_and_what_is_wrong_or_fails_is_marked(capsys):
    task = load("conv2d")
    wrong = {"doubled": lambda *inputs: 2 * task.reference(*inputs), "broken": lambda *inputs: 1 / 0}
    task = dataclasses.replace(task, baselines={**task.baselines, **wrong})
    case = families.cases_of(task, "cpu")[0]
    rows = [{"part": "conv", **row} for row in families.rows_of(families.Clock("cpu"), task, case, families.BASELINES)]
    assert [row["method"] for row in rows] == list(task.baselines)
    assert all(row["off"] < 1e-5 and row["ms"] > 0 for row in rows[:-2])
    assert rows[-2]["off"] == pytest.approx(1) and "ZeroDivisionError" in rows[-1]["error"]
    families.report(rows)
    shown = capsys.readouterr().out
    assert shown.count("APART") == 1 and "failed: conv2d" in shown and shown.count(" MiB") == 0


def test_forward_and_backward_are_added_for_first_kernels_alone(capsys):
    base = {"part": "shared", "case": "N2", "tflops": 1.0, "off": 0.0, "extra_mib": 0.0}
    rows = [
        base | {"task": task, "method": method, "ms": ms}
        for task, method, ms in (("shared_prompt", "eager", 1.0), ("shared_prompt", "seed", 2.0),
                                 ("shared_prompt_backward", "eager", 10.0), ("shared_prompt_backward", "seed", 20.0))
    ]  # fmt: skip
    families.report(rows)
    assert "| N2 | 10.00 | 22.00 |" in capsys.readouterr().out


def test_a_gpu_measures_the_published_sizes():
    shared = families.cases_of(load("shared_prompt"), "cuda")
    assert {case.name for case in shared} >= {"N28 P32768 R2048", "N16 P8192 R1024"}
    assert [case.name for case in families.cases_of(load("conv2d"), "cuda")] == [f"conv{i}" for i in range(1, 13)]
    assert {(case["d"], case["s"]) for case in families.cases_of(load("attention_causal"), "cuda")} == {
        (d, s) for d in (64, 128) for s in (4096, 8192, 16384, 32768)
    }


def test_a_part_that_fails_leaves_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(families.TASKS, "gone", ("no_such_task",))
    monkeypatch.setattr(families, "SHARES", {families.BASELINES: 1})  # one process is enough
    families.run_all(["gone"], "cpu", 60, tmp_path / "made.json")
    assert "NOTE gone, baselines: ended with" in capsys.readouterr().out
    assert '"rows": []' in (tmp_path / "made.json").read_text()
