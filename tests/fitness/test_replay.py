"""Plan files are somebody else's word: their IR is compiled again, and what differs from that is not believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evo_kernel.errors import PlanError
from evo_kernel.fitness.compile.assembler import BUNDLED, assembler_of
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.plan.launch_plan import (
    Aten,
    Buffer,
    CompiledPlan,
    Plan,
    View,
    save_plan_file,
    validated,
)
from evo_kernel.fitness.record.recorder import Recorder, record_case
from evo_kernel.fitness.replay import recompile, replay_plan
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task
from evo_kernel.types import Source
from tests.support.launch_kinds import KINDS


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return KINDS["cooperative launch"].load(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def plans(task: Task) -> tuple[CompiledPlan, CompiledPlan]:
    """One that doubles, and one that does nothing of the kind for the same case."""
    kind = KINDS["cooperative launch"]
    case = record_case(task, task.cases[0])
    compiler = Compiler(90, 60.0, assembler=assembler_of(BUNDLED))
    recorder = Recorder(compiler, 90, 60.0)
    try:
        sources = (kind.source, kind.source.replace("x + tl.load(", "x * tl.load("))
        made = [recorder.record(Source(text), (case,), ((),)).plans[case.name, ()] for text in sources]
    finally:
        recorder.close()
        compiler.close()
    double, square = made
    assert isinstance(double, CompiledPlan) and isinstance(square, CompiledPlan) and double.hash != square.hash
    return double, square


def changed(plan: CompiledPlan, change: Callable[[dict[str, Any]], None]) -> CompiledPlan:
    data = json.loads(plan.model_dump_json())
    change(data)
    return validated(CompiledPlan, json.dumps(data))


def test_a_file_that_is_what_it_says_is_measured(task, plans, tmp_path: Path) -> None:
    path = tmp_path / "double.plan"
    save_plan_file(plans[0], path)
    assert plans[0].binaries[0].compiler.startswith("Triton ") and "ptxas" in plans[0].binaries[0].compiler
    found = replay_plan(path, task.spec, "cpu", 60.0)
    assert (found.plan, found.note, found.passed) == (plans[0].hash, "", True)


def test_a_plan_that_its_task_forbids_is_not_timed(tmp_path: Path) -> None:
    view = {"dtype": "float32", "shape": (5, 127), "strides": (127, 1)}
    given, made = View(buffer=0, **view), View(buffer=1, **view)
    node = Aten(
        op="aten._softmax.default", views=(given,), args=[{"view": 0}, -1, False], kwargs={}, outputs=(made,)
    )  # fmt: skip
    buffers = tuple(Buffer(kind=kind, bytes=4 * 5 * 127) for kind in ("input", "scratch"))
    plan = Plan(
        case="m5-n127", target=90, inputs=(given,), buffers=buffers, kernels=(), nodes=(node,), outputs=(made,)
    )  # fmt: skip
    path = tmp_path / "torch.plan"
    save_plan_file(CompiledPlan(plan=plan, binaries=()), path)
    task = Path(__file__).parents[1] / "integrity" / "tasks" / "softmax.py"
    found = replay_plan(path, str(task), "cpu", 60.0)
    assert found.status == "rejected" and "this task allows kernels only" in found.as_data()["reason"], found
    other = next(case.name for case in load(str(task)).cases if case.name != plan.case)
    save_plan_file(CompiledPlan(plan=plan.model_copy(update={"case": other}), binaries=()), path)
    with pytest.raises(PlanError, match=f"does not fit case {other}"):
        replay_plan(path, str(task), "cpu", 60.0)


def test_other_code_under_the_name_of_this_compiler_is_refused(plans) -> None:
    double, square = (json.loads(plan.model_dump_json()) for plan in plans)

    def take(*names: str) -> CompiledPlan:
        return changed(
            plans[0], lambda data: data["binaries"][0].update({name: square["binaries"][0][name] for name in names})
        )

    for claimed in (take("ir"), take("cubin", "code_hash"), take("ir", "cubin", "code_hash")):
        with pytest.raises(PlanError, match="its compiler field is false"):
            recompile(claimed, Path("x.plan"), 60.0)
    forged = take("cubin", "registers")  # what the hash does not see is not believed either: it is made again
    assert forged.hash == plans[0].hash
    made, note = recompile(forged, Path("x.plan"), 60.0)
    assert (note, made.binaries[0].cubin) == ("", plans[0].binaries[0].cubin)
    assert double["binaries"][0]["cubin"] != square["binaries"][0]["cubin"]


def test_what_another_version_made_is_made_again_and_that_is_said(task, plans, tmp_path: Path) -> None:
    path = tmp_path / "old.plan"
    old = {"compiler": "Triton 3.1.0, ptxas 12.4.99", "code_hash": "0" * 32, "cubin": ""}
    save_plan_file(changed(plans[0], lambda data: data["binaries"][0].update(old)), path)
    found = replay_plan(path, task.spec, "cpu", 60.0)
    assert found.plan == plans[0].hash
    assert "made by another version (Triton 3.1.0, ptxas 12.4.99): measured is what Triton" in found.lines()[1]
    assert found.as_data()["note"] == found.note


def test_ir_that_does_not_compile_is_refused(plans, tmp_path: Path) -> None:
    def broken(data: dict[str, Any]) -> None:
        from evo_kernel.fitness.plan.launch_plan import Kernel

        kernel = data["plan"]["kernels"][0]
        kernel["code"] = kernel["code"].replace("tt.return", "llvm.trap")
        data["binaries"][0]["key"] = Kernel.model_validate(kernel).key

    with pytest.raises(PlanError, match=r"does not compile: .*holds llvm\.trap"):
        recompile(changed(plans[0], broken), tmp_path / "x.plan", 60.0)
