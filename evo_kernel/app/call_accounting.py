"""Which attempt asks a language model: every call is kept as it is made, and credit finds the models that earned it."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evo_kernel.app.model_breaker import ModelBreaker
from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, Reply, Tool
from operators.llm.ensemble import Ensemble
from operators.llm.redaction import redactor

if TYPE_CHECKING:
    from populations.population import LineagePopulation

REMEMBERED = 10_000  # attempts whose calls wait for their credit


class CallAccounting:
    """Knows which attempt each thread is at: its calls become rows as they are made, and credit finds its models."""

    def __init__(self, population: LineagePopulation, ensemble: Ensemble | None) -> None:
        self._population, self._ensemble = population, ensemble
        self._here = threading.local()
        self._lock = threading.Lock()
        self._calls: OrderedDict[int, list[Call]] = OrderedDict()
        if ensemble is not None:
            self._remember()

    @contextlib.contextmanager
    def at(self, attempt: int) -> Iterator[None]:
        self._here.attempt = attempt
        try:
            yield
        finally:
            self._here.attempt = None

    def keep(self, calls: Sequence[Call]) -> None:
        attempt = getattr(self._here, "attempt", None)
        if attempt is None or not calls:
            return
        self._population.spend(attempt, calls)
        if self._ensemble is not None:
            slim = [replace(call, messages="") for call in calls]
            with self._lock:
                self._calls.setdefault(attempt, []).extend(slim)
                while len(self._calls) > REMEMBERED:
                    self._calls.popitem(last=False)

    def earned(self, attempt: int, log_gain: float) -> None:
        """What came of an attempt. A kernel that is slower than its parent is no loss: it is not gone on with."""
        if self._ensemble is None:
            return
        with self._lock:
            calls = self._calls.pop(attempt, [])
        self._ensemble.learn(calls, max(0.0, log_gain))

    def _remember(self) -> None:
        """What earlier sessions asked; what came of it is told by the credits that the engine replays."""
        fruitless = set()
        for attempt, failed, model, dollars in self._population.calls():
            self._calls.setdefault(attempt, []).append(Call(model, dollars=dollars))
            if failed:
                fruitless.add(attempt)
        for attempt in sorted(fruitless):
            self.earned(attempt, 0.0)


class KeptModel:
    """A model whose calls are kept, whose failures the gate hears of, and that is told no secret. Thread-safe."""

    def __init__(self, model: Model, accounting: CallAccounting, gate: ModelBreaker) -> None:
        self.name = model.name
        self._model, self._accounting, self._gate = model, accounting, gate

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        clean = redactor()
        messages = [_cleaned(message, clean) for message in messages]
        try:
            reply = self._model.complete(messages, tools=tools, schema=schema, max_tokens=max_tokens)
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
