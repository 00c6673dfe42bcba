"""Which ptxas makes the code, what a score says of it, and what a second one is asked."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.errors import ConfigError
from evo_kernel.fitness import grading
from evo_kernel.fitness.compile.assembler import BUNDLED, assembler_of, other_version
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.grading import SecondAssembler
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.stages import Stages
from evo_kernel.types import Status
from tests.fitness.handmade import matmul_plan
from tests.support.scripted import ENVIRONMENT


def script(path: Path, version: str, rest: str) -> Path:
    told = f'echo "Cuda compilation tools, release {version[:4]}, V{version}"'
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then {told}; exit 0; fi\n{rest}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Triton's own under another number."""
    own = assembler_of(BUNDLED)
    return script(tmp_path_factory.mktemp("cuda") / "ptxas", "12.8.93", f'exec "{own.path}" "$@"')


def compiled(path: str, kernel):
    compiler = Compiler(90, 60.0, assembler=assembler_of(path))
    try:
        compiler.start()
        return compiler.compile([kernel])[0]
    finally:
        compiler.close()


def test_the_compiler_takes_the_one_that_is_named(tmp_path, other) -> None:
    kernel = matmul_plan(256, 256, 256, (64, 64, 32), num_warps=4).kernels[0]
    made = compiled(str(other), kernel)
    assert isinstance(made, Binary) and made.instructions["wgmma"] > 0
    refuses = script(tmp_path / "ptxas", "13.9.1", "echo it refuses >&2; exit 1")
    told = compiled(str(refuses), kernel)
    assert isinstance(told, str) and "does not compile" in told


def test_a_path_that_is_no_ptxas_is_refused_with_a_sentence(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        assembler_of(str(tmp_path / "none"))
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o700)
    with pytest.raises(ConfigError, match="is not a ptxas"):
        assembler_of(str(silent))


def test_scores_of_different_assemblers_do_not_compare() -> None:
    keys = {replace(ENVIRONMENT, assembler=version).key for version in ("", "12.8.93", "13.5.37")}
    assert len(keys) == 3


class Verdicts:
    """A runner for which a plan is right as told."""

    def __init__(self, passed: bool, gpus: tuple[int, ...] = (0,)) -> None:
        self.stages = Stages(gpus)
        self.passed, self.asked = passed, []

    def check(self, plan, case, rounds):
        self.asked.append(plan)
        return Checked(Status.PASSED) if self.passed else Checked(Status.WRONG, "it differs")


@pytest.fixture(scope="module")
def wgmma(other) -> CompiledPlan:
    plan = matmul_plan(256, 256, 256, (64, 64, 32), num_warps=4)
    return CompiledPlan(plan=plan, binaries=(compiled(str(other), plan.kernels[0]),))


@pytest.mark.parametrize(("right", "said"), [(True, "right"), (False, "wrong too")])
def test_a_wrong_wgmma_kernel_is_tried_with_another(wgmma, other, right, said) -> None:
    """Triton's own is the other one here."""
    first, wrong = assembler_of(str(other)), Checked(Status.WRONG, "element 3 differs", 9.0)
    runner, opinion = Verdicts(right), SecondAssembler(first, 90, 60.0)
    try:
        found = opinion.second_opinion(wrong, wgmma, None, [], runner)
    finally:
        opinion.close()
    own = assembler_of(BUNDLED).version
    assert found.reason == f"{said} when assembled by ptxas {own}; wrong with 12.8.93: element 3 differs"
    assert found.status is Status.WRONG and found.error == 9.0, "the verdict stays"
    assert [one.plan for one in runner.asked] == [wgmma.plan]


def test_nobody_else_is_asked_where_that_says_nothing(wgmma, other, monkeypatch) -> None:
    runner, wrong = Verdicts(True), Checked(Status.WRONG, "element 3 differs")
    opinion = SecondAssembler(assembler_of(str(other)), 90, 60.0)
    plain = wgmma.model_copy(update={"binaries": (wgmma.binaries[0].model_copy(update={"instructions": {"fma": 9}}),)})
    assert opinion.second_opinion(wrong, plain, None, [], runner) is wrong
    assert opinion.second_opinion(wrong, wgmma, None, [], Verdicts(True, ())) is wrong, "no assembled code was executed"
    late = Checked(Status.TIMEOUT, "late")
    assert opinion.second_opinion(late, wgmma, None, [], runner) is late
    monkeypatch.setattr(grading, "other_version", lambda than: None)
    assert opinion.second_opinion(wrong, wgmma, None, [], runner) is wrong
    assert runner.asked == []


def test_another_is_of_another_version(other) -> None:
    found = other_version(assembler_of(str(other)))
    assert found is not None and found.version != "12.8.93"
