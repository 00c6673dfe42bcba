"""Check and time a plan file without running its author's Python: `evo-kernel replay`.

The file is not trusted: its kernels are compiled again from their IR, and that code is checked and timed. A file is
refused if it names the compiler installed here but holds other code than that compiler produces.

With a task, inputs are the task's, and outputs are checked against its reference if this machine can execute the plan
at its size. Without a task, inputs are random (integers are zero, because they are often indices) and only the time is
reported. A plan that was timed but not checked is never reported as passed.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from evo_kernel.errors import PlanError, TaskError
from evo_kernel.fitness.compile.assembler import of_version
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.grading import rule_fault
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, load_plan_file
from evo_kernel.fitness.runners.base import IN_FULL_S, Checked
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task
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


def replay_plan(path: Path, task_name: str | None, device: str, deadline_s: float) -> Replayed:
    """Check (if a task is given) and time a plan file. Raises PlanError, TaskError, InfraError."""
    plan = read_plan_file(path)
    task = load(task_name) if task_name else task_without_reference(path)
    try:
        case = task.case(plan.plan.case)
    except TaskError as error:
        raise PlanError(f"{path} is for case {plan.plan.case}, which {task.name} does not have") from error
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    plan, note = recompile(plan, path, deadline_s)
    if task_name:
        plan = CompiledPlan(plan=plan.plan.laid_out(lambda: task.output_orders), binaries=plan.binaries)
    runner = open_runner(task, device, deadline_s)
    try:
        runner.start()
        unchecked = "" if task_name is not None else "name the --task whose reference they are compared with"
        large = runner.environment("").kind != "measured" and case.kind is not CaseKind.CHECK
        rounds = [(secrets.randbits(62), regime) for regime in regimes.SEARCH]
        if task_name is not None and (fault := rule_fault(task, plan)):
            checked = measured = Checked(Status.REJECTED, fault)
        else:
            checked = None
            if task_name is not None:
                checked = runner.check_in_full(plan, case, IN_FULL_S) if large else runner.check(plan, case, rounds)
                if checked is None:
                    unchecked = f"to execute all of this case takes more than {IN_FULL_S:g} s without a GPU"
            measured = runner.measure(plan, case, secrets.randbits(62), checked=task_name is not None)
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


def task_without_reference(path: Path) -> Task:
    """A task made from a plan file: random inputs of the plan's shapes, no reference. Raises PlanError."""
    plan = read_plan_file(path)
    return Task(
        name="plan",
        path=path,
        text=plan.hash,
        cases=(Case(plan.plan.case, CaseKind.SEARCH, {}),),
        inputs_function=random_inputs(plan),
        reference_function=_no_reference,
        baselines={},
        mutates=tuple(number for number, view in enumerate(plan.plan.inputs) if view and view in plan.plan.outputs),
    )


def random_inputs(plan: CompiledPlan) -> Callable[..., tuple[Any, ...]]:
    """An `inputs` function for a plan: normally distributed floating-point values, zeros for other dtypes."""

    def inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[Any, ...]:
        del case
        values: list[Any] = []
        for view in plan.plan.inputs:
            if view is None:
                values.append(0)
                continue
            dtype = getattr(torch, view.dtype)
            tensor = torch.empty_strided(view.shape, view.strides, dtype=dtype, device=device)
            if dtype.is_floating_point:
                tensor.copy_(torch.randn(view.shape, generator=generator, device=device))
            else:
                tensor.zero_()
            values.append(tensor)
        return tuple(values)

    return inputs


def _no_reference(*inputs: Any) -> Any:
    raise PlanError("a plan alone has no reference; name its --task to have the outputs checked")
