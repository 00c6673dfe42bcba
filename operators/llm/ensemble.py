"""Several models as one: which of them answers is learnt from what their answers gained per dollar."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, Reply, Tool
from operators.llm.transcript import canonical, message_data

FORGET = 0.99  # weight of older credits, per credit
FLOOR = 0.1  # share of conversations that go to any member, whatever it earned
PRIOR_WEIGHT, PRIOR_DEVIATION = 4.0, 0.25  # credits that the prior is worth; log gain
REMEMBERED = 4096  # conversations under way
OVERHEAD = 0.01
"""Dollars that an attempt costs besides its model (GPU time, mostly): without it a free model that never gains anything
would be worth any number of attempts."""


class _Record:
    """Discounted sums of one member's credits: number n, gain s, squared gain q, dollars d."""

    def __init__(self) -> None:
        self.n = self.s = self.q = self.d = 0.0

    def observe(self, gain: float, dollars: float) -> None:
        self.n, self.s, self.q, self.d = (FORGET * one for one in (self.n, self.s, self.q, self.d))
        self.n, self.s, self.q, self.d = self.n + 1.0, self.s + gain, self.q + gain * gain, self.d + dollars

    def sample(self, typical: float, rng: np.random.Generator) -> float:
        """A draw of the gain per dollar: the gain from N(s / (n + n0), σ² / (n + n0)), over the mean cost.

        `typical`: dollars a credit costs over all members, which is what is assumed of one that is not known yet.
        """
        weight = self.n + PRIOR_WEIGHT
        variance = (self.q + PRIOR_WEIGHT * PRIOR_DEVIATION**2) / weight
        gain = float(rng.normal(self.s / weight, math.sqrt(variance / weight)))
        return gain / ((self.d + typical) / (self.n + 1.0))


class Ensemble:
    """A model made of models. Thread-safe.

    A new conversation goes to the member with the highest draw (Thompson sampling) of gain per dollar, a share FLOOR
    of them to any; one that continues stays with the member that spoke last. Where a member cannot answer (down, too
    long, refused, beyond the budget), the next best is asked; one that is invalid is not asked again.

    `weights`: by member, relative, 1 where not given: how that share FLOOR is divided. A member of weight 0 is asked
    only where no other can answer.
    """

    name = "ensemble"

    def __init__(
        self, members: Sequence[Model], rng: np.random.Generator, weights: Mapping[str, float] | None = None
    ) -> None:
        self._members = {member.name: member for member in members}
        if not members or len(self._members) != len(members):
            raise ValueError("an ensemble needs at least one model, each with a name of its own")
        self._rng = rng
        self._weights = {name: float((weights or {}).get(name, 1.0)) for name in self._members}
        self._records = {name: _Record() for name in self._members}
        self._invalid: set[str] = set()
        self._speakers: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """See Model. What the members spent that could not answer is in the reply's `earlier`."""
        earlier: list[Call] = []
        failures: list[ModelFailed] = []
        for name in self._order(messages):
            try:
                reply = self._members[name].complete(messages, tools=tools, schema=schema, max_tokens=max_tokens)
            except ModelFailed as failure:
                earlier += failure.calls
                failures.append(failure)
                if failure.kind == "invalid":
                    with self._lock:
                        self._invalid.add(name)
                continue
            self._spoke(name, [*messages, reply.message])
            return Reply(reply.message, reply.call, reply.finish, (*earlier, *reply.earlier))
        reasons = "; ".join(failure.reason for failure in failures)
        raise ModelFailed(reasons, _kind(failures), tuple(earlier)) from failures[-1]

    def learn(self, calls: Sequence[Call], gain: float) -> None:
        """What an attempt gained (log gain, or a credit's reward), and the calls that it took.

        The gain is shared among the members by the dollars that went to each. Nothing is learnt from a gain that is
        not finite, or from calls of models that are no members.
        """
        calls = [call for call in calls if call.model in self._members]
        if not calls or not math.isfinite(gain):
            return
        dollars = {name: 0.0 for name in dict.fromkeys(call.model for call in calls)}
        for call in calls:
            dollars[call.model] += call.dollars or 0.0
        each = OVERHEAD / len(dollars)
        total = sum(dollars.values()) + OVERHEAD
        with self._lock:
            for name, spent in dollars.items():
                self._records[name].observe(gain * (spent + each) / total, spent + each)

    def _order(self, messages: Sequence[Message]) -> list[str]:
        """Members to ask, best first; one that spoke last in this conversation before all."""
        with self._lock:
            names = [name for name in self._members if name not in self._invalid] or list(self._members)
            paid, count = sum(one.d for one in self._records.values()), sum(one.n for one in self._records.values())
            typical = paid / count if count else OVERHEAD
            draws = {name: self._records[name].sample(typical, self._rng) for name in names}
            order = sorted(names, key=lambda name: -draws[name])
            if self._rng.random() < FLOOR:
                # By weight, without replacement, as exponential waiting times (Efraimidis and Spirakis, 2006).
                waits = {name: self._rng.exponential() / max(self._weights[name], 1e-12) for name in names}
                order = sorted(names, key=lambda name: waits[name])
            order.sort(key=lambda name: self._weights[name] == 0)
            last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
            speaker = self._speakers.get(_digest(messages[: last + 1])) if last >= 0 else None
        return sorted(order, key=lambda name: name != speaker)

    def _spoke(self, name: str, messages: Sequence[Message]) -> None:
        with self._lock:
            self._speakers[_digest(messages)] = name
            while len(self._speakers) > REMEMBERED:
                self._speakers.popitem(last=False)


def _digest(messages: Sequence[Message]) -> str:
    said = [{**message_data(message), "stable": False} for message in messages]
    return hashlib.sha256(canonical(said).encode()).hexdigest()


def _kind(failures: Sequence[ModelFailed]) -> str:
    """The failure that leaves most hope: what is down comes back, a budget does not."""
    kinds = {failure.kind for failure in failures}
    for kind in ("stopped", "down", "budget", "malformed", "refused", "too long"):
        if kind in kinds:
            return kind
    return failures[-1].kind
