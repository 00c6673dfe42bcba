"""Language models for a run: opened from the configuration, held to its ledger."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from evo_kernel.config import Config, ModelConfig
from evo_kernel.errors import ConfigError
from evo_kernel.types import Call
from operators.llm.base import Model, ModelFailed, ModelRequest, Reply
from operators.llm.choose import open_model
from operators.llm.cost_reservation import NoLimit, Purse
from operators.llm.endpoint import Endpoint
from operators.llm.ensemble import Ensemble
from operators.llm.litellm_model import LiteLLMModel, Patience, Price
from operators.llm.litellm_request import LiteLLMWire, missing_key, unknown_provider

MILLION = 1e6


@dataclass(frozen=True)
class Opened:
    """What answers, and what it takes to know whether it can."""

    model: Model
    endpoints: tuple[Endpoint, ...] = ()


@contextlib.contextmanager
def opened(config: Config, purse: Purse, stop: threading.Event) -> Iterator[Opened]:
    """The configured models as one. Raises UserError for what cannot work."""
    with contextlib.closing(LiteLLMWire()) as wire:
        yield _open(config, purse, stop, wire)


def lacking_key(one: ModelConfig) -> str:
    """Which key a provider's model lacks, and where to put it; empty where none is missing."""
    return "" if _in_process(one) or one.base_url or one.api_key_env else missing_key(one.name)


def _in_process(one: ModelConfig) -> bool:
    return one.name == "scripted" or one.name.startswith("scratch:")


@contextlib.contextmanager
def without_keys(config: Config) -> Iterator[Opened]:
    """As `opened`, to look at, without keys and without limits."""
    with contextlib.closing(LiteLLMWire()) as wire:
        yield _open(config, NoLimit(), threading.Event(), wire, keys=False)


def _open(config: Config, purse: Purse, stop: threading.Event, wire: LiteLLMWire, *, keys: bool = True) -> Opened:
    endpoints = dict[str, Endpoint]()
    members = {key: _one(key, config, wire, endpoints, purse, stop, keys=keys) for key in config.models}
    names = [member.name for member in members.values()]
    if len(set(names)) != len(names):
        raise ConfigError(f"two models have one name ({', '.join(names)}): calls could not be told apart. Drop one.")
    asked = tuple(endpoints.values())
    if len(members) == 1:
        return Opened(next(iter(members.values())), asked)
    weights = {member.name: config.models[key].weight for key, member in members.items()}
    return Opened(Ensemble(list(members.values()), weights), asked)


def _one(
    key: str,
    config: Config,
    wire: LiteLLMWire,
    endpoints: dict[str, Endpoint],
    purse: Purse,
    stop: threading.Event,
    *,
    keys: bool,
) -> Model:
    one = config.models[key]
    if _in_process(one):
        return LocalModel(open_model(one.name), purse)
    if one.base_url is None and one.api_key_env is None and (reason := unknown_provider(one.name)):
        raise ConfigError(reason)
    if keys and (reason := lacking_key(one)):
        raise ConfigError(reason)
    place = one.base_url or one.name
    model = LiteLLMModel(
        one.name,
        one.base_url,
        one.api_key_env,
        temperature=one.temperature,
        max_tokens=one.max_tokens,
        price=price_of(one),
        structured=one.structured,
        cache_marks=one.cache_marks,
        purse=purse,
        endpoint=endpoints.setdefault(place, Endpoint(place)),
        patience=Patience(deadline_s=one.deadline_s, try_s=one.try_s),
        wire=wire,
        stop=stop,
    )
    if config.budget.dollars is not None and model.price is None:
        raise ConfigError(
            f"the price of {one.name} is not known, so the budget of {config.budget.dollars:g} dollars cannot be held. "
            f"Give dollars per million tokens (--set models.{key}.price_in=… --set models.{key}.price_out=…, 0 if "
            "it is free), or set a budget in tokens or hours instead."
        )
    return model


def worst_dollars(config: Config, tokens_in: int, tokens_out: int) -> float:
    """An upper bound for one call of the dearest model; 0 where all are free."""
    with contextlib.closing(LiteLLMWire()) as wire:
        models = [_one(key, config, wire, {}, NoLimit(), threading.Event(), keys=False) for key in config.models]
        prices = [one.price for one in models if isinstance(one, LiteLLMModel)]
    return max((price.worst(tokens_in, tokens_out) for price in prices if price is not None), default=0.0)


class LocalModel(Model):
    """A model in this process, held to a budget in tokens: its answer, which costs nothing, is handed over if it fits.
    Thread-safe if the model is."""

    def __init__(self, model: Model, purse: Purse) -> None:
        self.name, self._model, self._purse = model.name, model, purse

    def answer(self, request: ModelRequest) -> Reply:
        try:
            reply = self._model.answer(request)
        except ModelFailed as failure:
            self._book(failure.calls)
            raise
        self._book(reply.calls)
        return reply

    def _book(self, calls: Sequence[Call]) -> None:
        tokens = sum(call.tokens_in + call.tokens_out for call in calls)
        if not self._purse.set_aside(0.0, tokens):
            raise ModelFailed(f"a call of {self.name}, {tokens} tokens, is beyond the budget", "budget")
        self._purse.book(0.0, tokens, 0.0, tokens)


def price_of(one: ModelConfig) -> Price | None:
    """As configured; a server on this machine or network costs nothing unless it says so."""
    if one.price_in is not None and one.price_out is not None:
        cached = one.price_cached / MILLION if one.price_cached is not None else None
        return Price(one.price_in / MILLION, one.price_out / MILLION, cached)
    return Price(0.0, 0.0) if one.base_url is not None and _near(one.base_url) else None


def _near(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal"))
    return address.is_loopback or address.is_private
