"""`run --dry-run`: what would be done, the first prompts and what an hour would cost; nothing is searched or asked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from evo_kernel.app import operator_factory, prompt_context
from evo_kernel.app.compose import judge_settings
from evo_kernel.app.model_breaker import ModelBreaker
from evo_kernel.app.operator_factory import WITH_MODEL, weights_of
from evo_kernel.budget import Budget, Ledger
from evo_kernel.config import Config
from evo_kernel.errors import OperatorFailed
from evo_kernel.fitness.judge import open_judge
from evo_kernel.fitness.sandbox.scratch import Scratch
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.task import Task
from evo_kernel.types import Brief, Evaluation, Operator, Purpose, ScoredCandidate
from evo_kernel.types.promotion import GateSettings

CALL_S = 30.0  # what a call is taken to last
ANSWER_TOKENS = {"policy": 300, "coder": 2000}  # what an answer is taken to hold; a choice is short, code is not
CALLS = {"avo": 30}  # an attempt of an agent; else an edit and, half of the time, more


def dry_run(config: Config, task: Task, path: Path) -> None:
    """Print it. Raises UserError for what would stop the run at once: a key that is missing, a price not known."""
    first = first_kernel(task, config.first)
    click.echo(f"task        {task.name} ({task.path})")
    click.echo(f"population  {path}{' (exists: this would be a resume)' if path.exists() else ''}")
    click.echo(f"budget      {_listed(config.budget.model_dump(exclude_none=True)) or 'no limit'}")
    weights = weights_of(config)
    click.echo(f"operators   {', '.join(f'{name} at weight {weight:g}' for name, weight in weights.items())}")
    click.echo(f"policy      {config.operators.policy}, at most {config.operators.max_steps} step(s) a proposal")
    for one in config.models.values():
        click.echo(f"model       {one.name}{f' at {one.base_url}' if one.base_url else ''}")
    with open_judge(task, device=config.device, settings=judge_settings(config), gpus=config.gpus) as judge:
        evaluation = judge.evaluate(first, Purpose.PROBE)
        click.echo(f"judge       {judge.environment.label}, {judge.environment.confinement}")
    click.echo(f"first kernel {evaluation.status}: {evaluation.reason or 'right on every check case'}")
    if config.models:
        parent = ScoredCandidate(1, first, 0, 0, evaluation)
        brief = Brief(1, task.card(), parent, (), (), 0, (config.seed, 1, 1), evaluation.environment)
        _models(config, brief, evaluation)


def _models(config: Config, brief: Brief, evaluation: Evaluation) -> None:
    from evo_kernel.app import models
    from operators.llm.cost_reservation import NoLimit

    with contextlib.ExitStack() as stack:
        stack.enter_context(models.opened(config, NoLimit(), threading.Event()))  # finds what is missing
        prices = {one.name: models.known_price(one) for one in config.models.values()}
        prompts = first_prompts(config, brief, evaluation)
    for name, asked in prompts.items():
        for number, messages in enumerate(asked, start=1):
            click.echo(f"\n=== prompt {number} of {name}: about {_tokens(messages)} tokens")
            for message in messages:
                kept = " (the same in every call: cached where the provider does)" if message.stable else ""
                click.echo(f"--- {message.role}{kept}\n{message.content}")
    click.echo("")
    for line in cost_lines(config, prompts, prices):
        click.echo(line)


def first_prompts(config: Config, brief: Brief, evaluation: Evaluation) -> dict[str, list[Sequence[Any]]]:
    """By operator: the messages of the first questions that it would ask about the first kernel. Asks nobody."""
    found: dict[str, list[Sequence[Any]]] = {}
    with Scratch("dry") as folder:
        peek = _Peek()
        outfit = _outfit(config, brief, peek, folder)
        for name in weights_of(config):
            if name not in WITH_MODEL:
                continue
            agents = config.agents.model_copy(update={"coder": "llm"})  # a rewriter would answer in place of the model
            alone = config.operators.model_copy(update={"use": (name,)})
            changed = config.model_copy(update={"operators": alone, "agents": agents})
            with contextlib.suppress(OperatorFailed):
                operator_factory.build_operator(changed, outfit).propose(brief, lambda source: evaluation)
            if peek.asked:
                found[name] = peek.asked
            peek.asked = []
    return found


def _outfit(config: Config, brief: Brief, peek: _Peek, folder: Path) -> operator_factory.ModelOperatorDeps:
    from operators.avo.in_memory_store import Forgetful
    from operators.avo.operator import AvoOperator
    from operators.workbench.protocols import WorkbenchDeps

    knowledge = prompt_context.knowledge_of(config)
    prompts = prompt_context.prompts_of(config, brief.task, knowledge)

    gate = ModelBreaker((), Ledger(Budget()), click.echo)

    def agent(model: Any) -> Operator:
        rooms = WorkbenchDeps(cast("Any", _NoBench()), knowledge=knowledge)
        return AvoOperator(
            model, rooms, Forgetful(), folder, operator_factory.agent_settings(config), elsewhere=prompts.elsewhere
        )

    return operator_factory.ModelOperatorDeps(peek, prompts, operator_factory.limits_of(config), gate, False, agent)


def cost_lines(config: Config, prompts: Mapping[str, Sequence[Sequence[Any]]], prices: Mapping[str, Any]) -> list[str]:
    """What an hour would cost at most, by what was shown: a guess, with what it rests on."""
    weights = weights_of(config)
    total = sum(weights.values())
    calls = tokens_in = tokens_out = 0.0
    for name, asked in prompts.items():
        share = weights[name] / total
        for messages in asked:
            policy = len(asked) > 1 and messages is asked[0]
            times = 1 if policy else CALLS.get(name, 2)
            calls += share * times
            tokens_in += share * times * _tokens(messages)
            tokens_out += share * times * ANSWER_TOKENS["policy" if policy else "coder"]
    if not calls:
        return ["cost        no model would be asked about the first kernel"]
    attempts = config.width * 3600 / (calls * CALL_S)
    head = (
        f"an hour     about {attempts * calls:.0f} calls in {attempts:.0f} attempts, "
        f"{attempts * tokens_in / 1e6:.1f} million tokens in and {attempts * tokens_out / 1e6:.2f} million out"
    )
    lines = [head]
    for name, price in prices.items():
        if price is None:
            lines.append(f"cost        {name}: its price is not known")
        else:
            dollars = attempts * price.dollars(int(tokens_in), int(tokens_out))
            lines.append(f"cost        {name}: about ${dollars:.2f} an hour, if it answered all of them")
    lines.append(
        f"            (a guess: {CALL_S:.0f} s a call, {config.width} attempts in flight, nothing cached, "
        f"{ANSWER_TOKENS['coder']} tokens an answer of a coder; the budget holds whatever it turns out to be)"
    )
    return lines


class _Peek:
    """A model that is asked and does not answer."""

    name = "dry run"

    def __init__(self) -> None:
        self.asked: list[Sequence[Any]] = []

    def complete(self, messages: Sequence[Any], **how: Any) -> Any:
        from operators.llm.base import ModelFailed

        del how
        self.asked.append(tuple(messages))
        raise ModelFailed("a dry run asks nobody", "budget")


class _NoBench:
    """A judge that a dry run does not ask."""

    regress = GateSettings().regress

    def __getattr__(self, name: str) -> Any:
        raise OperatorFailed(f"a dry run does not {name}")


def _tokens(messages: Sequence[Any]) -> int:
    from operators.prompts.parts import tokens

    return sum(tokens(message.content) for message in messages)


def _listed(limits: dict[str, Any]) -> str:
    return ", ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in limits.items())
