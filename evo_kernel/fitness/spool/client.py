"""A judge that is elsewhere: requests go into a spool, verdicts come from there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from evo_kernel.deadline import Deadline
from evo_kernel.errors import CutShort, InfraError, UserError
from evo_kernel.fitness.compile.assembler import of_version
from evo_kernel.fitness.costmodel.targets import TARGETS, target_for
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.profiling.compile_report import CompileReport, compile_report
from evo_kernel.fitness.profiling.profiler import CaseProfile
from evo_kernel.fitness.runners.choose import MODELED_ARCH
from evo_kernel.fitness.spool.folder import LEASE_S, REQUESTS, SERVERS, TAKEN, VERDICTS, Heartbeats, SpoolFolder
from evo_kernel.fitness.spool.messages import (
    MOST_BYTES,
    PROFILE,
    Announcement,
    Malformed,
    ProfileWanted,
    SpoolAnswer,
    SpoolRequest,
)
from evo_kernel.fitness.spool.task_files import packed
from evo_kernel.fitness.stages import ELSEWHERE, Stages
from evo_kernel.fitness.timing.ceilings import Ceilings, KnownCeilings
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind, Environment, Evaluation, Knobs, PlanVerdict, Purpose, Source

FASTEST_S, SLOWEST_S = 0.005, 0.5
"""Between two looks for a verdict: at once after the request, less and less often later."""
LOOK_S = 2.0
"""Between two looks at what became of requests, and at the servers."""
LONELY_S = 60.0
"""Somebody is told when no server was seen at work for so long."""
SIDE_BY_SIDE = 256
FIRST_LOOK_S = 0.5
"""Between two looks for the first server."""


class HeardBaselines:
    """What verdicts tell of baselines, in the place of a local judge's `BaselineTimes`."""

    def __init__(self, ceilings: KnownCeilings) -> None:
        self.ceilings = ceilings
        self.on_baselines: Callable[[str, Mapping[str, float], Mapping[str, str]], None] = lambda *told: None
        self._lock, self._heard = threading.Lock(), set[str]()

    def hear(self, answer: SpoolAnswer) -> None:
        """Pass on what is new of each case, once."""
        for case, times in answer.baselines.items():
            with self._lock:
                new = case not in self._heard
                self._heard.add(case)
            if new:
                self.on_baselines(case, times, answer.faults.get(case, {}))


class SpoolJudge:
    """Implements the Judge protocol of evo_kernel.types with judges elsewhere. Thread-safe.

    What was asked before is found by its content: after a resume nothing is asked twice, and what was answered and
    counted costs nothing again. What is measured anew by nature (`remeasure`, confirmations) is asked anew.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        task: Task,
        environment: Environment,
        settings: JudgeSettings,
        ceilings: Mapping[str, float] | None = None,
        say: Callable[[str], None] = lambda line: None,
        lease_s: float = LEASE_S,
        look_s: float = LOOK_S,
    ) -> None:
        """`ceilings`: as a server announced them; empty where they are modeled. `say` hears what keeps verdicts from
        coming. Raises UserError."""
        folder.prepare()
        self.folder, self.environment = folder, environment
        self._task, self._text = task, packed(task)
        own = JudgeSettings()
        self._settings = replace(settings, unconfined=own.unconfined, assembler=own.assembler)
        table = Ceilings.of_target(target_for(MODELED_ARCH))
        self.baselines = HeardBaselines(KnownCeilings(lambda: ceilings or {}, table))
        self.stages = Stages(elsewhere=True)
        self.on_trouble = say
        self._beats, self._look_s = Heartbeats(folder, lease_s), look_s
        self._lock, self._changed = threading.Lock(), threading.Condition()
        self._waiting: dict[int, str] = {}  # thread → stem
        self._since = time.monotonic()  # nothing began to wait, or ended to
        self._looked_at, self._lonely_since = -1e9, time.monotonic()
        self._there: set[str] = set()  # requests that wait or are claimed, when last looked
        self._missing: set[str] = set()  # that were nowhere then
        self._closed = self.gave_up = False
        self._told: set[str] = set()  # troubles
        self._together = threading.local()  # stems that this thread has taken in a block
        self._lonely = (
            f"no judge is seen at work: start `evo-kernel judge {folder.path}` where times are {environment.label}, or "
            f"carry {folder.path}"
        )

    @property
    def ceilings(self) -> Ceilings:
        return self.baselines.ceilings.now

    def know(self, verdicts: Iterable[PlanVerdict]) -> None:
        """Servers have caches of their own."""

    def close(self) -> None:
        """Wait for nothing any more. Idempotent; requests stay."""
        self._closed = True
        self._wake()

    def give_up(self) -> None:
        """Whoever waits for a verdict that is not there is cut short, from now on."""
        self.gave_up = True
        self._wake()

    def __enter__(self) -> SpoolJudge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def quiet_s(self) -> float:
        """Seconds for which the same threads have waited for verdicts; 0 where none waits."""
        with self._lock:
            return time.monotonic() - self._since if self._waiting else 0.0

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        """See types.Judge. A server tunes without the deadline. Raises InfraError where every server at work refuses
        the request, CutShort."""
        asked = {"what": str(purpose), "remeasure": remeasure, "against": against, "effort": effort}
        answer, new = self._answered(source, asked, remeasure or purpose is Purpose.CONFIRM, deadline)
        assert answer.evaluation is not None, "checked as it was read"
        return answer.evaluation if new else replace(answer.evaluation, charged={}, gpu_s=0.0, verdicts=())

    def evaluate_all(self, sources: Sequence[Source], purpose: Purpose) -> list[Evaluation]:
        """Evaluations in the order of the sources; the servers say how many are made side by side."""
        with ThreadPoolExecutor(min(SIDE_BY_SIDE, max(1, len(sources)))) as threads:
            try:
                return list(threads.map(lambda source: self.evaluate(source, purpose), sources))
            except KeyboardInterrupt:
                self.close()  # else the threads, which are joined here, wait on
                raise

    def profile(
        self,
        source: Source,
        knobs: Knobs,
        kinds: Sequence[CaseKind],
        counters: bool | None = None,
        case_name: str | None = None,
        deadline: Deadline | None = None,
    ) -> Mapping[str, CaseProfile]:
        """See PlanJudge.profile. Raises CutShort."""
        wanted = ProfileWanted(knobs=knobs, kinds=tuple(kinds), counters=counters, case=case_name)
        answer, _ = self._answered(source, {"what": PROFILE, "profile": wanted}, again=False, deadline=deadline)
        if answer.profiles is None:
            raise UserError(answer.fault)
        return answer.profiles

    def compiled(self, source: Source, case_name: str | None = None) -> CompileReport:
        """See PlanJudge.compiled; made here, for sm_90 where the servers' GPU is not in the table."""
        device = self.environment.device
        arch = next((n for n, target in TARGETS.items() if device in (target.name, f"sm_{n}")), MODELED_ARCH)
        assembler = of_version(self.environment.assembler)
        return compile_report(self._task, source, case_name, arch, assembler, self._settings.deadline_s)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Verdicts of this thread that are of use only with all others of the block: where it is cut short, they are
        there for the next try, as if nobody had taken them."""
        self._together.stems = []
        try:
            yield
        except (CutShort, InfraError):
            for stem in self._together.stems:
                self.folder.remove(TAKEN, stem)
            raise
        finally:
            del self._together.stems

    # ---- one request ------------------------------------------------------------------------------------------------

    def _answered(
        self, source: Source, asked: Mapping[str, Any], again: bool, deadline: Deadline | None
    ) -> tuple[SpoolAnswer, bool]:
        """The answer, and whether it is counted now for the first time."""
        request = SpoolRequest(
            environment=self.environment.key, task=self._text, source=source, settings=self._settings, **asked
        )
        stem = request.stem
        while again and self.folder.has(TAKEN, stem):
            request = request.model_copy(update={"turn": request.turn + 1})
            stem = request.stem
        pause, me = FASTEST_S, threading.get_ident()
        with self.stages.at(ELSEWHERE):
            self._mark(me, stem)
            try:
                if (found := self._taken(request, stem)) is not None:
                    return found
                if stem not in self.folder.claims():
                    self._post(request, stem)
                while (found := self._taken(request, stem)) is None:
                    if self._closed:
                        raise InfraError("the search has ended")
                    if self.gave_up:
                        raise CutShort("its verdict is not there yet")
                    if deadline is not None:
                        deadline.check()
                    self._look_after(request, stem)
                    with self._changed:
                        self._changed.wait(pause)
                    pause = min(1.2 * pause, SLOWEST_S)
                return found
            finally:
                self._mark(me, None)

    def _taken(self, request: SpoolRequest, stem: str) -> tuple[SpoolAnswer, bool] | None:
        name = f"{stem}.json"
        try:
            data = self.folder.read(VERDICTS, name)
            if data is None:
                return None
            answer = SpoolAnswer.from_bytes(data)
            answer.refuse_for(request)
        except Malformed as error:
            self.folder.set_aside(VERDICTS, name, str(error))
            self._tell(f"a verdict was set aside, and is asked for again: {error}")
            self._post(request, stem)
            return None
        self.baselines.hear(answer)
        new = self.folder.mark_taken(stem)
        if new:
            getattr(self._together, "stems", []).append(stem)
        self.folder.remove(REQUESTS, name)  # it may have come back, by rsync or from a server that was slow
        return answer, new

    def _post(self, request: SpoolRequest, stem: str) -> None:
        if not self.folder.has(REQUESTS, f"{stem}.json"):
            data = request.as_bytes()
            if len(data) > MOST_BYTES:  # no server reads it
                raise UserError(f"the kernel and its task are {len(data)} bytes of a spool; the most is {MOST_BYTES}")
            self.folder.write(REQUESTS, f"{stem}.json", data)

    def _mark(self, thread: int, stem: str | None) -> None:
        with self._lock:
            self._since = time.monotonic()
            if stem is None:
                self._waiting.pop(thread, None)
            else:
                self._waiting[thread] = stem

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ---- what became of them ----------------------------------------------------------------------------------------

    def _look_after(self, request: SpoolRequest, stem: str) -> None:
        """Write a request anew that was lost; raises InfraError where nobody at work will judge it."""
        with self._lock:
            if time.monotonic() - self._looked_at >= self._look_s:
                self._look()
            lost = stem in self._missing
            self._missing.discard(stem)
            lonely = time.monotonic() - self._lonely_since >= LONELY_S
        if lonely:
            self._tell(self._lonely)
        # In the order in which it moves on, so that it is not missed on its way.
        name = f"{stem}.json"
        there = self.folder.has(REQUESTS, name) or stem in self.folder.claims() if lost else True
        if not there and not self.folder.has(VERDICTS, name):
            if why := self.folder.why_aside(stem):
                self._tell(f"a judge elsewhere set a request aside, which is written anew: {why}")
            self._post(request, stem)
        at_work = [one for one in self._beats.at_work() if one.environment.key == self.environment.key]
        refusals = {one.refuses[stem] for one in at_work if stem in one.refuses}
        for reason in refusals:
            self._tell(f"a judge elsewhere does not take a request: {reason}")
        if at_work and all(stem in one.refuses for one in at_work):
            raise InfraError(f"no judge of {self.folder.path} takes it: {'; '.join(sorted(refusals))}")

    def _look(self) -> None:
        """Under the lock. A request counts as lost when it was nowhere twice."""
        before, self._looked_at = self._there, time.monotonic()
        self._there = {*self.folder.waiting(), *self.folder.claims()}
        self._missing = {stem for stem in self._waiting.values() if stem not in self._there and stem not in before}
        self._beats.look()
        if any(one.environment.key == self.environment.key for one in self._beats.at_work()):
            self._lonely_since = time.monotonic()
            self._told.discard(self._lonely)

    def _tell(self, line: str) -> None:
        """Each trouble once."""
        with self._lock:
            new = line not in self._told
            self._told.add(line)
        if new:
            self.on_trouble(line)


def open_spool_judge(
    path: Path,
    task: Task,
    settings: JudgeSettings,
    known: Environment | None = None,
    choice: str = "",
    wait: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> SpoolJudge:
    """A judge in one environment: `choice` (its key, or a part of its device's name), else `known` (a population's),
    else the one that is announced. Waits for a server where none is known and `wait` says so. Raises UserError."""
    folder, said = SpoolFolder(path), False
    folder.prepare()
    while True:
        offered = {one.environment.key: one for one in folder.announcements().values()}
        wanted = {key: one for key, one in offered.items() if of_environment(one.environment, known, choice)}
        if known is not None and not choice:
            if offered and not wanted:
                raise UserError(
                    f"the population's scores are {known.label} ({known.key}), and the judges of {path} are "
                    f"{_listed(offered)}. Start a judge there in the population's environment, or a new population "
                    f"with --start-from."
                )
            ceilings = wanted[known.key].ceilings if wanted else None
            return SpoolJudge(folder, task, known, settings, ceilings, say)
        if len(wanted) > 1:
            raise UserError(
                f"the judges of {path} differ: {_listed(wanted)}. Times compare only within one environment: choose "
                f"it with --set judge.environment=KEY."
            )
        if wanted:
            (one,) = wanted.values()
            return SpoolJudge(folder, task, one.environment, settings, one.ceilings, say)
        if offered:
            raise UserError(f"no judge of {path} is {choice!r}: there are {_listed(offered)}")
        if not wait:
            raise UserError(
                f"no judge has announced itself in {path}: run `evo-kernel judge {path} --until-empty` where judges "
                f"are, and carry {path / SERVERS} here"
            )
        if not said:
            say(f"waiting for a judge: start `evo-kernel judge {path}` on the machine that is to judge")
            said = True
        time.sleep(FIRST_LOOK_S)


def of_environment(one: Environment, known: Environment | None, choice: str) -> bool:
    """Whether a search that is bound to a choice, or else to what is known, can use judges of this environment."""
    if known is not None and not choice:
        return one.key == known.key
    return choice in (one.key, "") or choice in one.device


def _listed(offered: Mapping[str, Announcement]) -> str:
    return "; ".join(f"{one.environment.label} ({key})" for key, one in sorted(offered.items()))
