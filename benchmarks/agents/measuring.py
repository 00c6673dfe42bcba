"""Measures every action of every parent that it is handed, on one GPU: what one process of `collect` does.

A parent is tuned well; its knobs are written in, and from there each offered action is carried out by the rewriter,
judged, tuned a little, and then timed side by side with the parent, in pairs. Were the parent tuned no better than its
children, every action would be one more draw of tile sizes. What tuning picked as the fastest of several was partly
lucky; fresh pairs are not. The model's opinion of the untuned child is noted beside.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agents import truth
from benchmarks.agents.problems import Parent, Planted
from evo_kernel.errors import EvoKernelError, InfraError, OperatorFailed
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.fitness.knobs import apply_knobs
from evo_kernel.fitness.pairing import PairSettings
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Fault
from evo_kernel.fitness.references import fresh_seed
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind, Evaluation, Purpose, Source, Status, Strategy
from operators.macro import catalogue
from operators.micro.coder import RewriteCoder
from operators.micro.faults import fault_of

PAIRS = PairSettings(pairs=40, look_every=20)
SAMPLE_S = 20.0
OPENING = 3  # jobs that a parent counts as until its actions are submitted
EVERY_KERNEL = 1e9  # tune_within: slow kernels are tuned too, since parent and child must be treated alike


Plans = Mapping[str, CompiledPlan | Fault]
"""By case."""


@dataclass(frozen=True)
class Want:
    """How to measure."""

    device: str = "cuda"
    tune_plans: int = 4  # of a child
    parent_plans: int = 32
    threads: int = 24
    deadline_s: float = 30.0
    tune_seed: int = 0


@dataclass(frozen=True)
class Beside:
    """A parent as it was scored: what its children start from and are held against."""

    parent: Parent
    source: Source  # with its knobs written in
    evaluation: Evaluation
    plans: Plans


class Bench:
    """One task on one device. `submit` returns at once; `drain` waits. One that fails ends no other."""

    def __init__(self, task_name: str, want: Want, write: Callable[[truth.Row], None], over: threading.Event) -> None:
        self.name, self._want, self._write, self._over = task_name, want, write, over
        self._task: Task = load(task_name)
        self._coder, self._card = RewriteCoder(), self._task.card()
        self._changed = threading.Condition()
        self._pending = 0
        self.gpu_s = 0.0  # of evaluations; pairs come on top
        self._pool = ThreadPoolExecutor(want.threads)
        settings = JudgeSettings(
            deadline_s=want.deadline_s, tune_plans=want.tune_plans, tune_within=EVERY_KERNEL, seed=want.tune_seed,
        )  # fmt: skip
        self._judge: PlanJudge = open_judge(self._task, device=want.device, settings=settings)
        self._sampler = CpuRunner(self._task, self._judge._runner.arch, SAMPLE_S)
        self._sampler.start()

    @property
    def environment(self) -> dict[str, Any]:
        return asdict(self._judge.environment)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._judge.close()
        self._sampler.close()

    def parent(self, parent: Parent, known: Mapping[str, truth.Row]) -> None:
        """Measure it with all its actions; `known`: rows that an earlier call left, by key, its own by its id."""
        self._submit(parent.id, lambda: self._parent(parent, known), OPENING)

    def planted(self, one: Planted) -> None:
        self._submit(one.id, lambda: self._planted(one))

    def drain(self, below: int, end: float) -> None:
        """Wait until fewer than `below` jobs are left, or the time (of time.monotonic) is over."""
        with self._changed:
            while self._pending >= below and time.monotonic() < end:
                self._changed.wait(0.5)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _submit(self, name: str, work: Callable[[], None], counts: int = 1) -> None:
        with self._changed:
            self._pending += counts
        self._pool.submit(self._guarded, name, work, counts)

    def _guarded(self, name: str, work: Callable[[], None], counts: int) -> None:
        try:
            if not self._over.is_set():
                work()
        except EvoKernelError as error:
            self._trouble(name, f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001 (one job: the others are still wanted)
            self._trouble(name, traceback.format_exc())
        finally:
            with self._changed:
                self._pending -= counts
                self._changed.notify_all()

    def _trouble(self, name: str, why: str) -> None:
        if not self._over.is_set():  # what ends with us is nobody's fault
            self._write({"kind": "trouble", "id": name, "task": self.name, "why": why[-1500:]})

    def _evaluate(self, source: Source, purpose: Purpose = Purpose.SCORE, tune_plans: int | None = None) -> Evaluation:
        try:
            found = self._judge.evaluate(source, purpose, tune_plans=tune_plans)
        except InfraError:
            if self._over.is_set():
                raise
            found = self._judge.evaluate(source, purpose, tune_plans=tune_plans)
        with self._changed:
            self.gpu_s += found.gpu_s
        return found

    def _planted(self, one: Planted) -> None:
        found = self._evaluate(one.source, Purpose.PROBE)
        row = {"kind": "planted", "id": one.id, "task": self.name, "category": one.category}
        seen = str(fault_of(found) or "passed")
        self._write(row | {"status": str(found.status), "reason": found.reason[:500], "seen": seen})

    # -- a parent -----------------------------------------------------------------------------------------------------

    def _parent(self, parent: Parent, known: Mapping[str, truth.Row]) -> None:
        old = known.get(parent.id)
        found = (
            truth.evaluation_of(old["evaluation"])
            if old
            else self._evaluate(parent.source, tune_plans=self._want.parent_plans)
        )
        source = apply_knobs(parent.source, found.knobs)
        plans = self._judge.plans(source, (), [CaseKind.SEARCH])
        beside = Beside(parent, source, found, plans)
        offers = self._coder.offer(source, self._card) if found.passed else ()
        if old is None:
            self._write(self._parent_row(beside, offers))
        if found.passed and "profile" not in known:
            self._submit(f"profile of {parent.id}", lambda: self._profile(beside))
        left = [strategy for strategy in offers if strategy.key not in known]
        counted = _Countdown(len(left), lambda: self._done(parent, len(offers)))
        for strategy in left:
            self._submit(f"{parent.id} {strategy.key}", lambda s=strategy: self._action(beside, s, counted))
        if not left:
            self._done(parent, len(offers))

    def _done(self, parent: Parent, actions: int) -> None:
        self._write({"kind": "done", "id": parent.id, "task": self.name, "actions": actions})

    def _parent_row(self, beside: Beside, offers: tuple[Strategy, ...]) -> truth.Row:
        found = beside.evaluation
        return {
            "kind": "parent", "id": beside.parent.id, "task": self.name, "depth": beside.parent.depth,
            "status": str(found.status), "reason": found.reason[:500], "sha": beside.source.sha256,
            "offers": [one.key for one in offers], "evaluation": truth.evaluation_data(found),
            "modeled": self._modeled(beside.plans), "itself": self._paired(beside.plans, beside.plans, same=True),
            "gpu_s": found.gpu_s, "wall_s": found.wall_s,
        }  # fmt: skip

    def _profile(self, beside: Beside) -> None:
        """The text table of the slowest case, with no hardware counters: reading them would disturb the clock."""
        slowest = max(beside.evaluation.measurements, key=lambda m: m.median_us)
        found = self._judge.profile(beside.source, (), [CaseKind.SEARCH], False, slowest.case)
        text = "\n".join(f"{case}: {one.as_text(self._judge.environment.label)}" for case, one in found.items())
        self._write({"kind": "profile", "id": beside.parent.id, "task": self.name, "text": text})

    # -- an action ----------------------------------------------------------------------------------------------------

    def _action(self, beside: Beside, strategy: Strategy, counted: _Countdown) -> None:
        began = time.monotonic()
        row: truth.Row = {
            "kind": "action", "parent": beside.parent.id, "task": self.name, "key": strategy.key,
            "strategy": asdict(strategy), "parent_sha": beside.source.sha256,
        }  # fmt: skip
        try:
            text = self._coder.implement(beside.source, strategy, self._card, np.random.default_rng(0))
        except OperatorFailed as failure:
            self._write(row | {"status": "not applied", "reason": str(failure)[:500]})
            return counted.down()
        child = Source(text)
        found = self._evaluate(child)
        if found.status is Status.INFRA_ERROR:
            raise InfraError(found.reason)
        row |= {"sha": child.sha256, "status": str(found.status), "reason": found.reason[:500], "score": found.score}
        if found.passed:
            row |= self._compared(beside, strategy, child, found)
        row |= {"gpu_s": found.gpu_s, "wall_s": time.monotonic() - began}
        if not self._over.is_set():
            self._write(row)
        return counted.down()

    def _compared(self, beside: Beside, strategy: Strategy, child: Source, found: Evaluation) -> truth.Row:
        tuned = self._judge.plans(child, found.knobs, [CaseKind.SEARCH])
        own = tuned if not found.knobs else self._judge.plans(child, (), [CaseKind.SEARCH])
        return {
            "witnessed": catalogue.witnessed(strategy, beside.evaluation, found), "knobs": found.knobs,
            "log_gain": beside.evaluation.log_us - found.log_us, "times": truth.times_of(found),
            "pairs": self._paired(beside.plans, tuned), "modeled": self._modeled(own),
        }  # fmt: skip

    def _paired(self, first: Plans, second: Plans, same: bool = False) -> dict[str, list[Any]]:
        return paired(self._judge, self._task, first, second, same)

    def _modeled(self, plans: Plans) -> dict[str, float | None]:
        """Modeled µs by case; None where it cannot be modeled."""
        found: dict[str, float | None] = {}
        for case in self._task.cases_of(CaseKind.SEARCH):
            plan = plans.get(case.name)
            if isinstance(plan, CompiledPlan):
                made = self._sampler.measure(plan, case, 17, checked=False)
                found[case.name] = None if isinstance(made, Checked) else made.median_us
        return found


def paired(judge: PlanJudge, task: Task, first: Plans, second: Plans, same: bool = False) -> dict[str, list[Any]]:
    """By case: ratio first ÷ second, its interval, pairs, verdict; 1 for the same plan, unless it is `same`."""
    found: dict[str, list[Any]] = {}
    for case in task.cases_of(CaseKind.SEARCH):
        before, after = first.get(case.name), second.get(case.name)
        if not isinstance(before, CompiledPlan) or not isinstance(after, CompiledPlan):
            continue
        if before.hash == after.hash and not same:
            found[case.name] = [1.0, 1.0, 1.0, 0, "the same plan"]
            continue
        timed = judge._runner.pair(before, after, case, fresh_seed(), PAIRS, checked=False)
        if isinstance(timed, Checked):
            found[case.name] = [None, None, None, 0, f"{timed.status}: {timed.reason}"[:200]]
            continue
        said = timed.comparison
        found[case.name] = [said.ratio, said.low, said.high, said.pairs, str(said.verdict)]
    return found


class _Countdown:
    """Calls `done` when it was counted down `count` times. Jobs that end in trouble do not count: they are left."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left, self._done, self._lock = count, done, threading.Lock()

    def down(self) -> None:
        with self._lock:
            self._left -= 1
            ended = self._left == 0
        if ended:
            self._done()


class Writer:
    """Appends rows to a file, each flushed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    def __call__(self, row: truth.Row) -> None:
        text = truth.line(row) + "\n"
        with self._lock, self._path.open("a") as file:
            file.write(text)
