"""Compiles variants side by side without a GPU, and shows what came of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from evo_kernel.app.variants import Variant
from evo_kernel.fitness.compile.assembler import BUNDLED, assembler_of
from evo_kernel.fitness.gpus import usable_cores
from evo_kernel.fitness.profiling.compile_report import CompileReport, KernelReport, compile_report
from evo_kernel.tasks.task import Task
from evo_kernel.types import escaped


@dataclass(frozen=True)
class CompiledVariant:
    """`wall_s`: of recording and compiling it, beside others."""

    variant: Variant
    report: CompileReport
    wall_s: float

    def as_data(self, sass: bool, ptx: bool) -> dict[str, Any]:
        return self.variant.as_data() | self.report.as_data(sass, ptx) | {"wall_s": self.wall_s}


def compile_variants(
    task: Task, variants: Sequence[Variant], case: str | None, arch: int, unconfined: bool
) -> list[CompiledVariant]:
    """In the order of the variants, as many at once as there are usable cores. Raises InfraError, UserError."""
    assembler = assembler_of(BUNDLED)

    def one(variant: Variant) -> CompiledVariant:
        began = time.monotonic()
        report = compile_report(task, variant.source, case, arch, assembler, unconfined=unconfined)
        return CompiledVariant(variant, report, time.monotonic() - began)

    with ThreadPoolExecutor(usable_cores()) as threads:
        return list(threads.map(one, variants))


def show_compiled(made: Sequence[CompiledVariant], gpu: str, sass: bool, ptx: bool) -> None:
    """One variant in full; several as a table, then what the assembler warned of, and why others failed."""
    from evo_kernel.observe.live import open_console, say

    console = open_console()
    say(console, f"case {made[0].report.case}, compiled for {gpu}; nothing is run, checked or timed")
    if len(made) > 1:
        _show_table(console, made)
    for one in made:
        name = one.variant.name
        if len(made) == 1:
            say(console, one.report.as_text(), f"compiled in {one.wall_s:.1f} s")
        elif one.report.fault:
            say(console, f"{name}: {one.report.fault}")
        for kernel in one.report.kernels:
            if len(made) > 1:
                say(console, *(f"{name}: {kernel.name}: {warning}" for warning in kernel.warnings))
            say(console, *([kernel.ptx] if ptx else []), *([kernel.sass] if sass else []))


def _show_table(console: Any, made: Sequence[CompiledVariant]) -> None:
    from rich.table import Table

    table = Table()
    for column in ("file", "setting", "kernel", "warps", "registers", "spilled B", "shared B", "blocks an SM",
                   "limited by", "tensor", "data", "schedule", "warnings"):  # fmt: skip
        table.add_column(column, overflow="fold")
    for one in made:
        head = (escaped(one.variant.file), one.variant.setting)
        if one.report.fault:
            table.add_row(*head, one.report.fault.partition(":")[0])
        for kernel in one.report.kernels:
            table.add_row(*head, *_cells(kernel))
    console.print(table)


def _cells(kernel: KernelReport) -> tuple[str, ...]:
    return tuple(
        str(value)
        for value in (
            kernel.name, kernel.num_warps, kernel.registers, kernel.spill_bytes, kernel.shared_bytes,
            kernel.blocks_per_sm, kernel.limiter, kernel.tensor_core, kernel.data_path, kernel.schedule,
            len(kernel.warnings),
        )
    )  # fmt: skip
