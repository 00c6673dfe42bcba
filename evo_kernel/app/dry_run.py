"""`run --dry-run`: what would be done, and how long the budget lasts; nothing is searched, and no model is asked.

Imports nothing slow: torch and the judge come when the configuration has been printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from evo_kernel.app import operator_factory
from evo_kernel.app.preflight import silence
from evo_kernel.app.prompt_context import knowledge_of, prompts_of
from evo_kernel.config import Config
from evo_kernel.deadline import duration_text
from evo_kernel.types import Brief, Evaluation, Purpose, ScoredCandidate, Source

if TYPE_CHECKING:
    from evo_kernel.tasks.task import Task


def dry_run(config: Config) -> None:
    """Print it, what is slow to find out last. Raises UserError for what would stop the run at once; a key that is
    missing is told, not asked for."""
    weights = operator_factory.weights_of(config)
    click.echo(f"budget      {_limits(config)}")
    click.echo(f"operators   {', '.join(f'{name} at weight {weight:g}' for name, weight in weights.items())}")
    click.echo(f"policy      {config.operators.policy}, at most {config.operators.max_steps} step(s) a proposal")
    operator_factory.check(config, keys=False)
    for line in _model_lines(config):
        click.echo(f"model       {line}")
    from evo_kernel.app.compose import configured_judge, first_kernels  # from here on it takes seconds
    from evo_kernel.app.session import new_run
    from operators.micro.coder import RewriteCoder

    config, task, path = new_run(config)
    click.echo(f"task        {task.name} ({task.path})")
    click.echo(f"population  {path}")
    firsts = first_kernels(task, config)
    with configured_judge(config, task, score_soon=True) as judge:
        click.echo(f"judge       {judge.environment.label}, {judge.environment.confinement}")
        # As a run judges them: not tuned.
        verdicts = [judge.evaluate(source, Purpose.SCORE, remeasure=True) for source in firsts.values()]
    coder = RewriteCoder()
    for (name, source), found in zip(firsts.items(), verdicts, strict=True):
        click.echo(f"{name} {found.status}: {found.reason or 'right on every check case'}")
        if said := coder.why_nothing(source, task.card()):
            click.echo(f"note        {name}: {said}")
    for line in _lasting_lines(config, task, next(iter(firsts.values())), verdicts[0]):
        click.echo(f"lasts       {line}")


def _limits(config: Config) -> str:
    """The budget in the units that people write."""
    limits = config.budget.model_dump(exclude_none=True)
    hours, dollars = limits.pop("hours", None), limits.pop("dollars", None)
    told = [duration_text(3600 * hours)] if hours is not None else []
    told += [f"${dollars:g}"] if dollars is not None else []
    told += [f"{value:,} {name.replace('_', ' ')}" for name, value in limits.items()]
    return ", ".join(told) or "no limit: it ends when you stop it, or when nothing is left to try"


def _model_lines(config: Config) -> Iterator[str]:
    """Each model, and what is missing to ask it."""
    if not config.models:
        return
    from evo_kernel.app.models import lacking_key

    for one in config.models.values():
        missing = lacking_key(one) or silence(one)
        yield f"{one.name}{f' at {one.base_url}' if one.base_url else ''}{f'; not ready: {missing}' if missing else ''}"


def _lasting_lines(config: Config, task: Task, first: Source, found: Evaluation) -> Iterator[str]:
    """How far each limit goes, by what the first kernel took and a prompt about it holds."""
    budget = config.budget
    if budget.hours is not None:
        yield f"{duration_text(3600 * budget.hours)} at most"
    if budget.evaluations is not None and found.wall_s:
        lasting = duration_text(budget.evaluations * found.wall_s / config.width)
        yield f"{budget.evaluations} evaluations: about {lasting} at the first kernel's pace; later ones take less"
    if not config.models or budget.dollars is budget.tokens is None:
        return
    from evo_kernel.app.models import worst_dollars
    from operators.prompts.parts import tokens
    from operators.prompts.writer import looked_up

    parent = ScoredCandidate(1, first, 0, 0, found)
    brief = Brief(1, task.card(), parent, (), (), 0, (config.seed,), found.environment)
    prompts, answer = prompts_of(config, knowledge_of(config)), config.agents.answer_tokens
    parts = (prompts.system(brief.task, brief.environment, "answer", "coder").content,
             *(part.text for part in prompts.situation(brief, first, query=looked_up(brief))))  # fmt: skip
    prompt = sum(map(tokens, parts)) + prompts.budgets.guide
    call = f"a call of about {prompt:,} tokens takes at most {answer:,} more"
    if budget.tokens is not None:
        yield f"{budget.tokens:,} tokens: {budget.tokens // (prompt + answer):,} calls or more ({call})"
    if budget.dollars is not None:
        worst = worst_dollars(config, prompt, answer)
        calls = f"{math.floor(budget.dollars / worst):,} calls or more" if worst else "any number of calls"
        yield f"${budget.dollars:g}: {calls} ({call}: ${worst:.2f})"
