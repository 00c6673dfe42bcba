"""The policy that is a language model: it picks an offer by its number, or proposes a strategy of its own.

Propensities: the chosen offer gets the confidence that the model states, held between an even chance and 1, and the
others share the rest evenly. That is what it says, not a frequency.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Credit, Decision, Strategy
from operators.llm.base import Message, Model, ModelFailed
from operators.llm.structured import problem
from operators.macro.catalogue import FAMILIES, MAX_DESCRIPTION, PAYS, description, proposed
from operators.macro.features import MacroState, context
from operators.macro.policies import Policy, UniformPolicy
from operators.prompts.evidence import strategy_line, undescribed
from operators.prompts.parts import Part, one_line, rows, tokens
from operators.prompts.writer import Prompts, looked_up, user

MAX_PROPOSED = 12  # of the run's own strategies, offered again; those that paid best
ANSWER_TOKENS = 8192  # models that think do so within it: with 2,048 their answer may never begin
OUTCOME = 100  # tokens of what came of a step of this attempt


class LlmPolicy:
    """Asks `model`; `fallback` decides when the model is down, out of budget or says what cannot be used. Thread-safe.

    `Decision.policy` says which of the two decided. Both learn from every credit. Raises OperatorFailed where the run
    was stopped.
    """

    name = "llm"

    def __init__(self, model: Model, prompts: Prompts | None = None, fallback: Policy | None = None) -> None:
        self._model, self._prompts = model, prompts or Prompts()
        self._fallback = fallback or UniformPolicy()

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        if state.brief is None:
            return self._fallback.choose(state, offered, rng)
        if len(offered) == 1 and not state.free:
            return Decision(self.name, offered, (1.0,), 0, context(state))  # nothing to ask
        if state.free:
            offered = (*offered, *self._own(state, offered))
        try:
            schema = answer_schema(len(offered), state.free)
            reply = self._model.complete(self.messages(state, offered), schema=schema, max_tokens=ANSWER_TOKENS)
        except ModelFailed as failure:
            if failure.kind == "stopped":  # no time for anybody else's choice either
                raise OperatorFailed(failure.reason, calls=failure.calls) from None
            return dataclasses.replace(self._fallback.choose(state, offered, rng), calls=failure.calls)
        try:
            chosen, confidence = read_answer(reply.message.content, offered, state.free)
        except ValueError as error:
            call = dataclasses.replace(reply.call, error=reply.call.error or f"unusable choice: {error}")
            return dataclasses.replace(self._fallback.choose(state, offered, rng), calls=(*reply.earlier, call))
        if chosen not in offered:
            offered = (*offered, chosen)
        at = offered.index(chosen)
        return Decision(self.name, offered, stated(confidence, len(offered), at), at, context(state), reply.calls)

    def learn(self, credit: Credit) -> None:
        self._fallback.learn(credit)
        self._prompts.memory.learn(credit)

    def messages(self, state: MacroState, offered: Sequence[Strategy]) -> tuple[Message, ...]:
        """The prompt of a choice; `state.brief` is given."""
        prompts, brief = self._prompts, state.brief
        assert brief is not None
        budgets = prompts.budgets
        trail = [f"- {strategy_line(s)}: {one_line(outcome, OUTCOME)}" for s, outcome in reversed(state.trail)]
        parts = [
            *prompts.situation(brief, state.source, query=looked_up(brief)),
            *prompts.remembered(),
            Part("This attempt so far, youngest first", rows((), trail, budgets.trail)),
            Part("Choose one", offers_text(offered, budgets.offers, state.free)),
        ]
        return prompts.system(brief.task, brief.environment, "macro"), user(parts)

    def _own(self, state: MacroState, offered: Sequence[Strategy]) -> list[Strategy]:
        """Strategies that were proposed in this run, without those offered or tried here."""
        known = {s.key for s in offered} | {entry.strategy.key for entry in state.tried}
        known |= {strategy.key for strategy, _outcome in state.trail}
        known |= {strategy.key for strategy in state.parent.strategies}  # on its path: it is in the source
        return [strategy for strategy in self._prompts.memory.own(MAX_PROPOSED) if strategy.key not in known]


def answer_schema(count: int, free: bool) -> Mapping[str, Any]:
    """The JSON schema of an answer; every field is required, as strict providers want it."""
    last = count + 1 if free else count
    properties: dict[str, Any] = {
        "why": {"type": "string", "description": "what holds the kernel back, and why this helps; two sentences"},
        "choice": {"type": "integer", "minimum": 1, "maximum": last, "description": "the number of the offer"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1, "description": "that it is the best of these"},
    }
    if free:
        properties["proposal"] = {
            "anyOf": [{"type": "null"}, _PROPOSAL],
            "description": f"null, or, with choice {last}, a strategy of your own",
        }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_PROPOSAL = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "a new name in lower case with hyphens"},
        "family": {"type": "string", "enum": list(FAMILIES)},
        "description": {
            "type": "string",
            "description": f"what to change, in one sentence that a coder can act on, in {MAX_DESCRIPTION} letters",
        },
        "region": {"type": "string", "description": "`kernel NAME`, or empty for the whole source"},
    },
    "required": ["name", "family", "description", "region"],
    "additionalProperties": False,
}


def read_answer(text: str, offered: Sequence[Strategy], free: bool) -> tuple[Strategy, float]:
    """(strategy, confidence) of an answer. Raises ValueError with what cannot be used."""
    answer = json.loads(text)
    properties = {**answer_schema(len(offered), free)["properties"], "confidence": {}, "why": {}}
    if wrong := problem(answer, {"type": "object", "properties": properties, "required": ["choice"]}):
        raise ValueError(wrong)
    choice, confidence = int(answer["choice"]), answer.get("confidence", 1.0)
    if not isinstance(confidence, int | float) or isinstance(confidence, bool) or not math.isfinite(confidence):
        confidence = 1.0  # the choice stands; that it cannot weigh it is no reason to lose it
    if choice <= len(offered):
        return offered[choice - 1], confidence
    if answer.get("proposal") is None:
        raise ValueError(f"choice {choice} needs a proposal")
    return proposed(**answer["proposal"]), confidence


def stated(confidence: float, count: int, at: int) -> tuple[float, ...]:
    """Propensities from a stated confidence; they sum to 1."""
    held = min(max(confidence, 1.0 / count), 1.0)
    rest = (1.0 - held) / max(count - 1, 1)
    return tuple(held if index == at else rest for index in range(count))


def offers_text(offered: Sequence[Strategy], budget: int, free: bool) -> str:
    """The offers by number, what they do, and once for each name where that pays.

    Where it does not fit, where they pay is left out, then what they do, from the end.
    """
    short = [f"{number}. {strategy_line(undescribed(strategy))}" for number, strategy in enumerate(offered, start=1)]
    full = [f"{line}: {description(strategy)}" for line, strategy in zip(short, offered, strict=True)]
    pays = list(full)
    for name in dict.fromkeys(strategy.name for strategy in offered):
        at = next(n for n, strategy in enumerate(offered) if strategy.name == name)
        pays[at] += f". Pays where {PAYS[name]}" if name in PAYS else ""
    if free:
        last = f"{len(offered) + 1}. a strategy of your own, where none of these is the right one (fill in `proposal`)"
        short, full, pays = [*short, last], [*full, last], [*pays, last]
    if tokens("\n".join(pays)) <= budget:
        return "\n".join(pays)
    texts = ("\n".join([*full[:said], *short[said:]]) for said in range(len(full), -1, -1))
    return next((text for text in texts if tokens(text) <= budget), "\n".join(short))
