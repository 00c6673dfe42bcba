"""A kernel as the file that a benchmark's own harness takes. Nothing is judged: its launches are recorded, no more."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from evo_kernel.errors import TaskError, UserError
from evo_kernel.export import solutions
from evo_kernel.export.standalone import standalone
from evo_kernel.tasks.importers.checkout import Entry, read_text
from evo_kernel.tasks.loading import load, problem_of
from evo_kernel.tasks.task import describe
from evo_kernel.types import Source


def solution_text(spec: str, source: Source, device: str) -> str:
    """The module of a benchmark's file: what a source launches on all cases of the problem. Raises UserError."""
    from evo_kernel.app.recorded_kernels import recorded_launches  # slow: it imports the judge

    return standalone(recorded_launches(load(spec), source, device), source.text)


def write_solution(spec: str, text: str, folder: Path, sample: int = 0) -> tuple[Path, list[str]]:
    """Write a module with `run` as a solution of the problem: where, and what its user should know.

    `sample`: of KernelBench. Raises UserError where the file is already.
    """
    if spec.startswith("kernelbench:"):
        solution = kernelbench_solution(spec, text)
        found = solutions.refused_by_kernelbench(solution.text())
        note = f"its static checker refuses files that hold {', '.join(found)}: take that out of the kernel"
        return _written(folder / solution.file_name(sample), solution.text()), [note] if found else []
    solution, left = tritonbench_solution(spec, text)
    note = f"{left} calls of its test have other arguments than the task, and go to the reference"
    return write_tritonbench(solution, folder), [note] if left else []


def write_tritonbench(solution: solutions.TritonBenchSolution, folder: Path) -> Path:
    """Write NAME.py, and add its line to predictions.jsonl. Raises UserError where the file is there already."""
    from evo_kernel.tasks.calls import CUT

    path = _written(folder / f"{solution.name}.py", solution.file(CUT))
    with (folder / solutions.PREDICTIONS).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(solution.line()) + "\n")
    return path


def _written(path: Path, text: str) -> Path:
    if path.exists():
        raise UserError(f"{path} exists already; give another folder (or, for KernelBench, another --sample)")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def kernelbench_solution(spec: str, text: str) -> solutions.KernelBenchSolution:
    """A module with `run` as a solution of the problem at its own sizes."""
    from evo_kernel.tasks.importers.kernelbench import level_of, places, skeleton

    entry = problem_of(spec)
    source = read_text(entry.path)
    where = level_of(entry), int(entry.name)
    return solutions.KernelBenchSolution(*where, text, skeleton(source), places(source, entry.path))


def tritonbench_solution(spec: str, text: str) -> tuple[solutions.TritonBenchSolution, int]:
    """A module with `run` as a solution of the problem, and how many calls of its test go to the reference.

    Raises TaskError.
    """
    from evo_kernel.tasks.calls import CUT
    from evo_kernel.tasks.importers.tritonbench import choose, timings_of

    entry = problem_of(spec)
    source = read_text(entry.path)
    chosen, called = choose(entry, source, timings_of(entry))
    inputs = called.inputs(chosen.check[-1], torch.Generator("cpu").manual_seed(1), torch.device("cpu"))
    try:
        returned = called.returned(inputs)
    except (Exception, SystemExit) as error:  # the benchmark's own code may raise anything
        told = str(error) if str(entry.path) in str(error) else f"{entry.path}: {describe(error)}"
        raise TaskError(f"{told.rstrip('.')}. Write its solution by hand.") from error
    reference, test = source.split(CUT)
    instruction, label = _listed(entry)
    return solutions.TritonBenchSolution(
        entry.name, chosen.form.entry, text, reference, chosen.form.told, test, instruction, label, returned.text,
        returned.writes,
    ), chosen.left  # fmt: skip


def _listed(entry: Entry) -> tuple[str, str]:
    """What TritonBench's first step finds the problem by: a description between two phrases (T), its own code (G).

    Empty where none is listed.
    """
    for catalogue in entry.path.parents[1].glob(f"TritonBench_{entry.group}_v1.json*"):
        try:
            listed = json.loads(catalogue.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for item in listed:
            if entry.path.name in (item.get("file"), f"{item.get('name')}.py"):
                functional, wrapper = "Functional Description: ", "Wrapper Entry Information:"
                told = f"{functional}{item.get('description', '')}\n{wrapper}{item.get('func_inputs', '')}"
                return (told, "") if entry.group == "T" else ("", item.get("output", ""))
    return "", ""
