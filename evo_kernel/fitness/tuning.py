"""Tuning: knob settings of a source, raced against its own over the search cases."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.knobs import find_knobs
from evo_kernel.fitness.prefilter import Prefilter, Sieve
from evo_kernel.fitness.record.recorder import Fault, Recording
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.tuner import Tuner
from evo_kernel.fitness.work import Work, mean_log
from evo_kernel.types import CaseKind, Knobs, Measurement, PlanVerdict, Status

RACE_LOG = math.log(1.25)  # a setting so far behind the best on the cases so far is not timed on the others


class Tuning:
    """Finds the setting that a source is scored with. Thread-safe."""

    def __init__(self, grader: Grader, seed: int, plans: int, within: float) -> None:
        """`plans`, `within`: see JudgeSettings."""
        self._grader, self._plans, self._within = grader, plans, within
        self._tuner = Tuner(seed)
        self.prefilter: Prefilter | None = None  # on a GPU, where the task has earned one
        self._lock = threading.Lock()
        self._best_log_us = math.inf

    def tune(self, work: Work, recording: Recording, own: list[Measurement]) -> tuple[Knobs, list[Measurement]]:
        """Try knob settings, raced over the search cases; the best that also checks is taken."""
        best_log = mean_log(own)
        with self._lock:
            worth = best_log <= self._best_log_us + math.log(self._within)
        knobs = find_knobs(work.source, dict(recording.configs)) if worth else ()
        ranked: list[tuple[float, Knobs, list[Measurement], Recording]] = []
        sieve = self._sieve(recording)
        for batch in self._tuner.batches(work.source, knobs, self._plans):
            tried = self._grader.record(work.source, (CaseKind.SEARCH,), batch)
            behind = sieve.behind(tried, batch) if sieve else {}
            for setting in batch:
                if setting in behind:  # the tuner is told what the model thinks of it
                    self._tuner.tell(work.source, setting, best_log + behind[setting])
                    continue
                began, busy = time.monotonic(), work.runner.busy_s
                found, cost = self._race(work, tried, setting, min([own, *(r[2] for r in ranked)], key=mean_log))
                if self.prefilter:
                    self.prefilter.waited(time.monotonic() - began - (work.runner.busy_s - busy))
                self._tuner.tell(work.source, setting, cost)
                if found and cost is not None and cost < best_log:
                    ranked.append((cost, setting, found, tried))
        for cost, setting, found, tried in sorted(ranked, key=lambda item: item[0]):
            checks = self._grader.record(work.source, (CaseKind.CHECK,), [setting])
            right = self._grader.check_setting(work, checks, setting).passed
            if right and self._grader.right_when_timed(work, tried, setting):
                self._note_best(cost)
                for m in found:
                    self._grader.keep(work, PlanVerdict(m.case, m.plan, Status.PASSED, "", None, m))
                return setting, found
        self._note_best(best_log)
        return (), own

    def _sieve(self, recording: Recording) -> Sieve | None:
        case = self._grader.cases(CaseKind.SEARCH)[0]
        own = recording.plans[(case.name, ())]
        return None if self.prefilter is None or isinstance(own, Fault) else Sieve(self.prefilter, case, own)

    def _race(
        self, work: Work, tried: Recording, setting: Knobs, best: Sequence[Measurement]
    ) -> tuple[list[Measurement] | None, float | None]:
        """A setting's measurements and its cost (mean log µs), case by case until it is clearly behind the best so far.

        Measurements are None for one that fell behind, whose cost is extrapolated; cost is None for one that failed.
        """
        found: list[Measurement] = []
        for number, case in enumerate(self._grader.cases(CaseKind.SEARCH), start=1):
            plan = tried.plans[(case.name, setting)]
            if isinstance(plan, Fault):
                return None, None
            work.plans.append((case.name, setting, plan.hash))
            measured = self._grader.measured(work, plan, case, checked=False, against_us=best[number - 1].median_us)
            if isinstance(measured, Checked):
                return None, None
            found.append(measured)
            behind = mean_log(found) - mean_log(best[:number])
            if number < len(best) and behind > RACE_LOG:
                return None, mean_log(best) + behind
        return found, mean_log(found)

    def _note_best(self, log_us: float) -> None:
        with self._lock:
            self._best_log_us = min(self._best_log_us, log_us)
