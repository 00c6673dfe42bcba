"""Which attempt asks a language model: every call is stored as it is made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evo_kernel.app.model_breaker import ModelBreaker
from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, ModelRequest, Reply
from operators.llm.transcript import redactor

if TYPE_CHECKING:
    from populations.population import LineagePopulation


class CallAccounting:
    """Knows which attempt each thread is at: its calls become rows as they are made."""

    def __init__(self, population: LineagePopulation) -> None:
        self._population = population
        self._here = threading.local()

    @contextlib.contextmanager
    def at(self, attempt: int) -> Iterator[None]:
        self._here.attempt = attempt
        try:
            yield
        finally:
            self._here.attempt = None

    def keep(self, calls: Sequence[Call]) -> None:
        attempt = getattr(self._here, "attempt", None)
        if attempt is not None and calls:
            self._population.spend(attempt, calls)


class KeptModel(Model):
    """A model whose calls are kept, whose failures the gate hears of, and that is told no secret. Thread-safe."""

    def __init__(self, model: Model, accounting: CallAccounting, gate: ModelBreaker) -> None:
        self.name = model.name
        self._model, self._accounting, self._gate = model, accounting, gate

    def answer(self, request: ModelRequest) -> Reply:
        clean = redactor()
        cleaned = tuple(_cleaned(message, clean) for message in request.messages)
        try:
            reply = self._model.answer(replace(request, messages=cleaned))
        except ModelFailed as failure:
            self._accounting.keep(failure.calls)
            self._gate.heard(failure)
            raise
        self._accounting.keep(reply.calls)
        self._gate.heard(None)
        return replace(reply, message=_cleaned(reply.message, clean))


def _cleaned(message: Message, clean: Callable[[str], str]) -> Message:
    calls = tuple(replace(call, arguments=clean(call.arguments)) for call in message.tool_calls)
    return replace(message, content=clean(message.content), tool_calls=calls)
