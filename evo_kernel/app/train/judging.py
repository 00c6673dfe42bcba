"""The judge as reward workers: many kernels of many tasks at once, each verdict once, nothing that hangs a training.

Kernels are recorded in confined children and run by trusted runners, as in a search. Everything is bounded: one
recording or check by `deadline_s`, a batch by `batch_s`, the judges that are open by `most_open`. A judge that breaks
down is opened anew once a batch; what could not be judged by then is handed back as such, never as a bad kernel.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from evo_kernel.app.train.problems import problem_task
from evo_kernel.errors import InfraError
from evo_kernel.fitness.costmodel.features import plan_features
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.lru_cache import Recent
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind, Measurement, PlanFeatures, Purpose, Source, Status
from operators.learning.coder.rewards import RewardOutcome

NOT_JUDGED = RewardOutcome(None)


@dataclass(frozen=True)
class BenchSettings:
    """`gpus`: of each judge, a number or all. `threads`: kernels in flight. `kept`: verdicts that are remembered."""

    device: str = "auto"
    gpus: str = "1"
    threads: int = 8
    deadline_s: float = 20.0
    batch_s: float = 600.0
    most_open: int = 8
    tune_plans: int = 0
    unconfined: bool = False
    kept: int = 50_000


class PlanRewardJudge:
    """Implements operators.learning.coder.rewards.Bench; use it as a context manager. Thread-safe.

    Kernels are checked all at once; those that are right are timed task by task, so that no other judge's kernels run
    on the GPU beside the clock. Times are held against nothing but each other: scores mean nothing here.
    """

    def __init__(self, settings: BenchSettings | None = None) -> None:
        self.settings = settings or BenchSettings()
        self.judges: OrderedDict[str, PlanJudge] = OrderedDict()
        self._searched: dict[str, set[str]] = {}  # names of a task's search cases
        self._known: Recent[tuple[str, str, bool], RewardOutcome] = Recent(self.settings.kept)
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self.judged_count = 0  # verdicts that were not remembered

    def __enter__(self) -> PlanRewardJudge:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every judge. Idempotent."""
        with self._lock:
            judges, self.judges = list(self.judges.values()), OrderedDict()
        for judge in judges:
            judge.close()

    def judged(self, kernels: Sequence[tuple[str, Source]], timed: bool) -> list[RewardOutcome]:
        """See rewards.Bench. Raises UserError for a task that does not exist, or a device that is not there."""
        with self._turn:
            wanted = dict.fromkeys(kernels)
            until = time.monotonic() + self.settings.batch_s
            by_task: dict[str, list[Source]] = {}
            for task, source in wanted:
                if self._find(task, source, timed) is None:
                    by_task.setdefault(task, []).append(source)
            names = list(by_task)
            for at in range(0, len(names), self.settings.most_open):
                self._some({name: by_task[name] for name in names[at : at + self.settings.most_open]}, timed, until)
        return [self._find(task, source, timed) or NOT_JUDGED for task, source in kernels]

    # -- within ------------------------------------------------------------------------------------------------------

    def _some(self, by_task: Mapping[str, Sequence[Source]], timed: bool, until: float) -> None:
        """Check all kernels of some tasks; then time the right ones, task by task."""
        self._all([(task, source) for task, sources in by_task.items() for source in sources], Purpose.PROBE, until)
        if not timed:
            return
        for task, sources in by_task.items():
            right = [one for one in sources if self._passed(task, one)]
            self._all([(task, one) for one in right], Purpose.SCORE, until)

    def _all(self, kernels: Sequence[tuple[str, Source]], purpose: Purpose, until: float) -> None:
        if not kernels or time.monotonic() >= until:
            return
        self._open({task for task, _ in kernels})
        left = self._once(kernels, purpose, until)
        if left and time.monotonic() < until:  # their judges broke down: once more, with new ones
            self._close({task for task, _ in left})
            self._open({task for task, _ in left})
            self._once(left, purpose, until)

    def _once(self, kernels: Sequence[tuple[str, Source]], purpose: Purpose, until: float) -> list[tuple[str, Source]]:
        """Those whose judge broke down, or for which the time did not suffice."""
        pool = ThreadPoolExecutor(self.settings.threads)
        futures: dict[Future[RewardOutcome], tuple[str, Source]] = {}
        for task, source in kernels:
            judge = self.judges.get(task)
            if judge is not None:
                futures[pool.submit(self._judge, judge, task, source, purpose)] = (task, source)
        done, late = wait(futures, timeout=max(0.0, until - time.monotonic()))
        pool.shutdown(wait=not late, cancel_futures=True)
        if late:  # whatever hangs hangs in these: their judges go, and the threads end with them
            self._close({futures[one][0] for one in late})
        left: list[tuple[str, Source]] = []
        for one in done:
            task, source = futures[one]
            outcome = one.result()
            if outcome.evaluation is None or outcome.evaluation.status is Status.INFRA_ERROR:
                left.append((task, source))
            else:
                self._keep(task, source, purpose, outcome)
        return left

    def _judge(self, judge: PlanJudge, task: str, source: Source, purpose: Purpose) -> RewardOutcome:
        try:
            found = replace(judge.evaluate(source, purpose), verdicts=())  # those are for populations
            probed = self._find(task, source, False)
            if not found.passed:
                return RewardOutcome(found)
            if probed is not None:  # what was recorded then is recorded
                return replace(probed, evaluation=found)
            return RewardOutcome(found, *_recorded(judge, source, self._searched[task]))
        except (InfraError, OSError):  # OSError: a judge that was closed has no folders any more
            return NOT_JUDGED

    def _find(self, task: str, source: Source, timed: bool) -> RewardOutcome | None:
        with self._lock:
            probed = self._known.get((task, source.sha256, False))
            if not timed or probed is None:
                return probed
            failed = probed.evaluation is not None and not probed.evaluation.passed
            return probed if failed else self._known.get((task, source.sha256, True))

    def _passed(self, task: str, source: Source) -> bool:
        found = self._find(task, source, False)
        return found is not None and found.evaluation is not None and found.evaluation.passed

    def _keep(self, task: str, source: Source, purpose: Purpose, outcome: RewardOutcome) -> None:
        with self._lock:
            self._known.put((task, source.sha256, purpose is Purpose.SCORE), outcome)
            self.judged_count += 1

    def _open(self, tasks: set[str]) -> None:
        """Open what is not, side by side; the one used longest ago goes where there are too many."""
        missing = []
        for task in sorted(tasks):
            if task in self.judges:
                self.judges.move_to_end(task)
            else:
                missing.append(task)
        while self.judges and len(self.judges) + len(missing) > self.settings.most_open:
            _, judge = self.judges.popitem(last=False)
            judge.close()
        loaded = {task: problem_task(task) for task in missing}  # a UserError comes before any process
        with ThreadPoolExecutor(max(1, len(missing))) as pool:
            for task, judge in zip(missing, pool.map(lambda name: self._opened(loaded[name]), missing), strict=True):
                if judge is not None:
                    self._outfit(judge, loaded[task])
                    with self._lock:
                        self.judges[task] = judge
                        self._searched[task] = {case.name for case in loaded[task].cases_of(CaseKind.SEARCH)}

    def _opened(self, task: Task) -> PlanJudge | None:
        own = self.settings
        settings = JudgeSettings(deadline_s=own.deadline_s, tune_plans=own.tune_plans, unconfined=own.unconfined)
        for _ in range(2):
            with contextlib.suppress(InfraError):
                return open_judge(task, device=own.device, settings=settings, gpus=own.gpus)
        return None

    def _outfit(self, judge: PlanJudge, task: Task) -> None:
        """Spare it what a reward has no use for: compiling and timing baselines."""
        for case in task.cases_of(CaseKind.SEARCH):
            judge.baselines.know(Measurement(case.name, "", 1.0, 0.0, 0, 1.0, 1.0, {"1 µs": 1.0}))

    def _close(self, tasks: set[str]) -> None:
        for task in tasks:
            with self._lock:
                judge = self.judges.pop(task, None)
            if judge is not None:
                judge.close()


def _recorded(
    judge: PlanJudge, source: Source, searched: Collection[str]
) -> tuple[bool, dict[str, tuple[str, PlanFeatures | None]]]:
    """Whether all that was recorded are launches of Triton kernels, and no torch operation computes; and the plans."""
    found = judge.plans(source, (), [CaseKind.CHECK, CaseKind.SEARCH])
    plans = {case: one for case, one in found.items() if isinstance(one, CompiledPlan)}
    is_triton = bool(plans) and all(
        bool(one.plan.launches)
        and not one.plan.aten_nodes
        and all(kernel.language == "triton" for kernel in one.plan.kernels)
        for one in plans.values()
    )
    return is_triton, {
        case: (one.hash, plan_features(one, None, target_for(one.plan.target)) if case in searched else None)
        for case, one in plans.items()
    }
