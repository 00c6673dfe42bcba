"""A kernel as the file that a benchmark's own harness takes. Nothing is judged: its launches are recorded, no more."""

from __future__ import annotations

from pathlib import Path

from evo_kernel.app.recorded_kernels import recorded_launches
from evo_kernel.export import flashinfer, kernelbench, tritonbench
from evo_kernel.export.standalone import standalone
from evo_kernel.tasks.loading import load
from evo_kernel.types import Source


def solution_text(spec: str, source: Source, device: str) -> str:
    """The module of a benchmark's file: what a source launches on all cases of the problem. Raises UserError."""
    return standalone(recorded_launches(load(spec), source, device), source.text)


def write_solution(
    spec: str, text: str, folder: Path, *, sample: int = 0, author: str = "", hardware: str = ""
) -> tuple[Path, list[str]]:
    """Write a module with `run` as a solution of the problem: where, and what its user should know.

    `sample`: of KernelBench; `author`, `hardware`: of FlashInfer-Bench. Raises UserError where the file is already.
    """
    scheme, _, rest = spec.partition(":")
    if scheme == "kernelbench":
        solution = kernelbench_solution(spec, text)
        found = kernelbench.refused(solution.text())
        note = f"its static checker refuses files that hold {', '.join(found)}: take that out of the kernel"
        return kernelbench.write_solution(solution, folder, sample), [note] if found else []
    if scheme == "tritonbench":
        return _write_tritonbench(rest, text, folder)
    from evo_kernel.tasks.importers.flashinfer import problem_of

    made = flashinfer.solution(problem_of(rest)[0].name, text, author, hardware)
    return flashinfer.write_solution(made, folder), []


def kernelbench_solution(spec: str, text: str) -> kernelbench.KernelBenchSolution:
    """A module with `run` as a solution of the problem at its own sizes."""
    from evo_kernel.tasks.importers.kernelbench import places, problem_of, skeleton

    entry, source = problem_of(spec.partition(":")[2])
    return kernelbench.KernelBenchSolution(entry.level, entry.number, text, skeleton(source), places(spec))


def _write_tritonbench(rest: str, text: str, folder: Path) -> tuple[Path, list[str]]:
    from evo_kernel.tasks.calls import CUT
    from evo_kernel.tasks.importers.tritonbench_solution import solved

    parts = solved(rest)
    solution = tritonbench.TritonBenchSolution(
        parts.name, parts.entry, text, parts.reference, parts.form, parts.test, parts.instruction, parts.label,
        parts.returned.text, parts.returned.writes,
    )  # fmt: skip
    note = f"{parts.left} calls of its test have other arguments than the task, and go to the reference"
    return tritonbench.write_solution(solution, folder, CUT), [note] if parts.left else []
