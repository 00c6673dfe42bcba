"""What becomes of an imported problem: does it load, does it check, is it degenerate, and what is its first kernel."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from evo_kernel.errors import LoweringError, TaskError
from evo_kernel.tasks.helper_process import answer_requests
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.probe import probe
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind

STOCK_TOLERANCE = 1e-4
"""KernelBench's atol and rtol for float32."""
STOCK_ELEMENTS = 60_000_000
"""Elements of inputs up to which a problem is probed at its own sizes with a small batch."""

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
    allow: str = ""
    check_sizes: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[str, ...] = ()  # of the probe, at check sizes and this project's tolerance
    stock: tuple[str, ...] = ()  # what passes by the benchmark's own tolerance
    stock_at: str = ""
    first: str = "none"
    left: tuple[str, ...] = ()  # operations that stay PyTorch's in it
    origin: str = ""  # of the first kernel: seed, lowered, compiled (torch.compile's)
    notes: tuple[str, ...] = ()

    @property
    def degenerate(self) -> bool:
        return bool(self.stock) or any(name in ("zeros", "constant", "reference-varies") for name in self.findings)


def main(memory_gb: float) -> None:
    """A child that surveys one problem after the other; a request of None asks whether it is ready."""
    from evo_kernel.tasks.lowering import lower_function

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
    check = task.cases_of(CaseKind.CHECK)[0]
    known: dict[str, Any] = {"loads": True, "allow": task.allow, "check_sizes": dict(check.sizes), "notes": task.notes}
    try:
        findings = probe(task)
    except (TaskError, RuntimeError, MemoryError) as error:
        return Survey(spec, reason=str(error), first="none" if task.seed is None else "seed", **known)
    broken = [finding for finding in findings if finding.name in _BROKEN]
    stock, stock_at = _stock(task)
    first, origin, left, reason = _first(task)
    return Survey(
        spec,
        checks=not broken,
        reason=broken[0].sentence if broken else reason,
        findings=tuple(finding.name for finding in findings),
        stock=stock,
        stock_at=stock_at,
        first=first,
        left=left,
        origin=origin,
        **known,
    )


def _first(task: Task) -> tuple[str, str, tuple[str, ...], str]:
    """Kind of the first kernel, its origin, the operations that stay PyTorch's, and why there is none."""
    from evo_kernel.tasks.first import first_of, left_to_torch

    try:
        first = first_of(task)
    except LoweringError as error:
        return "none", "", (), str(error)
    if first.origin == "seed":
        return "seed", first.origin, (), ""
    left = tuple(sorted(set(left_to_torch(first.source))))
    if not left:
        return "kernels", first.origin, (), ""
    return ("mixed" if "@triton.jit" in first.source.text else "torch"), first.origin, left, ""


def _stock(task: Task) -> tuple[tuple[str, ...], str]:
    """Answers without work that pass KernelBench's own test: allclose with atol = rtol = 1e-4 on float32."""
    sizes, label = _stock_sizes(task)
    for tried, told in ((sizes, label), (task.cases_of(CaseKind.CHECK)[0].sizes, "check sizes")):
        try:
            return _passing(task, tried), told
        except (TaskError, RuntimeError):  # a batch that something else must be equal to; or nothing runs at all
            continue
    return (), ""


def _passing(task: Task, sizes: Mapping[str, Any]) -> tuple[str, ...]:
    draws = []
    with torch.no_grad():
        for seed in (1, 2):
            inputs = task.inputs_function(sizes, torch.Generator("cpu").manual_seed(seed), torch.device("cpu"))
            draws.append(task.outputs(*inputs))
    found = []
    if all(_allclose(torch.zeros_like(part), part) for draw in draws for part in draw):
        found.append("zeros")
    if all(_allclose(other, part) for other, part in zip(*draws, strict=True)):
        found.append("constant")
    return tuple(found)


def _allclose(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    if wanted.is_complex():
        return False
    return torch.allclose(got.float(), wanted.float(), rtol=STOCK_TOLERANCE, atol=STOCK_TOLERANCE)


def _stock_sizes(task: Task) -> tuple[Mapping[str, Any], str]:
    """The problem's own sizes with a batch of two where that fits a CPU, else the check sizes.

    Averages and softmax shrink with their length: what passes at full length need not pass at a small one.
    """
    own = task.cases_of(CaseKind.SEARCH)[0]
    check = task.cases_of(CaseKind.CHECK)[0]
    problem = getattr(task.inputs_function, "__self__", None)
    small = {name: 2 for name in own if "batch" in name and type(own[name]) is int}
    if problem is not None and small:
        sizes = dict(own.sizes) | small
        variant = problem.variant(sizes)
        if variant.bytes <= 4 * STOCK_ELEMENTS and variant.bytes_held <= STOCK_ELEMENTS:
            return sizes, "own sizes, batch 2"
    return check.sizes, "check sizes"
