"""From names to a model: one by its name, or several as one, among which conversations are shared out by weight."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, ModelRequest, Reply
from operators.llm.litellm_model import LiteLLMModel
from operators.llm.scripted import ScriptedModel


class Ensemble(Model):
    """A model made of models. Thread-safe.

    The opening of a conversation (its first two messages) decides who answers, so that it stays with one member, whose
    cache holds it. Where a member cannot answer (down, too long, refused, beyond the budget), the next one is asked;
    one that is invalid is not asked again. `weights`: by member, relative, 1 where not given. A member of weight 0 is
    asked only where no other can answer.
    """

    name = "ensemble"

    def __init__(self, members: Sequence[Model], weights: Mapping[str, float] | None = None) -> None:
        self._members = {member.name: member for member in members}
        if not members or len(self._members) != len(members):
            raise ValueError("an ensemble needs at least one model, each with a name of its own")
        self._weights = {name: float((weights or {}).get(name, 1.0)) for name in self._members}
        self._invalid: set[str] = set()

    def answer(self, request: ModelRequest) -> Reply:
        """See Model. What the members spent that could not answer is in the reply's `earlier`."""
        earlier: list[Call] = []
        failures: list[ModelFailed] = []
        for name in self._order(request.messages):
            try:
                reply = self._members[name].answer(request)
            except ModelFailed as failure:
                earlier += failure.calls
                failures.append(failure)
                if failure.kind == "invalid":
                    self._invalid.add(name)
                continue
            return Reply(reply.message, reply.call, reply.finish, (*earlier, *reply.earlier))
        reasons = "; ".join(failure.reason for failure in failures)
        raise ModelFailed(reasons, _kind(failures), tuple(earlier)) from failures[-1]

    def _order(self, messages: Sequence[Message]) -> list[str]:
        """Members to ask, best first: weighted rendezvous hashing of the conversation's opening."""
        opening = "\0".join(message.content for message in messages[:2])

        def waits(name: str) -> float:
            drawn = int.from_bytes(hashlib.sha256(f"{name}\0{opening}".encode()).digest()[:8]) + 1
            return -math.log(drawn / 2**64) / self._weights[name] if self._weights[name] else math.inf

        names = [name for name in self._members if name not in self._invalid] or list(self._members)
        return sorted(names, key=waits)


def _kind(failures: Sequence[ModelFailed]) -> str:
    """The failure that leaves most hope: what is down comes back, a budget does not."""
    kinds = {failure.kind for failure in failures}
    for kind in ("stopped", "down", "budget", "malformed", "refused", "too long"):
        if kind in kinds:
            return kind
    return failures[-1].kind


def open_model(name: str, **settings: Any) -> Model:
    """`settings`: of LiteLLMModel. Raises UserError."""
    kind, _, path = name.partition(":")
    if kind == "scratch":
        from operators.learning.coder.scratch.coder import ScratchModel  # torch, which no other model needs here

        return ScratchModel(Path(path), name)
    if name == "scripted":
        return ScriptedModel()
    return LiteLLMModel(name, **settings)
