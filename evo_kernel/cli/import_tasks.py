"""`tasks import`: what a benchmark's checkout holds, and what becomes of it here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evo_kernel.errors import UserError
from evo_kernel.types import Source

if TYPE_CHECKING:
    from evo_kernel.tasks.importers.survey import Survey

WARM_S = 300.0
"""A child that has loaded everything by then is well; PyTorch's tables take seconds, on a busy machine a minute."""
FIRST = ("seed", "kernels", "mixed", "torch", "none")


@click.command("import")
@click.argument("spec")
@click.option("--list", "only_list", is_flag=True, help="Print the problems' names only.")
@click.option("--check", is_flag=True, help="Load and probe each at reduced sizes, and write its first kernel.")
@click.option("--to", "file", type=click.Path(path_type=Path), help="Write the task file of the one problem named.")
@click.option(
    "--deadline", default=120.0, show_default=True, help="Seconds of processor time that one problem may take."
)
@click.option("--memory", default=6.0, show_default=True, help="Gigabytes that one problem may take.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_tasks(
    spec: str, only_list: bool, check: bool, file: Path | None, deadline: float, memory: float, as_json: bool
) -> None:
    """The problems of SPEC, a benchmark's local checkout: kernelbench:PATH, kernelbench:PATH/level1, .../level1/23.

    Each is a TASK for every other command. --check runs the problems' own code, as loading them does, each in a
    process of its own.
    """
    from evo_kernel.tasks.loading import IMPORTERS, importer_of, load

    importer = importer_of(spec)
    if importer is None:
        schemes = ", ".join(f"{scheme}:PATH" for scheme in IMPORTERS)
        raise UserError(f"{spec!r} names no benchmark; write {schemes}")
    found = importer.entries(spec.partition(":")[2])
    if file is not None:
        _write(load(spec), file)
    elif check:
        _check(found, deadline, memory, as_json)
    elif as_json:
        click.echo(json.dumps([{"task": entry.spec, "title": entry.title} for entry in found]))
    else:
        for entry in found:
            click.echo(f"{entry.spec}  {entry.title}")


@click.command("export")
@click.argument("spec")
@click.argument("kernel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True, help="The run's folder, runs/NAME.")
@click.option("--sample", default=0, show_default=True, help="Number of the sample (KernelBench).")
@click.option("--author", default="evo-kernel", show_default=True, help="Who made it (FlashInfer-Bench).")
@click.option("--hardware", default="NVIDIA H200", show_default=True, help="What it is for (FlashInfer-Bench).")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--own-check", is_flag=True, help="Then say what the benchmark's own metric says of it (TritonBench).")
def export_solution(
    spec: str, kernel: Path, folder: Path, sample: int, author: str, hardware: str, device: str, own_check: bool
) -> None:
    """Write KERNEL, a module with run(*inputs), as a solution of the problem SPEC that its own harness accepts.

    The file holds the launches that KERNEL makes on the problem's cases, recorded here and not judged (`verify` does
    that): it takes inputs of those sizes on this GPU, and nothing of KERNEL runs on the host but in the recorder.
    """
    from evo_kernel.tasks.loading import IMPORTERS, importer_of

    scheme, _, rest = spec.partition(":")
    if importer_of(spec) is None:
        raise UserError(
            f"{spec!r} is no problem of a benchmark; write {' or '.join(f'{one}:PATH/...' for one in IMPORTERS)}"
        )
    if own_check and scheme != "tritonbench":
        raise UserError("--own-check is for tritonbench:...; the other benchmarks' harnesses check what is written")
    try:
        source = Source(kernel.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{kernel} is no text ({error.reason}); name a Python file with run(*inputs)") from error
    notes: list[str] = []
    text = solution_text(spec, source, device)
    if scheme == "kernelbench":
        path = _export_kernelbench(spec, text, folder, sample, notes)
    elif scheme == "tritonbench":
        path = export_tritonbench(rest, text, folder, notes)
    else:
        from evo_kernel.export import flashinfer
        from evo_kernel.tasks.importers.flashinfer import problem_of

        entry, _ = problem_of(rest)
        path = flashinfer.write_solution(flashinfer.solution(entry.name, text, author, hardware), folder)
    click.echo(f"wrote {path}")
    for note in notes:
        click.echo(f"note: {note}")
    if own_check:
        click.echo(f"its own check: {_own_check(rest, path)}")


def solution_text(spec: str, source: Source, device: str) -> str:
    """The module of a benchmark's file: what a source launches on all cases of the problem. Raises UserError."""
    from evo_kernel.app.recorded_kernels import recorded_launches
    from evo_kernel.export.standalone import standalone
    from evo_kernel.tasks.loading import load

    return standalone(recorded_launches(load(spec), source, device), source.text)


def _own_check(rest: str, written: Path) -> str:
    import torch

    from evo_kernel.tasks.importers.stdout_metric import printed
    from evo_kernel.tasks.importers.tritonbench import problem_of

    (found,) = printed(problem_of(rest)[0].path, [written], "cuda" if torch.cuda.is_available() else "cpu")
    return found.sentence


def _export_kernelbench(spec: str, text: str, folder: Path, sample: int, notes: list[str]) -> Path:
    from evo_kernel.export.kernelbench import KernelBenchSolution, refused, write_solution
    from evo_kernel.tasks.importers.kernelbench import places, problem_of, skeleton

    entry, source = problem_of(spec.partition(":")[2])
    solution = KernelBenchSolution(entry.level, entry.number, text, skeleton(source), places(spec))
    path = write_solution(solution, folder, sample)
    if found := refused(solution.text()):
        notes.append(f"its static checker refuses files that hold {', '.join(found)}: take that out of the kernel")
    return path


def export_tritonbench(rest: str, text: str, folder: Path, notes: list[str]) -> Path:
    """Write a module with `run` as a solution. Returns where; adds to `notes` what its user should know."""
    from evo_kernel.export.tritonbench import TritonBenchSolution, write_solution
    from evo_kernel.tasks.calls import CUT
    from evo_kernel.tasks.importers.tritonbench_solution import solved

    parts = solved(rest)
    if parts.left:
        notes.append(f"{parts.left} calls of its test have other arguments than the task, and go to the reference")
    solution = TritonBenchSolution(
        parts.name, parts.entry, text, parts.reference, parts.form, parts.test, parts.instruction, parts.label,
        parts.returned.text, parts.returned.writes,
    )  # fmt: skip
    return write_solution(solution, folder, CUT)


def _write(task: Any, file: Path) -> None:
    if file.exists():
        raise UserError(f"{file} exists already; name another file")
    try:
        file.write_text(task.text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); name another file") from error
    click.echo(f"wrote {file}; look at it with `evo-kernel tasks show {file}`")


def _check(found: Sequence[Any], deadline_s: float, memory_gb: float, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for entry, row in _surveyed(found, deadline_s, memory_gb):
        data = asdict(row) | {"label": entry.label, "group": entry.group, "degenerate": row.degenerate}
        rows.append(data)
        if not as_json:
            click.echo(_line(data))
    groups = dict.fromkeys(row["group"] for row in rows)
    summary = {group: _counts([row for row in rows if row["group"] == group]) for group in groups}
    if as_json:
        click.echo(json.dumps({"problems": rows, "summary": summary}))
        return
    click.echo("\n| group | problems | load | check | degenerate | " + " | ".join(f"first: {k}" for k in FIRST) + " |")
    click.echo("| --- " * (5 + len(FIRST)) + "|")
    for level, counts in summary.items():
        click.echo(f"| {level} | " + " | ".join(str(number) for number in counts.values()) + " |")


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    first = Counter(row["first"] for row in rows)
    return {
        "problems": len(rows),
        "load": sum(row["loads"] for row in rows),
        "check": sum(row["checks"] for row in rows),
        "degenerate": sum(row["degenerate"] for row in rows),
        **{f"first_{kind}": first[kind] for kind in FIRST},
    }


def _line(row: dict[str, Any]) -> str:
    told = ["loads" if row["loads"] else "DOES NOT LOAD", "checks" if row["checks"] else "DOES NOT CHECK"]
    if row["degenerate"]:
        stock = [f"{what} passes the benchmark's test ({row['stock_at']})" for what in row["stock"]]
        told.append("DEGENERATE: " + ", ".join([*stock, *row["findings"]]))
    made = " by torch.compile" if row["origin"] == "compiled" else ""
    told.append(f"first kernel {row['first']}{made}" + (f" ({', '.join(row['left'])} stay)" if row["left"] else ""))
    return f"{row['label']:<12} " + "; ".join(told) + (f"; {row['reason']}" if row["reason"] else "")


def _surveyed(found: Sequence[Any], deadline_s: float, memory_gb: float) -> Iterator[tuple[Any, Survey]]:
    """All in one child, replaced when a problem is late or takes it down: a fresh one needs seconds to warm."""
    from evo_kernel.tasks.helper_process import HelperLost, HelperProcess
    from evo_kernel.tasks.importers.survey import Survey

    child = HelperProcess(f"from evo_kernel.tasks.importers.survey import main; main({memory_gb!r})")
    try:
        for entry in found:
            try:
                child.ask(None, WARM_S)
                yield entry, child.ask(entry.spec, deadline_s)
            except HelperLost as lost:
                late = f"took longer than {deadline_s:g} s: give it --deadline"
                gone = f"its process ended with code {lost.code}: out of {memory_gb:g} GB? Give it --memory"
                yield entry, Survey(entry.spec, reason=late if lost.code is None else gone)
    finally:
        child.end()
