"""`run --dry-run`: what would be done; nothing is searched, and no model is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evo_kernel.app import operator_factory
from evo_kernel.app.compose import judge_settings
from evo_kernel.config import Config
from evo_kernel.fitness.judge import open_judge
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.task import Task
from evo_kernel.types import Purpose


def dry_run(config: Config, task: Task, path: Path) -> None:
    """Print it. Raises UserError for what would stop the run at once: a key that is missing, a price not known."""
    operator_factory.check(config)
    first = first_kernel(task)
    click.echo(f"task        {task.name} ({task.path})")
    click.echo(f"population  {path}{' (exists: this would be a resume)' if path.exists() else ''}")
    click.echo(f"budget      {_listed(config.budget.model_dump(exclude_none=True)) or 'no limit'}")
    weights = operator_factory.weights_of(config)
    click.echo(f"operators   {', '.join(f'{name} at weight {weight:g}' for name, weight in weights.items())}")
    click.echo(f"policy      {config.operators.policy}, at most {config.operators.max_steps} step(s) a proposal")
    for one in config.models.values():
        click.echo(f"model       {one.name}{f' at {one.base_url}' if one.base_url else ''}")
    with open_judge(task, device=config.device, settings=judge_settings(config), gpus=config.gpus) as judge:
        evaluation = judge.evaluate(first, Purpose.PROBE)
        click.echo(f"judge       {judge.environment.label}, {judge.environment.confinement}")
    click.echo(f"first kernel {evaluation.status}: {evaluation.reason or 'right on every check case'}")


def _listed(limits: dict[str, Any]) -> str:
    return ", ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in limits.items())
