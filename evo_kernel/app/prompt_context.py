"""Collects what prompts of a run contain: memory, knowledge, and the profile table of a parent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from evo_kernel.config import Config
from evo_kernel.deadline import Deadline
from evo_kernel.errors import CutShort, InfraError, UserError
from evo_kernel.lru_cache import Recent
from evo_kernel.types import CaseKind, Measurement, ScoredCandidate
from operators.macro.policies import StrategyMemory

if TYPE_CHECKING:
    from evo_kernel.app.judges import AnyJudge
    from operators.knowledge.base import KnowledgeBase
    from operators.prompts.writer import Profile, Prompts


def knowledge_of(config: Config) -> KnowledgeBase | None:
    """What can be looked up. Raises UserError for a folder that is not there."""
    from operators.knowledge.base import KnowledgeBase

    return KnowledgeBase(config.knowledge.folders) if config.agents.knowledge else None


def prompts_of(
    config: Config,
    knowledge: KnowledgeBase | None,
    memory: StrategyMemory | None = None,
    profile: Profile | None = None,
) -> Prompts:
    """What all prompts of a run share. Raises UserError for files that are not there."""
    from operators.prompts.writer import Prompts

    return Prompts(hierarchy=config.agents.hierarchy, knowledge=knowledge, memory=memory, profile=profile)


KEPT = 512  # tables, the latest
SHARE = 0.02  # of the time since the run began that making tables may take where a GPU is used for it
FIRST_S = 30.0  # that it may take from the start
ELSEWHERE_S = 60.0  # that a prompt waits for a table from elsewhere


class Profiles:
    """`operators.prompts.writer.Profile` over a judge: the slowest case of a candidate, launch by launch. Thread-safe.

    A table is found by its plan, so a parent that is chosen again, or by several attempts at once, costs nothing more.
    Modeled tables are always made: they are derived from the compiled code, and the same again in a replay. Measured
    ones use the GPU, without hardware counters, one at a time and for at most SHARE of the run; beyond that there is
    none, and a prompt goes without.
    """

    def __init__(self, judge: AnyJudge, clock: Callable[[], float] = time.monotonic) -> None:
        self._judge, self._clock = judge, clock
        self._measured = judge.environment.kind == "measured"
        self._lock, self._busy = threading.Lock(), threading.Lock()
        self._tables: Recent[str, str] = Recent(KEPT)
        self._began, self._spent_s = clock(), 0.0

    def __call__(self, relative: ScoredCandidate) -> str:
        """The table, or an empty text: not timed, not affordable now, or the machine failed."""
        slowest = _slowest(relative)
        if slowest is None:
            return ""
        if (known := self._known(slowest.plan)) is not None:
            return known
        with self._busy:
            if (known := self._known(slowest.plan)) is not None:  # made while we waited
                return known
            return self._made(relative, slowest)

    def _made(self, relative: ScoredCandidate, slowest: Measurement) -> str:
        from evo_kernel.fitness.spool.client import SpoolJudge  # only here: it imports torch

        began = self._clock()
        if self._measured and self._spent_s > FIRST_S + SHARE * (began - self._began):
            return ""
        try:
            asked = relative.source, (), [CaseKind.SEARCH], False, slowest.case
            if isinstance(self._judge, SpoolJudge):  # perhaps nobody is there
                found = self._judge.profile(*asked, deadline=Deadline(time.monotonic() + ELSEWHERE_S))
            else:
                found = self._judge.profile(*asked)
            text = found[slowest.case].as_text(self._judge.environment.label)
        except UserError as error:  # a launch that cannot be timed alone: the next time, too
            text = f"not known: {error}"
        except (InfraError, CutShort):  # the judge is closing, or says so itself when it is asked for a verdict
            return ""
        finally:
            self._spent_s += self._clock() - began
        with self._lock:
            return self._tables.put(slowest.plan, text)

    def _known(self, plan: str) -> str | None:
        with self._lock:
            return self._tables.get(plan)


def _slowest(relative: ScoredCandidate) -> Measurement | None:
    """Of its cases; None for a candidate that was not timed."""
    measured = relative.evaluation.measurements if relative.evaluation is not None else ()
    return max(measured, key=lambda m: m.median_us, default=None)
