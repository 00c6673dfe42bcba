"""A line to one model: how it is asked, and what was learnt of it on the way. Shared by all calls of that model."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from operators.llm.base import ModelFailed
from operators.llm.cost_reservation import Price, Purse, TokenBound
from operators.llm.endpoint import Endpoint
from operators.llm.litellm_request import Facts, Wire
from operators.llm.shrink import Shrinker


@dataclass(frozen=True)
class Patience:
    """How long and how often. Seconds."""

    deadline_s: float = 900.0  # of one `complete`, waits included
    try_s: float = 300.0  # of one request
    tries: int = 6  # failures that may be waited out
    first_wait_s: float = 1.0  # doubles with every failure; the wait is drawn between nothing and that
    longest_wait_s: float = 60.0
    shrinks: int = 5


@dataclass
class ModelClient:
    """Fields: see LiteLLMModel. Thread-safe."""

    name: str
    base_url: str | None
    key_env: str | None
    temperature: float | None
    price: Price | None
    structured: bool | None
    cache_marks: bool | None
    purse: Purse
    endpoint: Endpoint
    patience: Patience
    shrinker: Shrinker
    wire: Wire
    extra: Mapping[str, Any]
    stop: threading.Event
    bound: TokenBound = field(default_factory=TokenBound)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _facts: Facts | None = None

    def facts(self) -> Facts:
        with self._lock:
            if self._facts is None:
                facts = self.wire.facts(self.served(), local=self.base_url is not None)
                self._facts = replace(
                    facts,
                    price=self.price or facts.price,
                    structured=facts.structured if self.structured is None else self.structured,
                    cache_marks=facts.cache_marks if self.cache_marks is None else self.cache_marks,
                )
            return self._facts

    def words_only(self) -> None:
        """The endpoint turned down a schema: from now on it is asked in words."""
        with self._lock:
            if self._facts is not None:
                self._facts = replace(self._facts, structured=False)

    def served(self) -> str:
        """The name by which litellm finds the provider: a server of one's own speaks OpenAI's protocol."""
        if self.base_url is None or self.name.startswith(("openai/", "hosted_vllm/", "anthropic/")):
            return self.name
        return f"hosted_vllm/{self.name}"

    def credentials(self) -> dict[str, Any]:
        if self.key_env is not None:
            key = os.environ.get(self.key_env, "")
            if not key:
                raise ModelFailed(f"the variable {self.key_env} is empty: put the key of {self.name} there", "invalid")
            return {"api_key": key} | ({"base_url": self.base_url} if self.base_url else {})
        # Never the key of one provider to the server of another.
        return {"base_url": self.base_url, "api_key": "none"} if self.base_url else {}
