"""From a configuration to operators: the offline mix, operators with a language model, and installed ones."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evo_kernel import plugins
from evo_kernel.app.prompt_context import Profiles, knowledge_of, prompts_of
from evo_kernel.app.verdicts import WITH_MODEL
from evo_kernel.budget import Ledger
from evo_kernel.config import Config
from evo_kernel.errors import ConfigError, OperatorFailed
from evo_kernel.fitness.gpus import usable_cores
from evo_kernel.fitness.stages import THINKING, Stages
from evo_kernel.scratch import Scratch
from evo_kernel.types import Brief, Credit, Evaluation, Operator, Probe, Proposal
from operators.crossover import CrossoverOperator
from operators.macro.bandit import BanditPolicy
from operators.macro.policies import MixedPolicy, Policy, StrategyMemory, UniformPolicy
from operators.micro.coder import RewriteCoder
from operators.mix import MixOperator
from operators.mtmc import MtmcOperator

if TYPE_CHECKING:
    from evo_kernel.app.judges import AnyJudge
    from evo_kernel.app.models import CallAccounting
    from operators.llm.base import Model
    from operators.micro.session import SessionLimits
    from operators.prompts.writer import Prompts
    from populations.population import LineagePopulation

OWN = ("mtmc", "crossover", *WITH_MODEL)
POLICIES: Mapping[str, Callable[[], Policy]] = {"bandit": BanditPolicy, "uniform": UniformPolicy}
TRAINED = "trained"
LANGUAGE_THREADS = 8  # of a language model that is a policy, and a quarter of the cores, at most


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
    """`name`: a path is the checkpoint of a trained one. Raises UserError: no such policy, or no checkpoint that can
    be read."""
    named = Path(name) if os.sep in name else None
    if name != TRAINED and named is None:
        return (POLICIES.get(name) or plugins.factory(plugins.POLICIES, name, (*POLICIES, TRAINED)))()
    import torch

    from operators.learning import POLICY
    from operators.learning.trained_policy import TrainedPolicy

    path = named or config.operators.checkpoint or POLICY
    # One small decision at a time, and the cores are the judge's; a language model takes a part of them.
    torch.set_num_threads(max(1, min(usable_cores() // 4, LANGUAGE_THREADS)) if path.is_dir() else 1)
    return TrainedPolicy.load(path)


def money_ends(config: Config) -> bool:
    """Whether a run is over when its dollars or tokens are: where nothing else would go on, or ever end."""
    if not config.models:
        return True
    offline = any(name not in WITH_MODEL for name in weights_of(config))
    budget = config.budget
    others = (budget.evaluations, budget.hours, budget.gpu_seconds)
    return config.agents.when_money_is_out == "end" or not offline or all(limit is None for limit in others)


def build_operator(
    config: Config,
    makers: Mapping[str, Callable[[], Operator]] | None = None,
    refusal: Callable[[str], str] = lambda name: "",
) -> MixOperator:
    """The mix that the configuration asks for. `makers`: of operators that need more than the configuration; `refusal`:
    why an operator is not to be asked now, empty where it may be. Raises UserError."""
    made: list[Operator] = []
    for name in (weights := weights_of(config)):
        if name == "mtmc":
            policy = policy_of(config.operators.policy, config)
            made.append(MtmcOperator(policy, RewriteCoder(), max_steps=config.operators.max_steps))
        elif name == "crossover":
            made.append(CrossoverOperator(RewriteCoder()))
        else:
            maker = (makers or {}).get(name) or plugins.factory(plugins.OPERATORS, name, OWN)
            made.append(maker())
    named = {one.name: weight for one, weight in zip(made, weights.values(), strict=True)}
    return MixOperator(made, named, refusal)


def check(config: Config, *, keys: bool = True) -> None:
    """Raises UserError for what cannot be put together: before a judge is started, or a population made that would
    keep the mistake. `keys`: missing keys of models are a mistake, too."""
    weights = weights_of(config)
    for name in weights:
        if name not in ("mtmc", "crossover", *WITH_MODEL):
            plugins.factory(plugins.OPERATORS, name, OWN)
    if "mtmc" in weights:
        policy_of(config.operators.policy, config)
    if "llm-mtmc" in weights and config.agents.policy not in ("llm", "mixed"):
        policy_of(config.agents.policy, config)
    if config.models:
        from evo_kernel.app import models
        from operators.llm.limits import NoLimit

        knowledge_of(config)
        with models.opened(config, NoLimit(), threading.Event(), keys=keys):
            pass


def _llm_mtmc(config: Config, model: Model, prompts: Prompts, limits: SessionLimits) -> MtmcOperator:
    from operators.llm_policy import LlmPolicy
    from operators.micro.llm_coder import CombinedCoder, LlmCoder

    agents, rewriter, llm = config.agents, RewriteCoder(), LlmCoder(model, prompts, limits)
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


@contextlib.contextmanager
def operating(
    config: Config,
    population: LineagePopulation,
    judge: AnyJudge,
    ledger: Ledger,
    tell: Callable[[str], None],
    stages: Stages,
    stop: threading.Event | None = None,
    profiled: bool = True,
) -> Iterator[Operator]:
    """The operator of a run, its models open. `stop` ends calls in flight; `tell` hears of money and endpoints;
    `profiled`: prompts wait for the judge's tables."""
    memory = StrategyMemory()
    with contextlib.ExitStack() as stack:
        if not config.models:
            yield RunOperator(build_operator(config), stages, memory)
            return
        from evo_kernel.app import models, workbench
        from operators.avo.attempt import AttemptLimits, AvoSettings
        from operators.avo.operator import AvoOperator
        from operators.crossover import LlmCrossover
        from operators.micro.session import SessionLimits

        agents, stop, knowledge = config.agents, stop or threading.Event(), knowledge_of(config)
        prompts = prompts_of(config, knowledge, memory, Profiles(judge) if profiled else None)
        asked, endpoints = stack.enter_context(models.opened(config, ledger, stop))
        folder = stack.enter_context(Scratch("agents"))
        gate, accounting = models.ModelBreaker(endpoints, ledger, tell), models.CallAccounting(population)
        model = models.KeptModel(asked, accounting, gate)
        limits = SessionLimits(edits=agents.edits, repairs=agents.repairs, max_tokens=agents.answer_tokens)
        only_models = all(name in WITH_MODEL for name in weights_of(config))

        def refusal(name: str) -> str:
            """Where there are no other operators, one waits instead for an endpoint that is down."""
            if name not in WITH_MODEL:
                return ""
            if only_models:
                gate.wait()
            return gate.shut()

        def agent() -> Operator:
            attempt = AttemptLimits(
                turns=agents.turns, seconds=3600.0 * agents.attempt_hours, max_tokens=agents.answer_tokens
            )
            rooms = workbench.rooms_of(population, judge, knowledge, ledger.charge)
            return AvoOperator(
                model, rooms, population.diary, folder, AvoSettings(limits=attempt), stopping=ledger.ending
            )

        makers = {
            "llm-mtmc": lambda: _llm_mtmc(config, model, prompts, limits),
            "llm-crossover": lambda: LlmCrossover(model, prompts, limits),
            "avo": agent,
        }
        yield RunOperator(build_operator(config, makers, refusal), stages, memory, accounting, stop)


class RunOperator:
    """Makes each attempt of an operator in one context.

    `stages`: where it is marked; what is probed counts at the stage where the probe is. `memory` hears every credit,
    whoever made the proposal. `accounting` and `stop` are of runs that ask language models; `stop` is set when the run
    ends, and calls of models with it.
    """

    def __init__(
        self,
        operator: Operator,
        stages: Stages,
        memory: StrategyMemory | None = None,
        accounting: CallAccounting | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.name = operator.name
        self._operator, self._stages, self._memory = operator, stages, memory
        self._accounting, self._stop = accounting, stop

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        charged = self._accounting.at(brief.attempt) if self._accounting else contextlib.nullcontext()
        with self._stages.at(THINKING), charged:
            try:
                return self._operator.propose(brief, probe)
            except OperatorFailed as failure:
                # A call that ended with the run is no failure of the attempt, which stays open as after a kill: an
                # agent goes on with it in the next session, of any other operator it is abandoned.
                failure.paused = failure.paused or (self._stop is not None and self._stop.is_set())
                raise

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return self._operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        if self._memory is not None:
            self._memory.learn(credit)
        self._operator.learn(credit)
