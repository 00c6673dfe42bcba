"""The judges of a server: one a task and its settings, opened when first needed and kept warm for the next request."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.spool.messages import SpoolAnswer, SpoolRequest
from evo_kernel.fitness.spool.task_files import unpacked
from evo_kernel.tasks.task import Task
from evo_kernel.types import Environment, Purpose

MOST_OPEN = 4
OpenJudge = Callable[[Task, JudgeSettings], PlanJudge]


class _WarmJudge:
    """One judge. Its owner's lock guards `users` and `broken`."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.judge: PlanJudge | None = None
        self.users, self.broken = 0, False
        self.baselines: dict[str, Mapping[str, float]] = {}
        self.faults: dict[str, Mapping[str, str]] = {}

    def hear(self, case: str, baselines_us: Mapping[str, float], faults: Mapping[str, str]) -> None:
        self.baselines |= {case: dict(baselines_us)}
        self.faults |= {case: dict(faults)}


class WarmJudges:
    """Thread-safe. `open_judge` opens one; `folder`: for task files; `own`: settings that no request may set."""

    def __init__(self, open_judge: OpenJudge, folder: Path, own: JudgeSettings) -> None:
        self._open_judge, self._folder, self._own = open_judge, folder, own
        self._lock, self._closed = threading.Lock(), False
        self._warm: OrderedDict[tuple[str, JudgeSettings], _WarmJudge] = OrderedDict()

    def answer(self, request: SpoolRequest, server: str, environment: Environment) -> SpoolAnswer:
        """The verdict or profile. Raises InfraError where the machine failed, UserError where this server can never
        judge it."""
        with self._of(request) as warm:
            judge = warm.judge
            assert judge is not None, "opened by _of"
            if judge.environment.key != environment.key:
                raise UserError("this machine's environment has changed: start its server anew")
            evaluation, profiles, fault = None, None, ""
            if request.profile is not None:
                wanted = request.profile
                try:
                    profiles = judge.profile(request.source, wanted.knobs, wanted.kinds, wanted.counters, wanted.case)
                except UserError as error:  # of the source, which has a fault; not of the request
                    fault = str(error)
            else:
                evaluation = judge.evaluate(
                    request.source, Purpose(request.what), request.remeasure, request.against, effort=request.effort
                )
            return SpoolAnswer(
                request=request.stem, server=server, evaluation=evaluation, profiles=profiles, fault=fault,
                baselines=dict(warm.baselines), faults=dict(warm.faults),
            )  # fmt: skip

    def close(self) -> None:
        """End all of them; what is under way ends as the machine's failure."""
        with self._lock:
            self._closed = True
            warm = list(self._warm.values())
            self._warm.clear()
        for one in warm:
            if one.judge is not None:
                one.judge.close()

    @contextlib.contextmanager
    def _of(self, request: SpoolRequest) -> Iterator[_WarmJudge]:
        settings = replace(request.settings, unconfined=self._own.unconfined, assembler=self._own.assembler)
        key = request.task.key, settings
        with self._lock:
            if self._closed:
                raise InfraError("this server is ending")
            if key not in self._warm:
                self._warm[key] = _WarmJudge()
            warm = self._warm[key]
            self._warm.move_to_end(key)
            warm.users += 1
        try:
            with warm.opening:
                if warm.judge is None:
                    self._make_room()
                    opened = self._open_judge(unpacked(request.task, self._folder), settings)
                    opened.baselines.on_baselines = warm.hear
                    warm.judge = opened
                    if self._closed:
                        opened.close()
            yield warm
        except InfraError:  # the next request gets a new one
            with self._lock:
                warm.broken = True
                if self._warm.get(key) is warm:
                    del self._warm[key]
            raise
        finally:
            with self._lock:
                warm.users -= 1
                over = warm.broken and not warm.users
            if warm.judge is None:  # it did not open: nothing to keep
                with self._lock:
                    if self._warm.get(key) is warm and not warm.users:
                        del self._warm[key]
            elif over:
                warm.judge.close()

    def _make_room(self) -> None:
        """Close the one used longest ago, where there are too many."""
        with self._lock:
            idle = [key for key, one in self._warm.items() if not one.users and one.judge is not None]
            leaving = [self._warm.pop(key) for key in idle[: max(0, len(self._warm) - MOST_OPEN)]]
        for one in leaving:
            assert one.judge is not None
            one.judge.close()
