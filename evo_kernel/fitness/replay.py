"""Check and time a plan file without running its author's Python: `evo-kernel replay`.

The file is not trusted: its kernels are compiled again from their IR, and that code is checked and timed. A file is
refused if it names the compiler installed here but holds other code than that compiler produces.

Outputs are checked against the task's reference if this machine can execute the plan at its size. A plan that was timed
but not checked is never reported as passed.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evo_kernel.errors import PlanError, TaskError
from evo_kernel.fitness.compile.assembler import of_version
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.grading import rule_fault
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, load_plan_file
from evo_kernel.fitness.record.recorder import record_case
from evo_kernel.fitness.runners.base import IN_FULL_S, Checked
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Environment, Measurement, Status

_PTXAS = re.compile(r"ptxas (\d[\d.]*)")


@dataclass(frozen=True)
class Replayed:
    """Result of a replay."""

    case: str
    plan: str
    environment: Environment
    checked: Checked | None  # None: see `unchecked`
    measured: Measurement | Checked
    unchecked: str = ""  # why outputs were not checked; empty when they were
    note: str = ""  # how the measured code differs from the file's, if it does

    @property
    def passed(self) -> bool:
        """No fault was found; `checked` tells whether outputs were compared."""
        return isinstance(self.measured, Measurement) and (self.checked is None or self.checked.passed)

    @property
    def status(self) -> str:
        """A Status, or "unchecked" if the plan was only timed."""
        if not self.passed:
            return str(self._fault.status)
        return str(Status.PASSED) if self.checked is not None else "unchecked"

    @property
    def _fault(self) -> Checked:
        for check in (self.checked, self.measured):
            if isinstance(check, Checked) and not check.passed:
                return check
        return Checked(Status.PASSED)

    def as_data(self) -> dict[str, Any]:
        time = self.measured if isinstance(self.measured, Measurement) else None
        return {
            "status": self.status,
            "reason": self._fault.reason if not self.passed else self.unchecked,
            "case": self.case,
            "plan": self.plan,
            "checked": self.checked is not None,
            "note": self.note,
            "environment": {"kind": self.environment.kind, "label": self.environment.label},
            "us": time.median_us if time else None,
            "low_us": time.low_us if time else None,
            "high_us": time.high_us if time else None,
            "samples": time.n if time else None,
        }

    def lines(self) -> list[str]:
        """The result as text."""
        word = "timed" if self.status == "unchecked" else self.status
        verdict = f"plan {self.plan}, case {self.case}: {word}" + (f": {self._fault.reason}" if not self.passed else "")
        lines = [verdict, self.note] if self.note else [verdict]
        if not isinstance(self.measured, Measurement):
            return [*lines, f"judged where times are {self.environment.label}"]
        check = f"outputs not checked: {self.unchecked}" if self.unchecked else "outputs checked against the task"
        return [*lines, f"{self.measured.median_us:.2f} µs, {self.environment.label}", check]


def replay_plan(path: Path, task_name: str, device: str, deadline_s: float) -> Replayed:
    """Check and time a plan file. Raises PlanError, TaskError, InfraError."""
    plan = read_plan_file(path)
    task = load(task_name)
    try:
        case = task.case(plan.plan.case)
    except TaskError as error:
        raise PlanError(f"{path} is for case {plan.plan.case}, which {task.name} does not have") from error
    if misfit := plan.plan.misfit(record_case(task, case).tensors):
        raise PlanError(f"{path} does not fit case {case.name} of {task.name}: {misfit}")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    plan, note = recompile(plan, path, deadline_s)
    plan = CompiledPlan(plan=plan.plan.laid_out(lambda: task.output_orders), binaries=plan.binaries)
    runner = open_runner(task, device, deadline_s)
    try:
        runner.start()
        unchecked = ""
        large = runner.environment("").kind != "measured" and case.kind is not CaseKind.CHECK
        rounds = [(secrets.randbits(62), regime) for regime in regimes.SEARCH]
        if fault := rule_fault(task, case, plan):
            checked = measured = Checked(Status.REJECTED, fault)
        else:
            checked = runner.check_in_full(plan, case, IN_FULL_S) if large else runner.check(plan, case, rounds)
            if checked is None:
                unchecked = f"to execute all of this case takes more than {IN_FULL_S:g} s without a GPU"
            measured = runner.measure(plan, case, secrets.randbits(62))
        return Replayed(case.name, plan.hash, runner.environment("not recorded"), checked, measured, unchecked, note)
    finally:
        runner.close()


def recompile(claimed: CompiledPlan, path: Path, deadline_s: float) -> tuple[CompiledPlan, str]:
    """Compile a plan's IR here; returns the plan with that code, and a note if the code may differ from the file's.

    Raises PlanError if the IR does not compile, or if the same compiler produces other code than the file holds.
    """
    kernels = claimed.plan.kernels
    if not kernels:
        return claimed, ""
    version = next((match[1] for binary in claimed.binaries if (match := _PTXAS.search(binary.compiler))), "")
    compiler = Compiler(claimed.plan.target, deadline_s, assembler=of_version(version) if version else None)
    try:
        compiled_binaries = compiler.compile(kernels)
    finally:
        compiler.close()
    if faults := [binary for binary in compiled_binaries if isinstance(binary, str)]:
        raise PlanError(f"{path} does not compile: {faults[0]}")
    binaries = tuple(binary for binary in compiled_binaries if not isinstance(binary, str))
    try:
        plan = CompiledPlan(plan=claimed.plan, binaries=binaries)
    except ValidationError as error:
        raise PlanError(f"{path} is no plan: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    if plan.hash == claimed.hash:
        return plan, ""
    others = sorted({binary.compiler or "a compiler that it does not name" for binary in claimed.binaries} -
                    {binary.compiler for binary in binaries})  # fmt: skip
    if not others:
        raise PlanError(
            f"{path} holds other code than {binaries[0].compiler} makes of its IR: its compiler field is false"
        )
    here = ", ".join(sorted({binary.compiler for binary in binaries}))
    return plan, f"made by another version ({', '.join(others)}): measured is what {here} makes of its IR"


def read_plan_file(path: Path) -> CompiledPlan:
    """Read a plan file. Raises PlanError, which names the file and the first faulty field."""
    try:
        return load_plan_file(path)
    except PlanError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        places = [".".join(map(str, fault["loc"])) for fault in error.__cause__.errors()]
        first = next((place for place in places if place), "")
        where = f" (the first fault is at {first})" if first else ""
        raise PlanError(
            f"{path} is not a plan file{where}: use one that `evo-kernel verify --save-plan` or `export` wrote"
        ) from error
