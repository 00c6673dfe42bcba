"""A session with somebody outside the loop: attempts are asked for, what is told is recorded and judged as a run would
do it, and a candidate is confirmed.

`ask`, `tell` and `give_up` are whole commands; the MCP server stands on one ExternalSession for as long as it serves.
One process at a time writes a population, so whoever comes while another writes waits, for as long as they said.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo_kernel.app.verdicts import evaluation_data
from evo_kernel.config import with_overrides
from evo_kernel.engine import EngineSettings
from evo_kernel.engine.session import RetryingJudge
from evo_kernel.errors import CutShort, PopulationError, PopulationLocked, UserError
from evo_kernel.types import (
    Brief,
    Evaluation,
    Proposal,
    Purpose,
    Recorded,
    ScoredCandidate,
    Source,
    Status,
    Strategy,
    TaskCard,
)
from operators.macro import catalogue
from operators.macro.catalogue import CATALOGUE, OTHER
from operators.micro.coder import RewriteCoder
from populations.archive import PopulationSettings
from populations.population import LineagePopulation, open_population
from populations.reading import PopulationReader

if TYPE_CHECKING:
    from evo_kernel.app.compose import Prepared
    from evo_kernel.app.summary import WaitingRequests
    from evo_kernel.config import Config

LOOK_AGAIN_S = 0.2
"""Between two looks at whether the writer has gone."""


@dataclass(frozen=True)
class TellResult:
    """What came of an attempt."""

    recorded: Recorded
    evaluation: Evaluation
    witnessed: bool
    is_best: bool

    @property
    def log_gain(self) -> float | None:
        """log(parent's time ÷ child's); None unless both were timed."""
        parent = self.recorded.brief.parent.evaluation
        if parent is None or not (parent.passed and self.evaluation.passed):
            return None
        return parent.log_us - self.evaluation.log_us

    @property
    def gain_text(self) -> str:
        """In words; empty where one of the two was not timed."""
        if self.log_gain is None:
            return ""
        return f"{math.exp(self.log_gain):.3f}x as fast as its parent" + (", the best so far" if self.is_best else "")

    def as_data(self) -> dict[str, Any]:
        """One JSON object."""
        parent = self.recorded.brief.parent
        return {
            "attempt": self.recorded.brief.attempt,
            "candidate": self.recorded.candidate,
            "parent": parent.candidate,
            "status": str(self.evaluation.status),
            "reason": self.evaluation.reason,
            "score": self.evaluation.score,
            "parent_score": parent.evaluation.score if parent.evaluation is not None else None,
            "log_gain": self.log_gain,
            "witnessed": self.witnessed,
            "is_best": self.is_best,
            "evaluation": evidence_data(self.evaluation),
        }


class ExternalSession:
    """A population with its judge, open for somebody outside. `say` hears of failures of the machine."""

    def __init__(
        self, parts: Prepared, say: Callable[[str], None], wait_s: float = EngineSettings.infra_wait_s
    ) -> None:
        """`wait_s`: before the judge is asked again."""
        self.parts, self.population = parts, parts.population
        settings, never = EngineSettings(infra_wait_s=wait_s), threading.Event()
        self._judge = RetryingJudge(parts.judge, self.population.task_identity, settings, never, say)

    def tell(self, attempt: int, source: Source, operator: str, strategy: str | None) -> TellResult:
        """Record a kernel, judge it, store its verdict; each once, however often this is called. Raises
        PopulationError where nothing can be told for the attempt, or another source was."""
        brief, ticket = self.population.ticket(attempt)
        if ticket.candidate is None:
            ticket.check(time.time())
            named = named_strategy(strategy, offered(brief)) if strategy else None
            return self.submit(brief, Proposal(source, operator, named))
        recorded = self.population.recorded(ticket.candidate)
        if recorded.proposal.source.sha256 != source.sha256:
            raise _told_already(self.population.path, attempt, ticket.candidate)
        known = self.population.relative(ticket.candidate).evaluation
        if known is None or known.status is Status.INFRA_ERROR:
            return self.judge(recorded)
        return self._result(recorded, known)

    def submit(self, brief: Brief, proposal: Proposal) -> TellResult:
        """A proposal made durable, then judged."""
        return self.judge(self.population.record(brief, proposal))

    def judge(self, recorded: Recorded) -> TellResult:
        """The verdict on a durable candidate, stored. It stays pending where the machine fails beyond retries."""
        evaluation = self._judge.judge(recorded)
        self.population.tell(recorded, evaluation, _witnessed(recorded, evaluation))
        return self._result(recorded, evaluation)

    def confirm(self, candidate: int) -> Evaluation:
        """Judge a candidate on the hidden cases, and store the verdict. It meets the champion where it would take its
        place. Raises UserError where it has not passed here."""
        scored, champion = self.population.relative(candidate), self.population.champion()
        if scored.evaluation is None or not scored.evaluation.passed:
            label = self.parts.judge.environment.label
            raise UserError(
                f"candidate {candidate} has not passed where scores are {label}: `evo-kernel resume "
                f"{self.population.path}` judges the best candidates here first"
            )
        rival = champion if champion is not None and champion.candidate != candidate else None
        leads = rival is None or rival.evaluation is None or scored.evaluation.standing < rival.evaluation.standing
        recorded = self.population.recorded(candidate)
        against = rival.source if rival is not None and leads else None
        evaluation = self._judge.judge(recorded, Purpose.CONFIRM, scored, against=against)
        self.population.tell(recorded, evaluation, _witnessed(recorded, evaluation))
        best, champion = self.population.best(), self.population.champion()
        if best is not None and champion is not None and best.candidate == champion.candidate:
            self.population.note_confirmation(due=False)
        return evaluation

    def _result(self, recorded: Recorded, evaluation: Evaluation) -> TellResult:
        best = self.population.best()
        is_best = best is not None and best.candidate == recorded.candidate
        return TellResult(recorded, evaluation, _witnessed(recorded, evaluation), is_best)


@contextlib.contextmanager
def judged(
    path: Path, config: Config, wait_s: float, say: Callable[[str], None], *, until_waiting: bool = False
) -> Iterator[ExternalSession]:
    """A session with the judge that a run would have. `until_waiting`: raises CutShort in the block once that waits
    for a verdict of judges elsewhere. Raises UserError, InfraError."""
    from evo_kernel.app import compose
    from evo_kernel.app.compose import announced, giving_up, kept_baselines
    from evo_kernel.fitness.spool.client import SpoolJudge
    from populations.connect import owner

    task = compose.task_of(config)
    with contextlib.ExitStack() as opened:

        def begin() -> Prepared:
            if (writer := owner(path)) is not None:  # before a judge is started: its processes are not for waiting
                raise PopulationLocked(str(path), *writer)
            prepared = compose.prepared(config, task, path, create=False, wait=not until_waiting)
            return opened.enter_context(prepared)  # or another was first

        parts = _waiting(wait_s, begin)
        parts.judge.baselines.on_baselines = kept_baselines(parts.population, say)
        if until_waiting and isinstance(parts.judge, SpoolJudge):
            opened.enter_context(giving_up(parts.judge))
        with announced(parts.population, parts.judge.stages):
            yield ExternalSession(parts, say)


def last_config(path: Path, device: str | None) -> Config:
    """What the population was last run with, perhaps on another device. Raises PopulationError."""
    from evo_kernel.app import compose

    with PopulationReader(path) as reader:
        stored = dict(reader.sessions()[-1].config)
    config = compose.resumed_config(path, stored)
    return with_overrides(config, [f"device={device}"] if device is not None else [])


# ---- commands -------------------------------------------------------------------------------------------------------


def ask(
    path: Path, holder: str, expires_at: float | None, attempt: int | None, parent: int | None, wait_s: float
) -> tuple[Brief, float | None]:
    """A new ticket, or that of an attempt again, and when it ends. No judge is started.

    `parent`: the candidate that a new one starts from, if not the population's choice. Raises PopulationError where
    there is none, or where nothing can be told for an attempt any more.
    """
    with _unjudged(path, wait_s) as population:
        if attempt is None:
            return population.ask(holder, expires_at, parent), expires_at
        brief, ticket = population.ticket(attempt)
        ticket.check(time.time())
        return brief, ticket.expires_at


def tell(
    path: Path, attempt: int, source: Source, operator: str, strategy: str | None, device: str | None, wait_s: float,
    say: Callable[[str], None], *, until_waiting: bool = False,
) -> TellResult | WaitingRequests:  # fmt: skip
    """What came of a kernel that was written for a ticket, or what must be carried first. `until_waiting`: see
    `judged`."""
    with PopulationReader(path) as reader:  # a mistake starts no judge
        reader.ticket(attempt).check(time.time())
    config = last_config(path, device)
    from evo_kernel.app.summary import check_until_waiting, waiting_in  # here: it imports torch

    if until_waiting:
        check_until_waiting(config)
    with judged(path, config, wait_s, say, until_waiting=until_waiting) as session:
        try:
            return session.tell(attempt, source, operator, strategy)
        except CutShort:
            waiting = waiting_in(session.parts.judge)
            if waiting is None:
                raise
            return waiting


def give_up(path: Path, attempt: int, operator: str, reason: str, wait_s: float) -> None:
    """End a ticket with nothing."""
    with _unjudged(path, wait_s) as population:
        brief, ticket = population.ticket(attempt)
        ticket.check(time.time())
        if ticket.candidate is not None:
            raise _told_already(path, attempt, ticket.candidate)
        population.fail(brief, operator, reason)


def offered(brief: Brief) -> tuple[Strategy, ...]:
    """Strategies that the offline rewriter finds room for in the parent: hints, not orders."""
    return RewriteCoder().offer(brief.parent.source, brief.task)


def _unjudged(path: Path, wait_s: float) -> LineagePopulation:
    """The population under its last session's settings and environment: no judge. Raises PopulationError."""
    with PopulationReader(path) as reader:
        session, card, identity = reader.sessions()[-1], reader.task, reader.task_identity
    return _waiting(
        wait_s,
        lambda: open_population(
            path,
            task=card,
            task_identity=identity,
            environment=session.environment,
            seed=session.seed,
            settings=PopulationSettings.from_data(dict(session.settings)),
            run=session.config,
            create=False,
        ),
    )


def _waiting(wait_s: float, attempt: Callable[[], Any]) -> Any:
    """What `attempt` returns, once nobody else writes. Raises PopulationLocked after `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        try:
            return attempt()
        except PopulationLocked:
            if time.monotonic() >= until:
                raise
            time.sleep(LOOK_AGAIN_S)


def _witnessed(recorded: Recorded, evaluation: Evaluation) -> bool:
    """Whether the compiled kernel shows the sign of the strategy that was claimed."""
    parent = recorded.brief.parent.evaluation
    return evaluation.passed and catalogue.witnessed(recorded.proposal.strategy, parent, evaluation)


def _told_already(path: Path, attempt: int, candidate: int) -> PopulationError:
    return PopulationError(
        f"attempt {attempt} was told already, another source: candidate {candidate}. Look at it with "
        f"`evo-kernel show {path} {candidate}`, or ask for another attempt."
    )


def brief_data(brief: Brief, offered: Sequence[Strategy]) -> dict[str, Any]:
    """A ticket as one JSON object."""
    return {
        "attempt": brief.attempt,
        "environment": brief.environment.label,
        "task": task_data(brief.task),
        "parent": relative_data(brief.parent),
        "inspirations": [relative_data(one) for one in brief.inspirations],
        "tried": [asdict(one) | {"strategy": one.strategy.key} for one in brief.tried],
        "strategies": [strategy_data(one) for one in offered],
    }


def task_data(task: TaskCard) -> dict[str, Any]:
    """What the kernel must compute; hidden cases are not in a card."""
    cases = [
        {"name": case.name, "kind": str(case.kind), "sizes": dict(case.sizes),
         "inputs": [dict(zip(("dtype", "shape", "strides"), one, strict=True)) for one in case.inputs]}
        for case in task.cases
    ]  # fmt: skip
    return asdict(task) | {"cases": cases}


def relative_data(relative: ScoredCandidate) -> dict[str, Any]:
    """A candidate: source, the path of strategies that led to it, and its evidence."""
    return {
        "candidate": relative.candidate,
        "generation": relative.generation,
        "strategies": [strategy.key for strategy in relative.strategies],
        "evaluation": evidence_data(relative.evaluation) if relative.evaluation is not None else None,
        "language": relative.source.language,
        "source": relative.source.text,
    }


def evidence_data(evaluation: Evaluation) -> dict[str, Any]:
    """A verdict as `verify --json` prints it, with what each case's kernels are made of."""
    data = evaluation_data(evaluation)
    for case, measurement in zip(data["cases"], evaluation.measurements, strict=True):
        case["features"] = asdict(measurement.features) if measurement.features is not None else None
    return data


def strategy_data(strategy: Strategy) -> dict[str, Any]:
    spec = CATALOGUE.get(strategy.name)
    told = {"does": spec.summary if spec else "", "witness": spec.sign if spec else ""}
    return asdict(strategy) | {"key": strategy.key, "parameters": dict(strategy.parameters)} | told


def named_strategy(text: str, offered: Sequence[Strategy]) -> Strategy:
    """What somebody says they did: an offered key, a name of the catalogue, or words of their own (never witnessed)."""
    for strategy in offered:
        if text in (strategy.key, strategy.name):
            return strategy
    spec = CATALOGUE.get(text)
    return Strategy(text, spec.family if spec else OTHER)
