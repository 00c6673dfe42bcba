"""Language models for a run: opened from the configuration, held to its ledger, with every call stored."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from evo_kernel import user_cache
from evo_kernel.budget import Ledger
from evo_kernel.config import Config, ModelConfig
from evo_kernel.errors import ConfigError
from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, ModelRequest, Reply
from operators.llm.limits import Endpoint, NoLimit, Purse
from operators.llm.litellm_model import LiteLLMModel, Patience, Price
from operators.llm.litellm_request import LiteLLMWire, missing_key, unknown_provider
from operators.llm.models import Ensemble
from operators.llm.transcript import redactor
from operators.open_model import open_model

if TYPE_CHECKING:
    from populations.population import LineagePopulation

MILLION = 1e6


@contextlib.contextmanager
def opened(
    config: Config, purse: Purse, stop: threading.Event, *, keys: bool = True
) -> Iterator[tuple[Model, Sequence[Endpoint]]]:
    """The configured models as one, and their endpoints. Raises UserError for what cannot work.

    `keys`: a missing key is among that; else the models are only looked at.
    """
    for one in config.models.values() if keys else ():
        user_cache.kept(_key_and_place(one), SAID, str)
    endpoints = dict[str, Endpoint]()
    with contextlib.closing(LiteLLMWire()) as wire:
        members = {key: _one(key, config, wire, endpoints, purse, stop, keys=keys) for key in config.models}
        weights = {member.name: config.models[key].weight for key, member in members.items()}
        if len(weights) < len(members):
            names = ", ".join(member.name for member in members.values())
            raise ConfigError(f"two models have one name ({names}): calls could not be told apart. Drop one.")
        made = list(members.values())
        yield made[0] if len(made) == 1 else Ensemble(made, weights), tuple(endpoints.values())


SAID = "said"
"""Suffix of files of the user's cache: keys went to these places before."""


def _key_and_place(one: ModelConfig) -> list[str | None]:
    return [one.api_key_env, one.base_url or one.name]


def strange_place(config: Config, set_keys: Container[str]) -> str:
    """To which place that no run of this user had before a key would go, and how to allow it; empty where to none.
    `set_keys`: what the user said now."""
    for name, one in config.models.items():
        said = f"models.{name}.api_key_env" in set_keys or f"models.{name}.base_url" in set_keys
        if one.api_key_env and not said and not user_cache.path_of(_key_and_place(one), SAID).is_file():
            return (
                f"the key in {one.api_key_env} would go to {one.base_url or one.name}, where no run of yours has sent "
                f"it from this machine. If it belongs there, add --set models.{name}.api_key_env={one.api_key_env}"
            )
    return ""


def lacking_key(one: ModelConfig) -> str:
    """Which key a provider's model lacks, and where to put it; empty where none is missing."""
    return "" if _in_process(one) or one.base_url or one.api_key_env else missing_key(one.name)


def _in_process(one: ModelConfig) -> bool:
    return one.name == "scripted" or one.name.startswith("scratch:")


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


WRONG = 3  # answers in a row that say the question itself is wrong, before no more are asked


class ModelBreaker:
    """Whether a model is worth asking now. Thread-safe.

    Shut for good when the money is out, or when every question is turned down as invalid; for a while, when all
    endpoints are down. `tell` hears of each once.
    """

    def __init__(self, endpoints: Sequence[Endpoint], ledger: Ledger, tell: Callable[[str], None]) -> None:
        self._endpoints, self._ledger, self._tell = endpoints, ledger, tell
        self._lock = threading.Lock()
        self._for_good, self._wrong, self._was_down = "", 0, False

    def heard(self, failure: ModelFailed | None) -> None:
        """How a question went."""
        with self._lock:
            self._wrong = self._wrong + 1 if failure is not None and failure.kind == "invalid" else 0
            news = ""
            if failure is not None and not self._for_good:
                if failure.kind == "budget":
                    news = f"the budget for models is spent: {failure.reason}"
                elif self._wrong >= WRONG:
                    news = f"no model can be asked: {failure.reason}"
            self._for_good = self._for_good or news
        if news:
            self._ledger.out_of_money(news)  # where nothing but models is asked, the run ends
            self._tell(news)

    def shut(self) -> str:
        """Why no model is to be asked now; empty when one may be."""
        with self._lock:
            if self._for_good:
                return self._for_good
            down = self.rest_s() > 0
            news = down != self._was_down
            self._was_down = down
        if news:
            names = ", ".join(endpoint.name for endpoint in self._endpoints)
            self._tell(
                f"models do not answer ({names}); they are asked again later" if down else "models are asked again"
            )
        return "models do not answer for now" if down else ""

    def rest_s(self) -> float:
        """Seconds until an endpoint lets somebody through."""
        return min((endpoint.resting_s() for endpoint in self._endpoints), default=0.0)

    def wait(self) -> None:
        """Until models may be asked, or the run is over."""
        while (rest := self.rest_s()) > 0 and not self._ledger.ending(min(rest, 5.0)):
            pass


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
