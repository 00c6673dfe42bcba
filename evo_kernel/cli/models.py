"""Language models for a run: opened from the configuration, held to its ledger, every call kept as it is made."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from evo_kernel.budget import Ledger
from evo_kernel.cli.traffic import Traffic
from evo_kernel.config import Config, ModelConfig
from evo_kernel.errors import ConfigError, OperatorFailed
from evo_kernel.types import Brief, Call, Credit, Evaluation, Operator, Probe, Proposal, Resumes
from operators.llm.base import Message, Model, ModelFailed, Reply, Tool
from operators.llm.choose import open_model
from operators.llm.door import LiteLLMModel, Patience, Price
from operators.llm.endpoint import Endpoint
from operators.llm.ensemble import Ensemble
from operators.llm.purse import Purse
from operators.llm.recording import Recorder, Replayer
from operators.llm.redaction import redactor
from operators.llm.wire import LiteLLMWire, unready

REMEMBERED = 10_000  # attempts whose calls wait for their credit
WRONG = 3  # answers in a row that say the question itself is wrong, before no more are asked
MILLION = 1e6


class Spending(Protocol):
    """A population that keeps calls as they are made."""

    def spend(self, attempt: int, calls: Sequence[Call]) -> None: ...

    def calls(self) -> Sequence[tuple[int, bool, str, float | None]]: ...


@dataclass(frozen=True)
class Opened:
    """What answers, and what it takes to know whether it can."""

    model: Model
    endpoints: tuple[Endpoint, ...] = ()
    ensemble: Ensemble | None = None


class LedgerPurse:
    """The run's ledger as the door to models asks it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def reserve(self, dollars: float | None, tokens: int, wait_s: float = 0.0) -> bool:
        return self._ledger.set_aside(dollars, tokens, wait_s)

    def settle(self, dollars: float | None, tokens: int, spent_dollars: float | None, spent_tokens: int) -> None:
        self._ledger.book(dollars, tokens, spent_dollars, spent_tokens)


@contextlib.contextmanager
def opened(config: Config, traffic: Traffic, purse: Purse, stop: threading.Event) -> Iterator[Opened]:
    """The configured models as one, or a recording of them. Raises UserError for what cannot work."""
    with contextlib.ExitStack() as stack:
        wire = LiteLLMWire()
        stack.callback(wire.close)
        found = Opened(Replayer(traffic.replay)) if traffic.replay else _open(config, purse, stop, wire)
        if traffic.record is not None:
            recorder = Recorder(found.model, traffic.record)
            stack.callback(recorder.close)
            found = replace(found, model=recorder)
        yield found


def _open(config: Config, purse: Purse, stop: threading.Event, wire: LiteLLMWire) -> Opened:
    rng = np.random.default_rng([config.seed, 2])  # apart from the draws of the search
    endpoints = dict[str, Endpoint]()
    members = {key: _one(key, one, config, wire, endpoints, purse, stop) for key, one in config.models.items()}
    names = [member.name for member in members.values()]
    if len(set(names)) != len(names):
        raise ConfigError(f"two models have one name ({', '.join(names)}): calls could not be told apart. Drop one.")
    asked = tuple(endpoints.values())
    if len(members) == 1:
        return Opened(next(iter(members.values())), asked)
    weights = {member.name: config.models[key].weight for key, member in members.items()}
    ensemble = Ensemble(list(members.values()), rng, weights=weights)
    return Opened(ensemble, asked, ensemble)


def _one(
    key: str,
    one: ModelConfig,
    config: Config,
    wire: LiteLLMWire,
    endpoints: dict[str, Endpoint],
    purse: Purse,
    stop: threading.Event,
) -> Model:
    if one.name.partition(":")[0] in ("scripted", "replay"):
        return open_model([one.name], np.random.default_rng(config.seed))
    if one.base_url is None and one.api_key_env is None and (reason := unready(one.name)):
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
            f"Say it in dollars a million tokens (--set models.{key}.price_in=… --set models.{key}.price_out=…, 0 if "
            "it is free), or set a budget in tokens or hours instead."
        )
    return model


def price_of(one: ModelConfig) -> Price | None:
    """As configured; a server on this machine or network costs nothing unless it says so."""
    if one.price_in is not None and one.price_out is not None:
        cached = one.price_cached / MILLION if one.price_cached is not None else None
        return Price(one.price_in / MILLION, one.price_out / MILLION, cached)
    return Price(0.0, 0.0) if one.base_url is not None and _near(one.base_url) else None


def known_price(one: ModelConfig) -> Price | None:
    """As configured, else as litellm's own table has it."""
    if one.name.partition(":")[0] in ("scripted", "replay"):
        return Price(0.0, 0.0)
    return price_of(one) or LiteLLMModel(one.name, one.base_url).price


def _near(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal"))
    return address.is_loopback or address.is_private


class Doorman(Protocol):
    """Says whether a model is worth asking now."""

    def wait(self) -> None:
        """Until one may be, or the run is over."""
        ...

    def shut(self) -> str:
        """Why none is; empty when one is."""
        ...


class Gate:
    """Whether a model is worth asking now. Thread-safe.

    Shut for good when the money is out, or when every question is turned down as invalid; for a while, when all
    endpoints are down. `tell` hears of each once.
    """

    def __init__(self, opened: Opened, ledger: Ledger, tell: Callable[[str], None]) -> None:
        self._endpoints, self._ledger, self._tell = opened.endpoints, ledger, tell
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
            if failure is not None and failure.kind == "budget":
                self._ledger.out_of_money(news)
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


class NeedsModel:
    """An operator that is no use without a model: fails at no cost where none can be asked, so that others are drawn.

    `patient`: where there are no others, it waits instead for an endpoint that is down.
    """

    def __init__(self, operator: Operator, gate: Doorman, patient: bool) -> None:
        self.name = operator.name
        self._operator, self._gate, self._patient = operator, gate, patient

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        if self._patient:
            self._gate.wait()
        if reason := self._gate.shut():
            # A conversation that was begun waits for a session that can go on with it.
            raise OperatorFailed(reason, operator=self.name, paused=self.holds(brief))
        return self._operator.propose(brief, probe)

    def holds(self, brief: Brief) -> bool:
        """See evo_kernel.types.Resumes."""
        return isinstance(self._operator, Resumes) and self._operator.holds(brief)

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return self._operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        self._operator.learn(credit)


class Desk:
    """Knows which attempt each thread is at: its calls become rows as they are made, and credit finds its models."""

    def __init__(self, population: Spending, ensemble: Ensemble | None) -> None:
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

    def __init__(self, model: Model, desk: Desk, gate: Gate) -> None:
        self.name = model.name
        self._model, self._desk, self._gate = model, desk, gate

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
            self._desk.keep(failure.calls)
            self._gate.heard(failure)
            raise
        self._desk.keep(reply.calls)
        self._gate.heard(None)
        return replace(reply, message=_cleaned(reply.message, clean))


def _cleaned(message: Message, clean: Callable[[str], str]) -> Message:
    content = clean(message.content)
    arguments = [clean(call.arguments) for call in message.tool_calls]
    if content is message.content and all(
        said is call.arguments for said, call in zip(arguments, message.tool_calls, strict=True)
    ):
        return message  # as nearly all are, and a conversation has hundreds
    calls = tuple(replace(call, arguments=said) for call, said in zip(message.tool_calls, arguments, strict=True))
    return replace(message, content=content, tool_calls=calls)


class AtDesk:
    """An operator whose attempts are known to the desk."""

    def __init__(self, operator: Operator, desk: Desk) -> None:
        self.name = operator.name
        self._operator, self._desk = operator, desk

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        with self._desk.at(brief.attempt):
            try:
                return self._operator.propose(brief, probe)
            except OperatorFailed as failure:
                if not failure.paused:
                    self._desk.earned(brief.attempt, 0.0)
                raise

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return self._operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        if credit.depth == 0:
            self._desk.earned(credit.attempt, credit.log_gain)
        self._operator.learn(credit)
