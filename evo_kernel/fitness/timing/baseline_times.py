"""Reference times of a task:

its baselines, its first kernel, and the least time that bandwidth and arithmetic allow.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from evo_kernel.deadline import Deadline
from evo_kernel.errors import InfraError
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.timing.baselines import COMPILED, baseline_names, faults_of
from evo_kernel.fitness.timing.ceilings import KnownCeilings
from evo_kernel.fitness.timing.compiled_baseline import CompiledBaseline
from evo_kernel.fitness.timing.reference_cache import MeasurementCache
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.least_work import least_work
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Measurement, Status

_BEATEN = 1.03
"""A share of light above this doubts the ceilings, which were perhaps measured beside other work."""


class BaselineTimes:
    """Reference times of one task on one machine; each baseline is timed once. Thread-safe."""

    def __init__(self, task: Task, recorder: Recorder) -> None:
        self._task, self._recorder = task, recorder
        self.compiled = CompiledBaseline(task, recorder)
        self._baselines: dict[str, Mapping[str, float]] = {}
        self._lock = threading.Lock()
        self._measured = False
        self._key: Mapping[str, str] | None = None
        self.ceilings: KnownCeilings
        self.on_baselines: Callable[[str, Mapping[str, float], Mapping[str, str]], None] = _nobody
        """Called once per case: its name, the baselines in µs, and why others could not be timed, by name."""

    def start(self, ceilings: KnownCeilings, measured: bool, key: Mapping[str, str] | None = None) -> None:
        """Set the ceilings. `measured`: whether times are measured. `key`: of the cache."""
        self.ceilings, self._measured, self._key = ceilings, measured, key

    def know(self, measurement: Measurement) -> None:
        """Add an earlier run's baselines of a case."""
        if measurement.baselines_us:
            self._baselines.setdefault(measurement.case, dict(measurement.baselines_us))

    def hold(
        self, runner: Runner, case: Case, measurement: Measurement, deadline: Deadline | None = None, soon: bool = False
    ) -> Measurement | Checked:
        """Add baselines and the share of light to a measurement; rejected if it is faster than the ceilings allow.

        `soon`: as it is where torch.compile's kernels are still being written. Raises CutShort.
        """
        if soon and not self._measured and case.name not in self._baselines and not self.compiled.ready():
            return measurement
        baselines_us = self.baselines_of(runner, case, measurement, deadline)
        floor_us = self.ceilings.limits.floor_us(self._task.flops(case), self._task.bytes(case))
        if self._measured and measurement.median_us * 1.25 < floor_us:
            reason = f"faster than light on {case.name}: {measurement.median_us:.2f} µs is less than the ceilings allow"
            return Checked(Status.REJECTED, reason)
        return replace(measurement, light_share=self._light_share(runner, case, measurement), baselines_us=baselines_us)

    def prepare(self, runner: Runner, cases: Iterable[Case], deadline: Deadline | None = None) -> None:
        """Measure unknown baselines ahead, so that `hold` does not wait.

        Hidden cases: call it with the fresh runner. Others: before taking a runner exclusively, since another thread
        may be measuring them and wait for that runner.
        """
        _ = self.ceilings.now
        for case in cases:
            self.baselines_of(runner, case, deadline=deadline)

    def baselines_of(
        self, runner: Runner, case: Case, measurement: Measurement | None = None, deadline: Deadline | None = None
    ) -> Mapping[str, float]:
        """The task's baselines if they can be timed; without a GPU, torch.compile's kernels; else its first kernel.

        `measurement`: the one compared with them. Raises CutShort.
        """
        if (times := self._baselines.get(case.name)) is not None:
            return times
        # Asked by confirmations, which hold a GPU's runner and must not wait.
        hidden = case.kind is CaseKind.CONFIRM and self._measured
        with contextlib.nullcontext() if hidden else self._lock:  # threads may ask concurrently
            times = self._baselines.get(case.name)
            if times is None:
                cache = self._cache if case.kind is not CaseKind.CONFIRM else None  # published times are measured again
                times, faults = cache.read().get(case.name) if cache is not None else None, {}
                if times is None:
                    times, faults = self._timed(runner, case, measurement, deadline or Deadline())
                    if cache is not None and not faults:
                        cache.add(case.name, times)
                self._baselines[case.name] = times
                self.on_baselines(case.name, times, faults)
        return times

    def _timed(
        self, runner: Runner, case: Case, measurement: Measurement | None, deadline: Deadline
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Baselines in µs, and why others have no time, by name."""
        times, faults = dict(runner.baselines(case)), faults_of(case, runner.baseline_faults)
        if not times and not self._measured and baseline_names(self._task):
            found = self.compiled.us(runner, case, measurement, deadline)
            if isinstance(found, str):
                faults[COMPILED] = found
            else:
                times[COMPILED] = found
        return times or {"first kernel": self._first_kernel_us(runner, case, measurement)}, faults

    @cached_property
    def _cache(self) -> MeasurementCache | None:
        """Cached times of this task's baselines, from earlier runs. Modeled times depend on the judge's secret seed."""
        if self._key is None or not self._measured or not self._task.baselines:
            return None
        return MeasurementCache({**self._key, "task": self._task.identity, "name": self._task.name})

    def _first_kernel_us(self, runner: Runner, case: Case, measurement: Measurement | None) -> float:
        """Time of the first kernel on a case; `measurement`, which it is compared with, often is of that kernel."""
        source = first_kernel(self._task)
        plan = self._recorder.record(source, (record_case(self._task, case),), [()]).plans[(case.name, ())]
        if isinstance(plan, RecordFault):
            raise InfraError(f"the task's first kernel does not record: {plan.reason}")
        if measurement is not None and measurement.plan == plan.hash:
            return measurement.median_us
        first = runner.measure(plan, case, 0)
        if isinstance(first, Checked):
            raise InfraError(f"the task's first kernel cannot be timed: {first.reason}")
        return first.median_us

    def _light_share(self, runner: Runner, case: Case, measurement: Measurement) -> float | None:
        flops, moved = least_work(self._task, case)
        if not flops and not moved:
            return None
        share = self.ceilings.now.light_us(flops, moved) / measurement.median_us
        if self._measured and share > _BEATEN:
            share = self.ceilings.measured_again(runner.ceilings).light_us(flops, moved) / measurement.median_us
        return share


def _nobody(*told: object) -> None:
    del told
