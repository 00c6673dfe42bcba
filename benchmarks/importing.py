"""Surveys imported problems: whether each loads and checks, whether it is degenerate, and its first kernel.

python -m benchmarks.importing SPEC [--deadline SECONDS] [--memory GIGABYTES]

SPEC is a checkout or a part of one, such as kernelbench:PATH/level1. Runs the problems' own code, at reduced sizes.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import torch

from evo_kernel.errors import LoweringError, TaskError
from evo_kernel.observe.document import Table, markdown
from evo_kernel.tasks.helper_process import HelperLost, HelperProcess, answer_requests
from evo_kernel.tasks.loading import importer_of, load
from evo_kernel.tasks.probe import probe
from evo_kernel.tasks.task import Task

FIRST = ("seed", "kernels", "mixed", "torch", "none")
WARM_S = 300.0
"""A child that has loaded everything by then is well; PyTorch's tables take seconds, on a busy machine a minute."""
MAPPED = 8 << 30
"""Bytes of address space that libraries map without using them."""

_BROKEN = ("inputs-vary", "reference-varies", "reference-mutates", "empty-output", "complex-output", "not-finite")


@dataclass(frozen=True)
class Survey:
    """One problem's line of the table. `first` is seed (the benchmark's own), kernels, mixed (some operations stay
    PyTorch's), torch or none."""

    task: str
    loads: bool = False
    checks: bool = False
    reason: str = ""  # why it does not load or check, or has no first kernel
    findings: tuple[str, ...] = ()  # of the probe, at check sizes
    first: str = "none"
    left: tuple[str, ...] = ()  # operations that stay PyTorch's in it
    origin: str = ""  # of the first kernel: seed, lowered, compiled (torch.compile's)
    group: str = ""  # of the benchmark, such as level1

    @property
    def degenerate(self) -> bool:
        return any(name in ("zeros", "constant", "reference-varies") for name in self.findings)

    @property
    def line(self) -> str:
        """In words."""
        told = ["loads" if self.loads else "DOES NOT LOAD", "checks" if self.checks else "DOES NOT CHECK"]
        if self.degenerate:
            told.append("DEGENERATE: " + ", ".join(self.findings))
        made = " by torch.compile" if self.origin == "compiled" else ""
        told.append(f"first kernel {self.first}{made}" + (f" ({', '.join(self.left)} stay)" if self.left else ""))
        return "; ".join([*told, self.reason] if self.reason else told)


def summary(rows: Sequence[Survey]) -> dict[str, dict[str, int]]:
    """Counts by group."""
    groups: dict[str, list[Survey]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return {
        group: {
            "problems": len(inside),
            "load": sum(row.loads for row in inside),
            "check": sum(row.checks for row in inside),
            "degenerate": sum(row.degenerate for row in inside),
            **{f"first: {kind}": sum(row.first == kind for row in inside) for kind in FIRST},
        }
        for group, inside in groups.items()
    }


def surveyed(specs: Sequence[str], deadline_s: float, memory_gb: float) -> Iterator[Survey]:
    """All in one child, replaced when a problem is late or takes it down: a fresh one needs seconds to warm.

    `deadline_s`: processor time of one problem.
    """
    helper = HelperProcess(f"from benchmarks.importing import child; child({memory_gb!r})")
    try:
        for spec in specs:
            try:
                helper.ask(None, WARM_S)
                yield helper.ask(spec, deadline_s)
            except HelperLost as lost:
                late = f"took longer than {deadline_s:g} s: give it --deadline"
                gone = f"its process ended with code {lost.code}: out of {memory_gb:g} GB? Give it --memory"
                yield Survey(spec, reason=late if lost.code is None else gone)
    finally:
        helper.end()


def child(memory_gb: float) -> None:
    """A child that surveys one problem after the other; a request of None asks whether it is ready."""
    from evo_kernel.tasks.lowering.lower import lower_function

    limit = int(memory_gb * 1e9) + MAPPED
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    lower_function(lambda x: torch.softmax(x @ x, -1), [[torch.empty(4, 4)]])  # loads what tracing needs
    answer_requests(lambda spec: None if spec is None else survey(spec))


def survey(spec: str) -> Survey:
    """Load and try one problem on the CPU, at reduced sizes. Never raises what the problem is to blame for."""
    try:
        task = load(spec)
    except TaskError as error:
        return Survey(spec, reason=str(error))
    known: dict[str, Any] = {"loads": True}
    try:
        findings = probe(task)
    except (TaskError, RuntimeError, MemoryError) as error:
        return Survey(spec, reason=str(error), first="none" if task.seed is None else "seed", **known)
    broken = [finding for finding in findings if finding.name in _BROKEN]
    known |= _first(task) | ({"reason": broken[0].sentence} if broken else {})
    return Survey(spec, checks=not broken, findings=tuple(finding.name for finding in findings), **known)


def _first(task: Task) -> dict[str, Any]:
    """Kind of the first kernel, its origin, the operations that stay PyTorch's, or why there is none."""
    from evo_kernel.tasks.first import first_of, left_to_torch

    try:
        first = first_of(task)
    except LoweringError as error:
        return {"reason": str(error)}
    left = () if first.origin == "seed" else tuple(sorted(set(left_to_torch(first.source))))
    partly = "mixed" if "@triton.jit" in first.source.text else "torch"
    kind = "seed" if first.origin == "seed" else partly if left else "kernels"
    return {"first": kind, "origin": first.origin, "left": left}


@click.command()
@click.argument("spec")
@click.option("--deadline", "deadline_s", default=120.0, help="Seconds of processor time that one problem may take.")
@click.option("--memory", "memory_gb", default=6.0, help="Gigabytes of memory that one problem may take.")
def main(spec: str, deadline_s: float, memory_gb: float) -> None:
    found = importer_of(spec).entries(spec.partition(":")[2])
    rows: list[Survey] = []
    for entry, one in zip(found, surveyed([entry.spec for entry in found], deadline_s, memory_gb), strict=True):
        rows.append(replace(one, group=entry.group))
        click.echo(f"{entry.label:<12} {one.line}")
    counts = summary(rows)
    head = ["group", *next(iter(counts.values()), {})]
    table = Table(head, [[group, *map(str, numbers.values())] for group, numbers in counts.items()])
    click.echo("\n" + markdown([table]).rstrip())


if __name__ == "__main__":
    main()
