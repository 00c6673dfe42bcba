"""From a configuration to operators: the offline mix, operators with a language model, and installed ones."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evo_kernel import plugins
from evo_kernel.app.profiles import Profiles
from evo_kernel.app.prompt_context import knowledge_of, prompts_of
from evo_kernel.app.run_operator import RunOperator
from evo_kernel.app.usage import WITH_MODEL
from evo_kernel.budget import Ledger
from evo_kernel.config import Config
from evo_kernel.errors import ConfigError
from evo_kernel.fitness.sandbox.scratch import Scratch
from evo_kernel.fitness.stages import Stages
from evo_kernel.types import Operator
from operators.crossover import CrossoverOperator
from operators.macro.bandit import BanditPolicy
from operators.macro.memory import StrategyMemory
from operators.macro.policies import MixedPolicy, Policy, UniformPolicy
from operators.micro.coder import RewriteCoder
from operators.mix import MixOperator
from operators.mtmc import MtmcOperator

if TYPE_CHECKING:
    from evo_kernel.app.model_breaker import ModelBreaker
    from evo_kernel.fitness.judge import PlanJudge
    from operators.avo.settings import AvoSettings
    from operators.llm.base import Model
    from operators.micro.session import SessionLimits
    from operators.prompts.writer import Prompts
    from populations.population import LineagePopulation

EXTERNAL = "external"  # a command-line coding agent, see app/external_agent.py
OWN = ("mtmc", "crossover", *WITH_MODEL, EXTERNAL)
POLICIES: Mapping[str, Callable[[], Policy]] = {"bandit": BanditPolicy, "uniform": UniformPolicy}
TRAINED = "trained"


def weights_of(config: Config) -> dict[str, float]:
    """Operator → weight in the mix, those above zero. Raises ConfigError."""
    settings = config.operators
    if settings.use:
        weights = dict.fromkeys(settings.use, 1.0)
    else:
        weights = {"mtmc": settings.mtmc, "crossover": settings.crossover, **settings.installed}
        if config.models:
            weights |= {"llm-mtmc": settings.llm_mtmc, "llm-crossover": settings.llm_crossover, "avo": settings.avo}
    weights = {name: weight for name, weight in weights.items() if weight > 0}
    lacking = [name for name in weights if name in WITH_MODEL]
    if lacking and not config.models:
        raise ConfigError(
            f"{', '.join(lacking)} need a language model: give --model PROVIDER/NAME, or [models.main] in the "
            "configuration (docs/guides/models.md)."
        )
    if not weights:
        raise ConfigError("every operator has weight 0: give one of them more, or name some in operators.use.")
    return weights


def policy_of(name: str, config: Config) -> Policy:
    """Raises UserError: no such policy, or no checkpoint that can be read."""
    if name != TRAINED:
        return (POLICIES.get(name) or plugins.factory(plugins.POLICIES, name, (*POLICIES, TRAINED)))()
    import torch

    from operators.learning.shipped import POLICY
    from operators.macro.trained import TrainedPolicy

    torch.set_num_threads(1)  # one small decision at a time; the cores are the judge's
    return TrainedPolicy.load(config.operators.checkpoint or POLICY)


def money_ends(config: Config) -> bool:
    """Whether a run is over when its dollars or tokens are: where nothing else would go on, or ever end."""
    if not config.models:
        return True
    offline = any(name not in WITH_MODEL for name in weights_of(config))
    budget = config.budget
    others = (budget.evaluations, budget.hours, budget.gpu_seconds)
    return config.agents.when_money_is_out == "end" or not offline or all(limit is None for limit in others)


@dataclass(frozen=True)
class ModelOperatorDeps:
    """What operators with a model are made of. `patient`: nothing but them is in the mix."""

    model: Model
    prompts: Prompts
    limits: SessionLimits
    gate: ModelBreaker
    patient: bool
    agent: Callable[[Model], Operator]  # makes the agent that is a whole operator

    def refusal(self, name: str) -> str:
        """Why an operator is not to be asked now, that is no use without a model; empty where it may be.

        Where there are no others, it waits instead for an endpoint that is down.
        """
        if name not in WITH_MODEL:
            return ""
        if self.patient:
            self.gate.wait()
        return self.gate.shut()


def build_operator(
    config: Config, outfit: ModelOperatorDeps | None = None, outside: Callable[[], Operator] | None = None
) -> MixOperator:
    """The mix that the configuration asks for. `outside`: makes the operator `external`. Raises UserError."""
    rewriter = RewriteCoder()
    weights = weights_of(config)
    made: list[Operator] = []
    for name in weights:
        if name == "mtmc":
            policy = policy_of(config.operators.policy, config)
            made.append(MtmcOperator(policy, rewriter, max_steps=config.operators.max_steps))
        elif name == "crossover":
            made.append(CrossoverOperator(rewriter))
        elif name in WITH_MODEL:
            assert outfit is not None
            made.append(_with_model(name, config, outfit, rewriter))
        elif name == EXTERNAL and outside is not None:
            made.append(outside())
        else:
            made.append(plugins.factory(plugins.OPERATORS, name, OWN)())
    named = {one.name: weight for one, weight in zip(made, weights.values(), strict=True)}
    return MixOperator(made, named, outfit.refusal) if outfit is not None else MixOperator(made, named)


def check(config: Config, *, keys: bool = True) -> None:
    """Raises UserError for what cannot be put together: before a judge is started, or a population made that would
    keep the mistake. `keys`: missing keys of models are a mistake, too."""
    weights = weights_of(config)
    for name in weights:
        if name == EXTERNAL:
            _check_external(config, weights)
        elif name not in ("mtmc", "crossover", *WITH_MODEL):
            plugins.factory(plugins.OPERATORS, name, OWN)
    if "mtmc" in weights:
        policy_of(config.operators.policy, config)
    if "llm-mtmc" in weights and config.agents.policy not in ("llm", "mixed"):
        policy_of(config.agents.policy, config)
    if config.models:
        from evo_kernel.app import models
        from operators.llm.cost_reservation import NoLimit

        knowledge_of(config)
        with models.opened(config, NoLimit(), threading.Event()) if keys else models.without_keys(config):
            pass


def _check_external(config: Config, weights: Mapping[str, float]) -> None:
    from evo_kernel.app.external_agent import settings_of

    settings_of(config)
    if not config.external.name.strip() or config.external.name in weights.keys() - {EXTERNAL}:
        raise ConfigError(
            f"external.name is {config.external.name!r}: give the agent a name that no other operator of the mix has"
        )


def _with_model(name: str, config: Config, outfit: ModelOperatorDeps, rewriter: RewriteCoder) -> Operator:
    from operators.llm_crossover import LlmCrossover

    if name == "llm-mtmc":
        return _llm_mtmc(config, outfit, rewriter)
    if name == "llm-crossover":
        return LlmCrossover(outfit.model, outfit.prompts, outfit.limits)
    return outfit.agent(outfit.model)


def _llm_mtmc(config: Config, outfit: ModelOperatorDeps, rewriter: RewriteCoder) -> MtmcOperator:
    from operators.macro.llm_policy import LlmPolicy
    from operators.micro.llm_coder import CombinedCoder, LlmCoder

    agents, model, prompts = config.agents, outfit.model, outfit.prompts
    llm = LlmCoder(model, prompts, outfit.limits)
    coder = {"llm": llm, "rewriter": rewriter, "combined": CombinedCoder(rewriter, llm)}[agents.coder]
    if not agents.hierarchy:
        coder = llm
    policy: Policy
    if agents.policy == "llm":
        policy = LlmPolicy(model, prompts, BanditPolicy())
    elif agents.policy == "mixed":
        policy = MixedPolicy(LlmPolicy(model, prompts, BanditPolicy()), BanditPolicy())
    else:
        policy = policy_of(agents.policy, config)
    return MtmcOperator(policy, coder, max_steps=config.operators.max_steps, name="llm-mtmc")


def agent_settings(config: Config) -> AvoSettings:
    from operators.avo.settings import AttemptLimits, AvoSettings

    agents = config.agents
    return AvoSettings(
        limits=AttemptLimits(
            turns=agents.turns, seconds=3600.0 * agents.attempt_hours, max_tokens=agents.answer_tokens
        ),
    )


def limits_of(config: Config) -> SessionLimits:
    from operators.micro.session import SessionLimits

    agents = config.agents
    return SessionLimits(edits=agents.edits, repairs=agents.repairs, max_tokens=agents.answer_tokens)


@contextlib.contextmanager
def operating(
    config: Config,
    population: LineagePopulation,
    judge: PlanJudge,
    ledger: Ledger,
    tell: Callable[[str], None],
    stages: Stages,
    stop: threading.Event | None = None,
) -> Iterator[Operator]:
    """The operator of a run, its models open. `stop` ends calls in flight; `tell` hears of money and endpoints."""
    task, memory = population.task, StrategyMemory()

    def outside() -> Operator:
        from evo_kernel.app.external_agent import external_operator

        elsewhere = prompts_of(config, task, None, memory).elsewhere()
        return external_operator(config, population, judge, knowledge_of(config), ledger.charge, elsewhere)

    with contextlib.ExitStack() as stack:
        if not config.models:
            yield RunOperator(build_operator(config, outside=outside), stages, memory)
            return
        from evo_kernel.app import models, workbench
        from evo_kernel.app.call_accounting import CallAccounting, KeptModel
        from evo_kernel.app.model_breaker import ModelBreaker
        from operators.avo.operator import AvoOperator

        stop, knowledge = stop or threading.Event(), knowledge_of(config)
        prompts = prompts_of(config, task, knowledge, memory, Profiles(judge))
        opened = stack.enter_context(models.opened(config, ledger, stop))
        folder = stack.enter_context(Scratch("agents"))
        gate, accounting = ModelBreaker(opened.endpoints, ledger, tell), CallAccounting(population)
        patient = all(name in WITH_MODEL for name in weights_of(config))
        model = KeptModel(opened.model, accounting, gate)
        rooms = workbench.rooms_of(population, judge, knowledge, ledger.charge)

        def agent(model: Model) -> Operator:
            return AvoOperator(
                model, rooms, population.diary, folder, agent_settings(config), stopping=ledger.ending,
                elsewhere=prompts.elsewhere(),
            )  # fmt: skip

        outfit = ModelOperatorDeps(model, prompts, limits_of(config), gate, patient, agent)
        yield RunOperator(build_operator(config, outfit, outside), stages, memory, accounting, stop)
