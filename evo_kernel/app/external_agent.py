"""An external agent as an operator of a run: what `agent` and `operators.use = ["external"]` put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from evo_kernel.app.workbench import open_workbench, rooms_of
from evo_kernel.budget import Spent
from evo_kernel.config import Config
from evo_kernel.errors import ConfigError
from evo_kernel.types import TaskCard
from operators.external.operator import ExternalOperator, ExternalSettings
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from populations.population import LineagePopulation

if TYPE_CHECKING:
    from evo_kernel.fitness.judge import PlanJudge


def external_operator(
    config: Config,
    population: LineagePopulation,
    judge: PlanJudge,
    knowledge: KnowledgeBase | None,
    charge: Callable[[Spent], None],
    elsewhere: Callable[[TaskCard], str],
) -> ExternalOperator:
    """As `[external]` of the configuration has it. `charge`: `Ledger.charge`. Raises UserError."""
    settings = settings_of(config)
    rooms = rooms_of(population, judge, knowledge, charge)
    folder = folder_of(config, population.path)
    return ExternalOperator(
        settings,
        folder,
        lambda place, brief, author, allowed: open_workbench(place, rooms, brief, author, allowed),
        rooms,
        population.diary,
        config.external.name,
        elsewhere,
    )


def settings_of(config: Config) -> ExternalSettings:
    """Raises ConfigError."""
    external = config.external
    if not external.command:
        raise ConfigError(
            "no command is named for external agents: `evo-kernel agent POPULATION --command 'my-agent README.md'`, or "
            "`command = ...` in [external] of the configuration (docs/guides/agents.md)."
        )
    try:
        return ExternalSettings(
            command=external.command,
            minutes=external.minutes,
            allowed=Allowed(evaluations=external.evaluations, submits=external.submits),
            environment=passed(external.pass_env),
            keep=external.keep,
        )
    except ValueError as error:
        raise ConfigError(f"[external]: {error}") from None


def passed(names: Iterable[str]) -> dict[str, str]:
    """Variables of our own environment that an agent is given. Raises ConfigError for one that is not set."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(f"--pass-env {missing[0]}: it is not set here; set it, or leave it out")
    return {name: os.environ[name] for name in names}


def folder_of(config: Config, population: Path) -> Path:
    """Where workspaces and logs lie."""
    return config.external.folder or population.with_name(population.name + ".agents")
