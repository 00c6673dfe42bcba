"""Reference times of a task: its baselines, its first kernel, and the least time that bandwidth and arithmetic allow.

Where no GPU times torch.compile, its kernels are recorded, checked and modeled as a candidate's are. Products and
convolutions stay calls of libraries, priced by costmodel/torch_costs.py. ALLOW does not bind a baseline.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from evo_kernel import user_cache
from evo_kernel.deadline import Deadline
from evo_kernel.errors import CutShort, LoweringError
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.correctness.references import fresh_seed
from evo_kernel.fitness.costmodel.torch_costs import unpriced
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.timing.baselines import COMPILED, baseline_names, faults_of
from evo_kernel.fitness.timing.ceilings import KnownCeilings
from evo_kernel.fitness.timing.measurement_cache import MeasurementCache
from evo_kernel.tasks.first import compiles, first_kernel
from evo_kernel.tasks.task import Case, Task
from evo_kernel.tasks.traits import least_work, multiplies_eight_bits
from evo_kernel.types import CaseKind, Measurement, PlanVerdict, Source, Status

_BEATEN = 1.03
"""A share of light above this doubts the ceilings, which were perhaps measured beside other work."""
_FASTER = 1.25
"""A share above this is no error of ceilings: the work was not needed."""


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
        self.on_baselines: Callable[[str, Mapping[str, float], Mapping[str, str]], None] = lambda *told: None
        """Called once per case: its name, the baselines in µs, and why others could not be timed, by name."""

    def start(self, ceilings: KnownCeilings, measured: bool, key: Mapping[str, str] | None = None) -> None:
        """Set the ceilings. `measured`: whether times are measured. `key`: of the cache."""
        self.ceilings, self._measured, self._key = ceilings, measured, key
        self.compiled.key = key

    def know(self, measurement: Measurement) -> None:
        """Add an earlier run's baselines of a case."""
        if measurement.baselines_us:
            self._baselines.setdefault(measurement.case, dict(measurement.baselines_us))

    def hold(
        self, runner: Runner, case: Case, measurement: Measurement, deadline: Deadline | None = None, soon: bool = False
    ) -> Measurement | Checked:
        """Add baselines and the share of light to a measurement; rejected if it is faster than the ceilings allow.

        `soon`: without baselines where torch.compile's kernels are still being written. Raises CutShort.
        """
        if soon and not self._measured and case.name not in self._baselines and not self.compiled.ready():
            return replace(measurement, light_share=self._light_share(runner, case, measurement))
        baselines_us = self.baselines_of(runner, case, measurement, deadline)
        least = self._task.flops(case), self._task.bytes(case)
        floor_us = self.ceilings.limits.floor_us(*least, multiplies_eight_bits(self._task, case))
        if self._measured and measurement.median_us * _FASTER < floor_us:
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
        """The task's baselines if they can be timed; without a GPU, torch.compile's kernels; else its first kernel, or
        what the reference calls; empty if none of them can be timed.

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
        return times or self._stand_in(runner, case, measurement, faults), faults

    def _stand_in(
        self, runner: Runner, case: Case, measurement: Measurement | None, faults: dict[str, str]
    ) -> dict[str, float]:
        """The first kernel's time; else, modeled, that of the reference's own operations; none if neither is to be had.

        `faults`: gets the reasons.
        """
        sources: dict[str, Callable[[], Source]] = {"first kernel": lambda: first_kernel(self._task)}
        if not self._measured and self._task.baselines:
            sources["eager"] = lambda: Source(f"{self._task.text}\n\nrun = reference\n")
        for name, source_of in sources.items():
            found = self._us_of(source_of, runner, case, measurement)
            if not isinstance(found, str):
                return {name: found}
            faults[name] = found
        return {}

    @cached_property
    def _cache(self) -> MeasurementCache | None:
        """Cached times of this task's baselines, from earlier runs. Modeled times depend on the judge's secret seed."""
        if self._key is None or not self._measured or not self._task.baselines:
            return None
        return MeasurementCache({**self._key, "task": self._task.identity, "name": self._task.name})

    def _us_of(
        self, source_of: Callable[[], Source], runner: Runner, case: Case, measurement: Measurement | None
    ) -> float | str:
        """Median µs of a source on a case, or why there is none. `measurement`, which it is compared with, often is of
        the same plan."""
        try:
            source = source_of()
        except LoweringError as error:
            return str(error)
        plan = self._recorder.record(source, (record_case(self._task, case),), [()]).plans[(case.name, ())]
        if isinstance(plan, RecordFault):
            return f"it is not recorded: {plan.reason}"
        if measurement is not None and measurement.plan == plan.hash:
            return measurement.median_us
        if strange := next((node.op for node in plan.plan.aten_nodes if unpriced(node)), ""):
            return f"nothing tells what {strange} computes"
        # As for torch.compile: at real size a library's call takes a CPU minutes.
        timed = runner.measure(plan, case, 0, checked=not plan.plan.aten_nodes)
        return f"it is {timed.status}: {timed.reason}" if isinstance(timed, Checked) else timed.median_us

    def _light_share(self, runner: Runner, case: Case, measurement: Measurement) -> float | None:
        flops, moved = least_work(self._task, case)
        if not flops and not moved:
            return None
        light = flops, moved, multiplies_eight_bits(self._task, case)
        share = self.ceilings.now.light_us(*light) / measurement.median_us
        if self._measured and share > _BEATEN:
            share = self.ceilings.measured_again(runner.ceilings).light_us(*light) / measurement.median_us
        if share > _FASTER and flops and self._task.flops(case) is None:  # a sum of a product needs no product
            share = self.ceilings.now.light_us(None, moved) / measurement.median_us
        return share or None


_LOOK_S = 0.2


class CompiledBaseline:
    """Modeled times of torch.compile's kernels for one task. Callers take turns."""

    def __init__(self, task: Task, recorder: Recorder) -> None:
        self._task, self._recorder = task, recorder
        self._asked: Future[str] | None = None
        self._checked: dict[str, str] = {}  # check case → fault, or empty
        self.find: Callable[[str, str], PlanVerdict | None] = lambda case, plan: None
        """What is known of a plan (its hash) on a case (its name)."""
        self.key: Mapping[str, str] | None = None  # of the cache; None: nothing is cached

    def ready(self) -> bool:
        """Whether `us` need not wait until the kernels are written. The first call has them written."""
        if not compiles(self._task):
            return True
        if self._asked is None:
            from evo_kernel.tasks.compiled.child import baseline_ahead

            self._asked = baseline_ahead(self._task)
        return self._asked.done()

    def us(self, runner: Runner, case: Case, measurement: Measurement | None, deadline: Deadline) -> float | str:
        """Median µs on a case, or why there is none. `measurement`: one of the case, perhaps of the same plan.

        Raises CutShort.
        """
        if not compiles(self._task):
            return "the task's reference has compiled_baseline = False"
        while not self.ready():
            if deadline.over:
                raise CutShort("the time for it is up")
            assert self._asked is not None
            wait([self._asked], _LOOK_S)
        from evo_kernel.tasks.compiled.child import compiled_baseline

        try:
            source = compiled_baseline(self._task)
        except LoweringError as error:
            return str(error)
        cache = self._cache(source)
        if cache is not None and (earlier := cache.read().get(case.name)) is not None:
            return earlier[COMPILED]
        checks = [one for one in self._task.cases_of(CaseKind.CHECK) if one.name not in self._checked]
        cases = tuple(record_case(self._task, one) for one in (*checks, case))
        plans = self._recorder.record(source, cases, [()]).plans
        for one in checks:
            self._checked[one.name] = self._fault(runner, one, plans[(one.name, ())])
        plan = plans[(case.name, ())]
        if fault := next(filter(None, self._checked.values()), ""):
            return fault
        if isinstance(plan, RecordFault):
            return f"its kernels are not recorded: {plan.reason}"
        known = self.find(case.name, plan.hash)
        if measurement is None or measurement.plan != plan.hash:
            measurement = known.measurement if known is not None else None
        # Library calls were compared on check cases; at real size one takes a CPU minutes, and its price says the same.
        timed = measurement or runner.measure(plan, case, fresh_seed(), checked=not plan.plan.aten_nodes)
        if isinstance(timed, Checked):
            return f"its kernels are {timed.status}: {timed.reason}"
        if cache is not None:
            cache.add(case.name, {COMPILED: timed.median_us})
        return timed.median_us

    def _cache(self, source: Source) -> MeasurementCache | None:
        """Modeled times of these kernels from earlier runs, if they passed their checks.

        The secret choice of the programs that are counted moves the time of a kernel only where its programs differ.
        """
        if self.key is None:
            return None
        code = user_cache.code_hash(Path(__file__).parents[1])
        task = {"task": self._task.identity, "name": self._task.name}
        return MeasurementCache({**self.key, **task, "kernels": source.sha256, "code": code})

    def _fault(self, runner: Runner, case: Case, plan: CompiledPlan | RecordFault) -> str:
        """What is wrong with its outputs on a check case: they are compared as a candidate's are."""
        if isinstance(plan, RecordFault):
            return f"its kernels are not recorded: {plan.reason}"
        known = self.find(case.name, plan.hash)
        if known is not None and known.status is Status.PASSED:
            return ""
        found = runner.check(plan, case, [(fresh_seed(), regime) for regime in regimes.SEARCH])
        return "" if found.passed else f"its kernels are {found.status} on {case.name}: {found.reason}"
