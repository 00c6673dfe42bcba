"""The one door to models: any provider that litellm knows, any server that speaks the chat-completions protocol.

What one `complete` does, in this order: set the worst case aside in the purse, ask the endpoint's circuit breaker,
send, and then by what came back: hand it over; wait and try again (429, 5xx, resets, time-outs, empty answers); shorten
the conversation (it outgrew the context); ask once for a correction (JSON that does not fit the schema); or give up
with a ModelFailed that says what to do. Every try is a row of its own (`Reply.calls`, `ModelFailed.calls`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from operators.llm.base import Message, Reply, Tool
from operators.llm.conversation import Conversation
from operators.llm.cost_reservation import NoLimit, Price, Purse
from operators.llm.endpoint import Endpoint
from operators.llm.litellm_request import LiteLLMWire, Wire
from operators.llm.model_client import ModelClient, Patience
from operators.llm.shrink import Shrinker, drop_oldest

__all__ = ["LiteLLMModel", "Patience", "Price"]


class LiteLLMModel:
    """One model behind the door. Thread-safe.

    `name`: as litellm spells it, `provider/model`. `base_url`: a server that speaks the chat-completions protocol; a
    name without a provider is then served as it is, and no key is sent unless `api_key_env` names the variable that
    holds it. `price`: dollars a token where litellm knows none (it is not asked for servers of your own).
    `structured`, `cache_marks`: whether the provider takes a JSON schema, and marks on what to cache; by litellm's
    table where None. `endpoint`: to be shared by models of one endpoint. `stop`: when set, waits end, nothing is sent.
    """

    def __init__(
        self,
        name: str,
        base_url: str | None = None,
        api_key_env: str | None = None,
        *,
        temperature: float | None = None,
        max_tokens: int = 16384,
        price: Price | None = None,
        structured: bool | None = None,
        cache_marks: bool | None = None,
        purse: Purse | None = None,
        endpoint: Endpoint | None = None,
        patience: Patience | None = None,
        shrinker: Shrinker = drop_oldest,
        wire: Wire | None = None,
        extra: Mapping[str, Any] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.name, self._max_tokens = name, max_tokens
        self._line = ModelClient(
            name=name,
            base_url=base_url,
            key_env=api_key_env,
            temperature=temperature,
            price=price,
            structured=structured,
            cache_marks=cache_marks,
            purse=purse or NoLimit(),
            endpoint=endpoint or Endpoint(base_url or name),
            patience=patience or Patience(),
            shrinker=shrinker,
            wire=wire or LiteLLMWire(),
            extra=dict(extra or {}),
            stop=stop or threading.Event(),
        )

    @property
    def price(self) -> Price | None:
        """Dollars a token; None where neither the caller nor litellm knows. Imports litellm."""
        return self._line.facts().price

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """See Model. The door's own limit holds for every call: one without a limit has no worst case."""
        facts = self._line.facts()
        limit = min(max_tokens or self._max_tokens, self._max_tokens)
        if facts.longest_output:
            limit = min(limit, facts.longest_output)
        return Conversation(self._line, tuple(messages), tuple(tools), schema, limit).reply()
