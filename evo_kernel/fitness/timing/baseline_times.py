"""What a time is held against: baselines, the task's first kernel, the speed of light."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from evo_kernel.errors import InfraError
from evo_kernel.fitness.record.cases import record_case
from evo_kernel.fitness.record.recorder import Recorder, RecordFault
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.timing.baselines import faults_of
from evo_kernel.fitness.timing.ceilings import KnownCeilings
from evo_kernel.fitness.timing.reference_cache import Remembered
from evo_kernel.tasks.first import Wanted, first_kernel
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Measurement, Status


class BaselineTimes:
    """What times of one task are held against on one machine; baselines are timed once. Thread-safe."""

    def __init__(self, task: Task, recorder: Recorder, first: Wanted = "auto") -> None:
        self._task, self._recorder = task, recorder
        self._first: Wanted = first
        self._baselines: dict[str, Mapping[str, float]] = {}
        self._lock = threading.Lock()
        self._measured = False
        self._found: Mapping[str, str] | None = None
        self.ceilings: KnownCeilings
        self.on_baselines: Callable[[str, Mapping[str, float], Mapping[str, str]], None] = _nobody
        """Called once a case with its name, the baselines in µs, and why others could not be timed, by name."""

    def start(self, ceilings: KnownCeilings, measured: bool, found: Mapping[str, str] | None = None) -> None:
        """Take in what the GPU can do at most. `measured`: times are. `found`: the circumstances, to remember by."""
        self.ceilings, self._measured, self._found = ceilings, measured, found

    def know(self, found: Measurement) -> None:
        """Take in what an earlier run held a case against."""
        self._baselines.setdefault(found.case, dict(found.baselines_us))

    def hold(self, runner: Runner, case: Case, found: Measurement) -> Measurement | Checked:
        """A measurement with what it is held against; rejected when it is faster than light."""
        baselines_us = self.baselines_of(runner, case, found)
        floor_us = self.ceilings.limits.floor_us(self._task.flops(case), self._task.bytes(case))
        if self._measured and found.median_us * 1.25 < floor_us:
            reason = f"faster than light on {case.name}: {found.median_us:.2f} µs is less than its bytes and flops take"
            return Checked(Status.REJECTED, reason)
        return replace(found, light_share=self._light_share(case, found), baselines_us=baselines_us)

    def prepare(self, runner: Runner, cases: Iterable[Case]) -> None:
        """Measure what is not known yet, so that `hold` finds it and waits for nobody.

        For whoever is about to have a runner to itself: another thread may be measuring it, and wait for that runner.
        """
        _ = self.ceilings.now
        for case in cases:
            self.baselines_of(runner, case)

    def baselines_of(self, runner: Runner, case: Case, found: Measurement | None = None) -> Mapping[str, float]:
        """The task's baselines where they can be timed, else the first kernel. `found`: what is held against them."""
        if (known := self._baselines.get(case.name)) is not None:
            return known
        with self._lock:  # many threads may ask first: they are timed once
            known = self._baselines.get(case.name)
            if known is None:
                kept = self._remembered if case.kind is not CaseKind.CONFIRM else None  # claims are timed today
                known = kept.read().get(case.name) if kept is not None else None
                if known is None:
                    known = dict(runner.baselines(case)) or {"first kernel": self._first_kernel_us(runner, case, found)}
                    if kept is not None and not faults_of(case, runner.baseline_faults):
                        kept.add(case.name, known)
                self._baselines[case.name] = known
                self.on_baselines(case.name, known, faults_of(case, runner.baseline_faults))
        return known

    @cached_property
    def _remembered(self) -> Remembered | None:
        """What earlier runs measured of this very task's baselines here. Modeled times are of their judge's secret."""
        if self._found is None or not self._measured or not self._task.baselines:
            return None
        return Remembered({**self._found, "task": self._task.identity, "name": self._task.name})

    def _first_kernel_us(self, runner: Runner, case: Case, found: Measurement | None) -> float:
        """Time of the first kernel on a case; `found`, which is held against it, is often itself."""
        source = first_kernel(self._task, self._first)
        plan = self._recorder.record(source, (record_case(self._task, case),), [()]).plans[(case.name, ())]
        if isinstance(plan, RecordFault):
            raise InfraError(f"the task's first kernel does not record: {plan.reason}")
        if found is not None and found.plan == plan.hash:
            return found.median_us
        first = runner.measure(plan, case, 0)
        if isinstance(first, Checked):
            raise InfraError(f"the task's first kernel cannot be timed: {first.reason}")
        return first.median_us

    def _light_share(self, case: Case, found: Measurement) -> float | None:
        flops, moved = self._task.flops(case), self._task.bytes(case)
        if flops is None and moved is None:
            return None
        return self.ceilings.now.light_us(flops, moved) / found.median_us


def _nobody(*told: object) -> None:
    del told
