"""Time a plan file without running its author's Python: `evo-kernel replay`.

With a task, inputs are the task's and outputs are checked against its reference; without one, inputs are drawn at
random for the plan's shapes (whole numbers as zeros, since they are often indices) and only the time is told.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evo_kernel.errors import PlanError, TaskError
from evo_kernel.fitness import regimes
from evo_kernel.fitness.plan import CompiledPlan, load_plan_file
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Environment, Measurement


@dataclass(frozen=True)
class Replayed:
    """What came of it."""

    case: str
    plan: str
    environment: Environment
    checked: Checked | None  # None: no task was given, or the plan's sizes are too large to check without a GPU
    measured: Measurement | Checked

    @property
    def passed(self) -> bool:
        return isinstance(self.measured, Measurement) and (self.checked is None or self.checked.passed)

    def as_data(self) -> dict[str, Any]:
        time = self.measured if isinstance(self.measured, Measurement) else None
        fault = self.checked if self.checked is not None and not self.checked.passed else self.measured
        return {
            "status": "passed" if self.passed else str(getattr(fault, "status", "")),
            "reason": getattr(fault, "reason", "") if not self.passed else "",
            "case": self.case,
            "plan": self.plan,
            "checked": self.checked is not None,
            "environment": {"kind": self.environment.kind, "label": self.environment.label},
            "us": time.median_us if time else None,
            "low_us": time.low_us if time else None,
            "high_us": time.high_us if time else None,
            "samples": time.n if time else None,
        }

    def lines(self) -> list[str]:
        """For people."""
        data = self.as_data()
        said = f"plan {self.plan}, case {self.case}: {data['status']}" + (
            f": {data['reason']}" if data["reason"] else ""
        )
        check = "outputs checked against the task" if self.checked else "outputs not checked"
        if data["us"] is None:
            return [said]
        return [said, f"{data['us']:.2f} µs, {self.environment.label}; {check}"]


def replay_plan(path: Path, task_name: str | None, device: str, deadline_s: float) -> Replayed:
    """Check (where there is a task) and time a plan file. Raises PlanError, TaskError, InfraError."""
    plan = load_plan_file(path)
    task = load(task_name) if task_name else stand_in(path)
    try:
        case = task.case(plan.plan.case)
    except TaskError as error:
        raise PlanError(f"{path} is for case {plan.plan.case}, which {task.name} does not have") from error
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    runner = open_runner(task, device, deadline_s)
    try:
        runner.start()
        checkable = task_name is not None and (runner.environment("").kind == "measured" or case.kind is CaseKind.CHECK)
        rounds = [(secrets.randbits(62), regime) for regime in regimes.SEARCH]
        checked = runner.check(plan, case, rounds) if checkable else None
        measured = runner.measure(plan, case, secrets.randbits(62), checked=task_name is not None)
        return Replayed(case.name, plan.hash, runner.environment("not recorded"), checked, measured)
    finally:
        runner.close()


def stand_in(path: Path) -> Task:
    """A task for a plan file alone: it draws inputs for the plan's shapes and has no reference. Raises PlanError."""
    plan = load_plan_file(path)
    return Task(
        name="plan",
        path=path,
        text=plan.hash,
        cases=(Case(plan.plan.case, CaseKind.SEARCH, {}),),
        inputs_function=inputs_for(plan),
        reference_function=_no_reference,
        baselines={},
    )


def inputs_for(plan: CompiledPlan) -> Callable[..., tuple[Any, ...]]:
    """An `inputs` function for a plan: normal numbers, and zeros where the dtype is not a floating one."""

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
