"""torch.compile as a baseline where no GPU times it: its kernels, recorded, checked and modeled as a candidate's are.

Products and convolutions stay calls of libraries, priced by costmodel/torch_costs.py. ALLOW does not bind a baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait

from evo_kernel.deadline import Deadline
from evo_kernel.errors import CutShort, LoweringError
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.correctness.references import fresh_seed
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.tasks.first import compiles
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Measurement, PlanVerdict, Status

_LOOK_S = 0.2


class CompiledBaseline:
    """Modeled times of torch.compile's kernels for one task. Callers take turns."""

    def __init__(self, task: Task, recorder: Recorder) -> None:
        self._task, self._recorder = task, recorder
        self._asked: Future[str] | None = None
        self._checked: dict[str, str] = {}  # check case → fault, or empty
        self.find: Callable[[str, str], PlanVerdict | None] = lambda case, plan: None
        """What is known of a plan (its hash) on a case (its name)."""

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
        timed = measurement or runner.measure(plan, case, fresh_seed())
        return f"its kernels are {timed.status}: {timed.reason}" if isinstance(timed, Checked) else timed.median_us

    def _fault(self, runner: Runner, case: Case, plan: CompiledPlan | RecordFault) -> str:
        """What is wrong with its outputs on a check case: they are compared as a candidate's are."""
        if isinstance(plan, RecordFault):
            return f"its kernels are not recorded: {plan.reason}"
        known = self.find(case.name, plan.hash)
        if known is not None and known.status is Status.PASSED:
            return ""
        found = runner.check(plan, case, [(fresh_seed(), regime) for regime in regimes.SEARCH])
        return "" if found.passed else f"its kernels are {found.status} on {case.name}: {found.reason}"
