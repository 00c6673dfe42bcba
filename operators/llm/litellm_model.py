"""The one door to models: any provider that litellm knows, any server that speaks the chat-completions protocol.

What one `complete` does, in this order: set the worst case aside in the purse, ask the endpoint's circuit breaker,
send, and then by what came back: hand it over; wait and try again (429, 5xx, resets, time-outs, empty answers); ask
once for a correction (JSON that does not fit the schema); or give up with a ModelFailed that says what to do. Every try
is a row of its own (`Reply.calls`, `ModelFailed.calls`).
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

from operators.llm.base import Model, ModelFailed, ModelRequest, Reply
from operators.llm.conversation import Conversation, Patience
from operators.llm.cost_reservation import NoLimit, Price, Purse, TokenBound
from operators.llm.endpoint import Endpoint
from operators.llm.litellm_request import Facts, LiteLLMWire

__all__ = ["LiteLLMModel", "Patience", "Price"]


class LiteLLMModel(Model):
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
        wire: LiteLLMWire | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.name, self.base_url, self.key_env, self.temperature = name, base_url, api_key_env, temperature
        self.purse, self.endpoint = purse or NoLimit(), endpoint or Endpoint(base_url or name)
        self.patience, self.wire, self.stop = patience or Patience(), wire or LiteLLMWire(), stop or threading.Event()
        self.bound, self.stated_price = TokenBound(), price
        self._max_tokens, self._structured, self._cache_marks = max_tokens, structured, cache_marks
        self._lock = threading.Lock()
        self._facts: Facts | None = None

    def answer(self, request: ModelRequest) -> Reply:
        """See Model. The door's own limit holds for every call: one without a limit has no worst case."""
        limit = min(request.max_tokens or self._max_tokens, self._max_tokens)
        limit = min(limit, self.facts().longest_output or limit)
        return Conversation(self, replace(request, max_tokens=limit), limit).reply()

    @property
    def price(self) -> Price | None:
        """Dollars a token; None where neither the caller nor litellm knows. Imports litellm."""
        return self.facts().price

    def facts(self) -> Facts:
        """What litellm's table says of the model, and what the caller says instead."""
        with self._lock:
            if self._facts is None:
                known = self.wire.facts(self.served(), local=self.base_url is not None)
                self._facts = replace(
                    known,
                    price=self.stated_price or known.price,
                    structured=known.structured if self._structured is None else self._structured,
                    cache_marks=known.cache_marks if self._cache_marks is None else self._cache_marks,
                )
            return self._facts

    def words_only(self) -> None:
        """The endpoint turned down a schema: from now on it is asked in words."""
        facts = self.facts()
        with self._lock:
            self._facts = replace(facts, structured=False)

    def served(self) -> str:
        """The name by which litellm finds the provider: a server of one's own speaks OpenAI's protocol."""
        if self.base_url is None or self.name.startswith(("openai/", "hosted_vllm/", "anthropic/")):
            return self.name
        return f"hosted_vllm/{self.name}"

    def credentials(self) -> dict[str, Any]:
        place = {"base_url": self.base_url} if self.base_url else {}
        if self.key_env is None:  # never the key of one provider to the server of another
            return place | {"api_key": "none"} if place else {}
        if not (key := os.environ.get(self.key_env, "")):
            raise ModelFailed(f"the variable {self.key_env} is empty: put the key of {self.name} there", "invalid")
        return place | {"api_key": key}
