"""A second assembler's opinion of a kernel that was found wrong: some of them turn right wgmma code wrong.

The verdict stays that of the assembler that was configured; what the other one makes of the same code is in its reason.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from evo_kernel.fitness.compile.assembler import Assembler, another
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan
from evo_kernel.fitness.runners.base import Checked, Round, Runner
from evo_kernel.tasks.task import Case
from evo_kernel.types import Status


class SecondOpinion:
    """Asks another assembler, where one is here. Thread-safe; its process starts when it is first needed."""

    def __init__(self, assembler: Assembler, arch: int, deadline_s: float) -> None:
        self._first, self._arch, self._deadline_s = assembler, arch, deadline_s
        self._lock = threading.Lock()
        self._compiler: Compiler | None = None
        self._other: Assembler | None = None
        self._looked = False

    def on(self, checked: Checked, plan: CompiledPlan, case: Case, rounds: Sequence[Round], runner: Runner) -> Checked:
        """The same verdict, with what came of the other assembler's code in its reason."""
        assembled = runner.stages.gpus and any(one.instructions.get("wgmma") for one in plan.binaries)
        if checked.status is not Status.WRONG or not assembled:
            return checked
        compiler, other = self._started()
        if compiler is None or other is None:
            return checked
        binaries = compiler.compile(plan.plan.kernels)
        if any(isinstance(one, str) for one in binaries):
            return checked
        again = CompiledPlan(plan=plan.plan, binaries=tuple(one for one in binaries if isinstance(one, Binary)))
        right = runner.check(again, case, rounds).passed
        said = "right" if right else "wrong too"
        reason = f"{said} when assembled by ptxas {other.version}; wrong with {self._first.version}: {checked.reason}"
        return replace(checked, reason=reason)

    def close(self) -> None:
        with self._lock:
            self._looked = True
            if self._compiler is not None:
                self._compiler.close()

    def _started(self) -> tuple[Compiler | None, Assembler | None]:
        with self._lock:
            if not self._looked:
                self._looked, self._other = True, another(self._first)
                if self._other is not None:
                    self._compiler = Compiler(self._arch, self._deadline_s, assembler=self._other)
                    self._compiler.start()
            return self._compiler, self._other
