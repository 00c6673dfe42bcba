"""Makes an exported package of champions: manifest, operator schema, programs, task files, provenance."""

from __future__ import annotations

import ast
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evo_kernel.app.export_selection import ExportedCandidate
from evo_kernel.app.recorded_kernels import RecordedCandidate
from evo_kernel.app.verdicts import confirmed_data, evaluation_data, survival_line
from evo_kernel.errors import UserError
from evo_kernel.export.package import (
    JudgedCase,
    Package,
    Tensor,
    argument_types,
    checked_name,
    identifier,
    judged,
    layouts,
    operator_name,
    output_shapes,
)
from evo_kernel.fitness.plan.program import program
from evo_kernel.fitness.record.recorder import record_case
from evo_kernel.observe.formatting import source_diff
from evo_kernel.syntax import parse_module
from evo_kernel.tasks import traits
from evo_kernel.tasks.task import Task, TensorSpec
from evo_kernel.types import CaseKind


def package(
    name: str | None,
    forward: Sequence[tuple[Task, Sequence[RecordedCandidate]]],
    backward: Sequence[tuple[Task, Sequence[RecordedCandidate]]],
    version: str,
) -> Package:
    """One package of one or more populations' champions. The first one's reference is what the operator computes."""
    task, _ = forward[0]
    parts = [*forward, *backward]
    operator = operator_name(task.name)
    name = name or checked_name(f"{operator}_kernel")
    clashes = len({one.name for _, kernels in parts for one in kernels}) < sum(len(kernels) for _, kernels in parts)
    if clashes:
        parts = [(t, [replace(one, name=f"{identifier(t.name)}_{one.name}") for one in every]) for t, every in parts]
    forward, backward = parts[: len(forward)], parts[len(forward) :]
    _refuse_strangers(forward)
    _refuse_strangers(backward)
    plans = {f"{one.name}.{case}": one.plans[case].model_dump_json()
             for t, kernels in parts for one in kernels for case in _judged_cases(t, one)}  # fmt: skip
    return Package(
        name=name,
        operator=operator,
        description=task.description or task.name,
        manifest=_manifest(name, operator, forward, version) | {"backward": _backward(task, backward)},
        kernels={
            one.name: program(
                [(record_case(t, case), one.plans[case.name]) for case in t.cases if case.name in one.compared],
                t.tolerance.precision,
            )
            for t, kernels in parts
            for one in kernels
        },
        sources={one.name: one.source for _, kernels in parts for one in kernels},
        tasks={f"{identifier(t.name)}/{path}": text for t, _ in parts for path, text in task_files(t).items()},
        helpers={key: text for t, _ in parts for key, text in _helpers(t.text).items()},
        plans=plans,
        provenance=[_provenance(t, one, version) for t, kernels in parts for one in kernels],
    )


def _refuse_strangers(parts: Sequence[tuple[Task, Sequence[RecordedCandidate]]]) -> None:
    """All must compute the same operator. Raises UserError."""
    names = [identifier(task.name) for task, _ in parts]
    for task, _ in parts[1:]:
        first = parts[0][0]
        if task.input_names != first.input_names:
            raise UserError(
                f"{task.name} takes {', '.join(task.input_names)} where {first.name} takes "
                f"{', '.join(first.input_names)}: one package holds one operator, so export them separately"
            )
        if not traits.computes_the_same(first, task):
            raise UserError(
                f"{task.name} does not compute what {first.name} does: one package holds one operator, so export them "
                "separately"
            )
    if len(set(names)) < len(names):
        raise UserError(
            "two populations have tasks of one name: copy one task file under another name and search there"
        )


def _judged_cases(task: Task, one: RecordedCandidate) -> list[str]:
    """Hidden cases are judged by confirming."""
    return [case.name for case in task.cases if case.kind is not CaseKind.CONFIRM or one.chosen.confirmed]


def _manifest(
    name: str, operator: str, parts: Sequence[tuple[Task, Sequence[RecordedCandidate]]], version: str
) -> dict[str, Any]:
    task, _ = parts[0]
    every = [case for t, recorded in parts for case in _cases(t, recorded, executed_only=False)]
    names = _names(task, len(every[0].inputs))
    places = traits.differentiable(task)
    typed = argument_types(every)
    for number, position in enumerate(task.mutates):
        typed[position] = f"Tensor({string.ascii_letters[number]}!)"
    arguments = ", ".join(f"{kind} {key}" for kind, key in zip(typed, names, strict=True))
    floating = [n for n, out in enumerate(every[0].outputs) if "float" in out.dtype]
    grads = ", ".join(["", *(f"Tensor grad_{number}" for number in floating)])
    return {
        "format": 2,
        "made_by": f"evo-kernel {version}",
        "namespace": name,
        "op": operator,
        "task": identifier(task.name),
        "names": names,
        "schema": f"({arguments}) -> {_returns(len(every[0].outputs))}",
        "outputs": len(every[0].outputs),
        "layouts": layouts(every),
        "output_shapes": _output_shapes(task, every),
        "differentiable": places,
        "backward_schema": f"({arguments}{grads}) -> {_returns(len(places))}" if places else None,
        "judged": [_group(t, recorded, names) for t, recorded in parts],
        "not_executed": _left_out(parts, judged_there=True),
        "not_judged": _left_out(parts, judged_there=False),
    }


def _left_out(parts: Sequence[tuple[Task, Sequence[RecordedCandidate]]], judged_there: bool) -> list[str]:
    """Cases that no kernel serves: judged, but not compared in full; or hidden ones of what is not confirmed."""
    found: dict[str, None] = {}
    for task, kernels in parts:
        known = _judged_cases(task, kernels[0])
        left = [case.name for case in task.cases if case.name not in kernels[0].compared]
        found |= dict.fromkeys(name for name in left if (name in known) == judged_there)
    return list(found)


def _backward(task: Task, parts: Sequence[tuple[Task, Sequence[RecordedCandidate]]]) -> dict[str, Any] | None:
    """Of kernels that compute gradients: their cases, and which of (inputs, gradients of outputs) each argument is."""
    if not parts:
        return None
    gradient = parts[0][0]
    arguments = traits.backward_arguments(task, gradient)
    names = list(gradient.input_names)
    return {
        "task": identifier(gradient.name),
        "arguments": arguments,
        "judged": [_group(t, recorded, names) for t, recorded in parts],
    }


def _output_shapes(task: Task, cases: Sequence[JudgedCase]) -> list[tuple[str, list[Any]]] | None:
    """None where the reference itself tells compilers. Raises UserError where nothing can."""
    if traits.takes_fakes(task):
        return None
    found = output_shapes(cases)
    if found is None:
        raise UserError(
            f"{task.name}'s reference reads values, and the shapes of its outputs do not follow from those of its "
            "inputs, so torch.compile cannot use it as an operator: let output shapes depend on input shapes alone"
        )
    return found


def _names(task: Task, count: int) -> list[str]:
    found = [identifier(name) for name in task.input_names]
    return found if len(found) == count else [f"input_{number}" for number in range(count)]


def _returns(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _group(task: Task, kernels: Sequence[RecordedCandidate], names: Sequence[str]) -> dict[str, Any]:
    """The cases that one population's champions were judged on, for the manifest."""
    leader = kernels[0]
    plan = next(iter(leader.plans.values())).plan
    tolerance = task.tolerance
    return {
        "task": identifier(task.name),
        "target": plan.target,
        "environment": leader.chosen.evaluation.environment.label,
        "names": list(names),
        "tolerance": {
            "relative_multiple": tolerance.relative_multiple,
            "max_multiple": tolerance.max_multiple,
            "absolute": tolerance.absolute,
            "precision": tolerance.precision,
            "dtype": plan.outputs[0].dtype,
        },
        "cases": judged(_cases(task, kernels, executed_only=True)),
    }


def _cases(task: Task, kernels: Sequence[RecordedCandidate], executed_only: bool) -> list[JudgedCase]:
    found = []
    for case in task.cases:
        if executed_only and case.name not in kernels[0].compared:
            continue
        timed = [one for one in kernels if case.name in one.chosen.times_us and case.name in one.compared]
        fastest = min(timed, key=lambda one: one.chosen.times_us[case.name], default=kernels[0])
        outputs = fastest.plans[case.name].plan.outputs
        found.append(
            JudgedCase(
                name=case.name,
                kind=case.kind,
                sizes=dict(case.sizes),
                inputs=tuple(
                    Tensor(*value) if isinstance(value, TensorSpec) else value for value in task.input_specs(case)
                ),
                specs=record_case(task, case).inputs,
                outputs=tuple(Tensor(v.dtype, v.shape, v.strides) for v in outputs[: len(outputs) - len(task.mutates)]),
                kernel=fastest.name,
                us=fastest.chosen.times_us.get(case.name),
            )
        )
    return found


def _provenance(task: Task, one: RecordedCandidate, version: str) -> dict[str, Any]:
    import torch

    chosen = one.chosen
    kinds = {case.name: str(case.kind) for case in task.cases}
    return {
        "kernel": one.name,
        "task": task.name,
        "task_folder": identifier(task.name),
        "task_sha256": task.identity,
        "population": chosen.population.name,
        "candidate": chosen.view.candidate,
        "confirmed": chosen.confirmed,
        "confirmation": confirmed_data(chosen.confirmation),
        "survival": survival_line(chosen.confirmation),
        "hidden": has_hidden_cases(task),
        "source_sha256": one.source.sha256,
        "plans_are_the_judged_ones": one.same_versions,
        "plans": [{"case": case, "kind": kinds[case], "hash": one.plans[case].hash, "file": f"{one.name}.{case}.plan"}
                  for case in _judged_cases(task, one)],
        "evaluation": evaluation_data(chosen.evaluation),
        "hidden_cases": _hidden_cases(task, chosen),
        "models": list(chosen.models),
        "path": [{"candidate": step.candidate, "strategy": step.action, "log_gain": step.log_gain,
                  "diff": source_diff(chosen.texts[i - 1] if i else "", chosen.texts[i],
                                      chosen.steps[i - 1].candidate if i else None, step.candidate)}
                 for i, step in enumerate(chosen.steps)],
        "exported_with": {"evo-kernel": version, "torch": torch.__version__},
    }  # fmt: skip


def _hidden_cases(task: Task, chosen: ExportedCandidate) -> list[dict[str, Any]]:
    """Times on the hidden sizes, as the confirmation found them; empty where it is not confirmed."""
    if chosen.confirmation is None or not chosen.confirmed:
        return []
    hidden = {case.name for case in task.cases_of(CaseKind.CONFIRM)}
    return [case for case in evaluation_data(chosen.confirmation)["cases"] if case["case"] in hidden]


def has_hidden_cases(task: Task) -> bool:
    """Whether confirm cases have sizes of their own: without any, loading takes those of the search cases."""
    sizes = [dict(case.sizes) for case in task.cases_of(CaseKind.SEARCH)]
    return any(dict(case.sizes) not in sizes for case in task.cases_of(CaseKind.CONFIRM))


def task_files(task: Task) -> dict[str, str]:
    """The task's file as task.py, and its seed where the file says that it is: without it the task does not load.

    Raises UserError where it imports a module that lies beside it: that would stay behind.
    """
    files = {"task.py": task.text}
    for node in ast.walk(parse_module(task.text)):
        match node:
            case ast.Assign(targets=[ast.Name(id="SEED")], value=ast.Constant(value=str() as seed)):
                if task.seed is not None and not Path(seed).is_absolute() and ".." not in Path(seed).parts:
                    if Path(seed) == Path("task.py"):
                        raise UserError(f"{task.path.name} has a seed of the name that it will have itself: rename it")
                    files[seed] = task.seed.text
            case ast.Import(names=names):
                _refuse_neighbours(task, [alias.name for alias in names])
            case ast.ImportFrom(module=str() as module):
                _refuse_neighbours(task, [module])
    return files


def _refuse_neighbours(task: Task, modules: Sequence[str]) -> None:
    for module in modules:
        root = module.partition(".")[0]
        if root == "evo_kernel" and module != "evo_kernel.tasks":
            raise UserError(
                f"{task.path.name} imports {module}, which a package does without: take a module by `from "
                "evo_kernel.tasks import`, or move what it needs into the task file"
            )
        beside = [name for name in (f"{root}.py", f"{root}/__init__.py") if (task.path.parent / name).is_file()]
        if not task.origin and beside and root != "evo_kernel":
            raise UserError(
                f"{task.path.name} imports {beside[0]}, which lies beside it and would be missing in a package: move "
                "what it needs into the task file"
            )


def _helpers(text: str) -> dict[str, str]:
    """Modules of evo_kernel.tasks that a text imports, and those that they import."""
    import evo_kernel.tasks

    home, found = Path(evo_kernel.tasks.__path__[0]), {}
    for node in ast.walk(parse_module(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "evo_kernel.tasks":
            for alias in node.names:
                if not (home / f"{alias.name}.py").is_file():
                    raise UserError(f"a task file imports {alias.name} of evo_kernel.tasks, which is no single module")
                helper = (home / f"{alias.name}.py").read_text(encoding="utf-8")
                found |= {alias.name: helper} | _helpers(helper)
    return found
