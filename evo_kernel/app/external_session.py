"""Attempts from outside the loop: a population opened for somebody who asks and tells in their own time.

What `ask`, `tell` and `mcp` share. One process at a time writes a population, so whoever comes while another writes
waits, for as long as they said.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo_kernel.errors import InfraError, PopulationError, PopulationLocked
from evo_kernel.types import Brief, Evaluation, Proposal, Purpose, Recorded, Source, Status, Strategy
from operators.macro import catalogue
from operators.micro.coder import RewriteCoder
from populations.population import LineagePopulation, open_population
from populations.reading import PopulationReader
from populations.settings import PopulationSettings

if TYPE_CHECKING:
    from evo_kernel.app.compose import Prepared
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


def waiting(wait_s: float, open_it: Callable[[], LineagePopulation]) -> LineagePopulation:
    """What `open_it` returns, once nobody else writes. Raises PopulationLocked after `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        try:
            return open_it()
        except PopulationLocked:
            if time.monotonic() >= until:
                raise
            time.sleep(LOOK_AGAIN_S)


def open_as_last(path: Path, wait_s: float) -> LineagePopulation:
    """The population under its last session's settings and environment: no judge. Raises PopulationError."""
    with PopulationReader(path) as reader:
        session, card, identity = reader.sessions()[-1], reader.task, reader.task_identity
    return waiting(
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


def last_config(path: Path, changes: dict[str, Any]) -> Config:
    """What the population was last run with, some keys changed. Raises PopulationError."""
    from evo_kernel.app import compose

    with PopulationReader(path) as reader:
        stored = dict(reader.sessions()[-1].config)
    config = compose.resumed_config(path, stored)
    given = {key: value for key, value in changes.items() if value is not None}
    return compose.config_with(config, given) if given else config


@contextlib.contextmanager
def judged(path: Path, config: Config, wait_s: float, tell: Callable[[str], None]) -> Iterator[Prepared]:
    """The population with its judge, as a run has them. Raises UserError, InfraError."""
    from evo_kernel.app import compose
    from evo_kernel.app.telemetry import announced, kept_baselines
    from populations.lock import owner

    until = time.monotonic() + wait_s
    while (writer := owner(path)) is not None:  # before a judge is started: its processes are not for waiting
        if time.monotonic() >= until:
            raise PopulationLocked(str(path), *writer)
        time.sleep(LOOK_AGAIN_S)
    with compose.prepared(config, compose.task_of(config), path, create=False) as parts:
        parts.judge.yardsticks.on_baselines = kept_baselines(parts.population, tell)
        with announced(parts.population, parts.judge.stages):
            yield parts


def judge_and_tell(parts: Prepared, recorded: Recorded) -> TellResult:
    """The verdict on a durable candidate, stored. An InfraError is told as such: the candidate stays pending."""
    source, population = recorded.proposal.source, parts.population
    try:
        evaluation = parts.judge.evaluate(source, Purpose.SCORE)
    except InfraError as error:
        reason = str(error) or "the machine failed and gave no reason"
        evaluation = Evaluation(
            source.sha256, population.task_identity, Purpose.SCORE, parts.judge.environment, Status.INFRA_ERROR, reason
        )
    before = population.best()
    witnessed = is_witnessed(recorded, evaluation)
    population.tell(recorded, evaluation, witnessed)
    after = population.best()
    is_best = after is not None and after.candidate == recorded.candidate != (before.candidate if before else 0)
    return TellResult(recorded, evaluation, witnessed, is_best)


def is_witnessed(recorded: Recorded, evaluation: Evaluation) -> bool:
    """Whether the compiled kernel shows the sign of the strategy that was claimed."""
    parent = recorded.brief.parent.evaluation
    return evaluation.passed and catalogue.witnessed(recorded.proposal.strategy, parent, evaluation)


def offered(brief: Brief) -> tuple[Strategy, ...]:
    """Strategies that the offline rewriter finds room for in the parent: hints, not orders."""
    return RewriteCoder().offer(brief.parent.source, brief.task)


def tickets_brief(population: LineagePopulation, attempt: int) -> Brief:
    """The ticket of an attempt that may still be told. Raises PopulationError when it may not."""
    brief, handed = population.ticket(attempt)
    handed.check(time.time())
    return brief


def has_verdict(evaluation: Evaluation | None) -> bool:
    """Whether there is nothing left to judge."""
    return evaluation is not None and evaluation.status is not Status.INFRA_ERROR


def told_before(population: LineagePopulation, candidate: int) -> TellResult:
    """The verdict that is stored of a candidate."""
    recorded, evaluation, best = (
        population.recorded(candidate),
        population.relative(candidate).evaluation,
        population.best(),
    )
    if evaluation is None:
        raise PopulationError(
            f"candidate {candidate} was judged in another environment: `evo-kernel show {population.path} {candidate}`"
        )
    is_best = best is not None and best.candidate == candidate
    return TellResult(recorded, evaluation, is_witnessed(recorded, evaluation), is_best)


def proposed(source: Source, operator: str, strategy: str | None, brief: Brief) -> Proposal:
    """What somebody outside hands in."""
    from evo_kernel.app.brief_data import named_strategy

    named = named_strategy(strategy, offered(brief)) if strategy else None
    return Proposal(source, operator, named)
