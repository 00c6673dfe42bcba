"""An external agent as an operator of a run: what `agent` and `operators.use = ["external"]` put together."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from evo_kernel.app.workbench import rooms_of
from evo_kernel.budget import Spent
from evo_kernel.config import Config
from evo_kernel.errors import ConfigError
from operators.external import ExternalOperator, ExternalSettings
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
) -> ExternalOperator:
    """As `[external]` of the configuration has it. `charge`: `Ledger.charge`. Raises UserError."""
    from evo_kernel.app.mcp_tools import over_http

    folder = config.external.folder or population.path.with_name(population.path.name + ".agents")
    rooms = rooms_of(population, judge, knowledge, charge)
    return ExternalOperator(settings_of(config), folder, rooms, population.diary, over_http, config.external.name)


def settings_of(config: Config) -> ExternalSettings:
    """Raises ConfigError."""
    external = config.external
    if not (external.command or "").strip():
        raise ConfigError(
            "no command is named for external agents: `evo-kernel agent POPULATION --command 'my-agent README.md'`, or "
            "`command = ...` in [external] of the configuration (docs/guides/agents.md)."
        )
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError("external agents need the Model Context Protocol's SDK: pip install 'evo-kernel[mcp]'")
    missing = [name for name in external.pass_env if name not in os.environ]
    if missing:
        raise ConfigError(f"--pass-env {missing[0]}: it is not set here; set it, or leave it out")
    return ExternalSettings(
        command=external.command or "",
        minutes=external.minutes,
        allowed=Allowed(evaluations=external.evaluations, submits=external.submits),
        environment={name: os.environ[name] for name in external.pass_env},
        keep=external.keep,
    )
