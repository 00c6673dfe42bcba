"""Checks a wrong wgmma kernel again with code from another assembler, because some versions miscompile wgmma.

The verdict stays that of the configured assembler; its reason tells whether the other assembler's code is correct.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from evo_kernel.fitness.compile.assembler import Assembler, other_version
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan
from evo_kernel.fitness.runners.base import Checked, Round, Runner
from evo_kernel.tasks.task import Case
from evo_kernel.types import Status


class SecondAssembler:
    """Another installed assembler, if there is one. Thread-safe; its process starts when it is first needed."""

    def __init__(self, assembler: Assembler, arch: int, deadline_s: float) -> None:
        self._first, self._arch, self._deadline_s = assembler, arch, deadline_s
        self._lock = threading.Lock()
        self._compiler: Compiler | None = None
        self._other: Assembler | None = None
        self._started_once = False

    def second_opinion(
        self, checked: Checked, plan: CompiledPlan, case: Case, rounds: Sequence[Round], runner: Runner
    ) -> Checked:
        """The same verdict; its reason tells whether the other assembler's code is correct."""
        assembled = runner.stages.gpus and any(binary.instructions.get("wgmma") for binary in plan.binaries)
        if checked.status is not Status.WRONG or not assembled:
            return checked
        compiler, other = self._started()
        if compiler is None or other is None:
            return checked
        binaries = compiler.compile(plan.plan.kernels)
        if any(isinstance(binary, str) for binary in binaries):
            return checked
        recompiled = CompiledPlan(
            plan=plan.plan, binaries=tuple(binary for binary in binaries if isinstance(binary, Binary))
        )
        right = runner.check(recompiled, case, rounds).passed
        verdict = "right" if right else "wrong too"
        reason = (
            f"{verdict} when assembled by ptxas {other.version}; wrong with {self._first.version}: {checked.reason}"
        )
        return replace(checked, reason=reason)

    def close(self) -> None:
        with self._lock:
            self._started_once = True
            if self._compiler is not None:
                self._compiler.close()

    def _started(self) -> tuple[Compiler | None, Assembler | None]:
        with self._lock:
            if not self._started_once:
                self._started_once, self._other = True, other_version(self._first)
                if self._other is not None:
                    self._compiler = Compiler(self._arch, self._deadline_s, assembler=self._other)
                    self._compiler.start()
            return self._compiler, self._other
