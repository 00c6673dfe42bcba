"""A kernel as the file that KernelBench's own harness takes. Nothing is judged: its launches are recorded, no more."""

from __future__ import annotations

from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.export.solutions import KernelBenchSolution, refused_by_kernelbench
from evo_kernel.export.standalone import standalone
from evo_kernel.tasks.importers.checkout import read_text
from evo_kernel.tasks.loading import load, problem_of
from evo_kernel.types import Source


def solution_text(spec: str, source: Source, device: str) -> str:
    """The module of the file: what a source launches on all cases of the problem. Raises UserError."""
    from evo_kernel.app.recorded_kernels import recorded_launches  # slow: it imports the judge

    return standalone(recorded_launches(load(spec), source, device), source.text)


def write_solution(spec: str, text: str, folder: Path, sample: int = 0) -> tuple[Path, list[str]]:
    """Write a module with `run` as a solution of the problem: where, and what its user should know.

    Raises UserError where the file is already.
    """
    solution = kernelbench_solution(spec, text)
    path = folder / solution.file_name(sample)
    if path.exists():
        raise UserError(f"{path} exists already; give another folder or another --sample")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(solution.text(), encoding="utf-8")
    found = refused_by_kernelbench(solution.text())
    note = f"its static checker refuses files that hold {', '.join(found)}: take that out of the kernel"
    return path, [note] if found else []


def kernelbench_solution(spec: str, text: str) -> KernelBenchSolution:
    """A module with `run` as a solution of the problem at its own sizes."""
    from evo_kernel.tasks.importers.kernelbench import places, skeleton

    entry = problem_of(spec)
    source = read_text(entry.path)
    level = int(entry.group.removeprefix("level"))
    return KernelBenchSolution(level, int(entry.name), text, skeleton(source), places(source, entry.path))
