"""The coder that is a language model: any strategy that can be put into words, edit by edit, each one probed.

With `Prompts(hierarchy=False)` it offers one strategy, to do as it sees fit: the control without macro thinking.
"""

from __future__ import annotations

from collections.abc import Mapping

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Source, Strategy, TaskCard
from operators.llm.base import Model
from operators.macro import catalogue
from operators.micro.applicability import applicable
from operators.micro.coder import Coded, Coder, Job
from operators.micro.guides import guides as shipped_guides
from operators.micro.rewrites.base import kernels_of
from operators.micro.session import CoderSession, Opening, SessionLimits
from operators.prompts.parts import Part, first_lines
from operators.prompts.writer import Prompts, looked_up, shown, user

CODER, ALONE = ("answer", "coder"), ("answer", "alone")
"""The documents that tell a model what a coder does: with a strategy, and with none."""

AGAIN = 1 << 30  # tries where the only offer is to do as one sees fit: no reason to do so once only


class LlmCoder:
    """Offers what the masks let through, and carries out whatever is asked, free strategies too. Thread-safe.

    `guides`: strategy name → how it is done; an empty mapping leaves them out.
    """

    def __init__(
        self,
        model: Model,
        prompts: Prompts | None = None,
        limits: SessionLimits | None = None,
        tries: int = 2,
        guides: Mapping[str, str] | None = None,
    ) -> None:
        self._model, self._prompts, self._limits = model, prompts or Prompts(), limits or SessionLimits()
        self._guides = shipped_guides() if guides is None else guides
        self.free = self._prompts.hierarchy
        self.tries = tries if self.free else AGAIN

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        return applicable(source, task) if self._prompts.hierarchy else (catalogue.UNGUIDED,)

    def carry_out(self, job: Job) -> Coded:
        session = CoderSession(
            self._model,
            lambda source: self.opening(job.brief, source, job.strategy),
            job.source,
            job.probe,
            self._limits,
            job.brief.known_sources,
        )
        return session.work()

    def opening(self, brief: Brief, source: Source, strategy: Strategy) -> Opening:
        prompts, keep = self._prompts, kernels_of(strategy)
        if not prompts.hierarchy:
            parts = [*prompts.remembered(), *prompts.situation(brief, source, query=looked_up(brief))]
            messages = (prompts.system(brief.task, brief.environment, *ALONE), user(parts))
            return Opening(messages, shown(source.text, prompts.budgets.source)[1])
        described = catalogue.description(strategy)
        guide = self._guides.get(strategy.name, "")
        parts = [
            Part("Guide to the strategy", first_lines(guide, prompts.budgets.guide)),
            *prompts.situation(brief, source, keep, f"{strategy.name} {described} {brief.task.name}"),
            Part("The strategy to carry out", strategy_text(strategy, described)),
        ]
        messages = (prompts.system(brief.task, brief.environment, *CODER), user(parts))
        return Opening(messages, shown(source.text, prompts.budgets.source, keep)[1])


class CombinedCoder:
    """The first coder carries out what it offers; what it cannot, or has tried before, goes to the second. Thread-safe.

    Made for the rewriter before a language model: exact and free where it applies.
    """

    def __init__(self, first: Coder, second: Coder) -> None:
        self._first, self._second = first, second
        self.free, self.tries = second.free, max(first.tries, second.tries)

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        """The first one's offers, then the second's for which the first has none at that kernel."""
        first = self._first.offer(source, task)
        places = {_place(strategy) for strategy in first}
        return (*first, *(s for s in self._second.offer(source, task) if _place(s) not in places))

    def carry_out(self, job: Job) -> Coded:
        again = sum(entry.strategy.key == job.strategy.key for entry in job.brief.tried) >= self._first.tries
        if not again and job.strategy in self._first.offer(job.source, job.brief.task):
            try:
                return self._first.carry_out(job)
            except OperatorFailed:
                pass  # it says what did not fit; the second may see a way
        return self._second.carry_out(job)


def strategy_text(strategy: Strategy, described: str) -> str:
    lines = [f"**{strategy.name}** ({strategy.family}): {described.rstrip('.')}."]
    lines += [f"Where: {strategy.region}."] if strategy.region else []
    lines += [f"{name}: {value}" for name, value in strategy.parameters if name != catalogue.DESCRIPTION]
    spec = catalogue.CATALOGUE.get(strategy.name)
    lines += [f"Sign in the compiled plan: {spec.sign}."] if spec else []
    return "\n".join(lines)


def _place(strategy: Strategy) -> tuple[str, tuple[str, ...]]:
    return strategy.name, kernels_of(strategy)
