"""A model that litellm reaches: any provider, any server that speaks the chat-completions protocol.

What one `complete` does, in this order: set the worst case aside in the purse, ask the endpoint's circuit breaker,
send, and then by what came back: hand it over; wait and try again (429, 5xx, resets, time-outs, empty answers); ask
once for a correction (JSON that does not fit the schema); or give up with a ModelFailed that says what to do. Every try
is a row of its own (`Reply.calls`, `ModelFailed.calls`).
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from evo_kernel.types import Call
from operators.llm import structured
from operators.llm.base import Message, Model, ModelFailed, ModelRequest, Reply, size
from operators.llm.limits import Endpoint, NoLimit, Price, Purse, TokenBound
from operators.llm.litellm_request import Facts, LiteLLMWire, ModelAnswer, ModelFault
from operators.llm.transcript import message_data, messages_payload, pack, redact, request_data

FINISHES = {"function_call": "tool_calls", "content_filter": "refused", "max_tokens": "length"}
DECLINED = re.compile(
    r"\s*(I['’]m sorry,? (but )?|Sorry,? (but )?|I apologi[sz]e,? but )?(I (can(no|['’])t|am unable to|['’]m unable to|"
    r"won['’]t|must decline)|as an AI( language)? model)",
    re.IGNORECASE,
)
JITTER = random.SystemRandom()  # waits are no part of what a run repeats
LONGEST_REFUSAL = 600  # characters; a longer answer has something to say
STOPPED = "the run was stopped"
LIMIT = re.compile(r"maximum context length is (\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Patience:
    """How long and how often. Seconds."""

    deadline_s: float = 900.0  # of one `complete`, waits included
    try_s: float = 300.0  # of one request
    tries: int = 6  # failures that may be waited out
    first_wait_s: float = 1.0  # doubles with every failure; the wait is drawn between nothing and that
    longest_wait_s: float = 60.0


class Conversation:
    """One `complete`: what it has tried so far, and what it may still do. Used by one thread."""

    def __init__(self, model: LiteLLMModel, request: ModelRequest, max_tokens: int) -> None:
        self.model, self.request, self.schema = model, request, request.schema
        self.max_tokens, self.patience = max_tokens, model.patience
        self.ends = time.monotonic() + self.patience.deadline_s
        self.calls: list[Call] = []
        self.failures = 0
        self.correction: tuple[Message, ...] = ()

    def reply(self) -> Reply:
        while True:
            try:
                answer, call = self._try()
            except ModelFault as fault:
                self._cope(fault)
                continue
            reply = self._hand_over(answer, call)
            if reply is not None:
                return reply

    def _hand_over(self, answer: ModelAnswer, call: Call) -> Reply | None:
        """The reply, or None when it has to be asked for again."""
        finish = FINISHES.get(answer.finish, answer.finish)
        finish = "tool_calls" if answer.tool_calls else finish if finish in {"length", "refused"} else "stop"
        text = answer.text or answer.refusal
        declined = len(text) < LONGEST_REFUSAL and "```" not in text and DECLINED.match(text)
        if finish == "stop" and (answer.refusal or declined):
            finish = "refused"
        if finish == "stop" and not text.strip():
            self.calls.append(replace(call, error="an empty answer"))
            self._wait(ModelFault("empty", "an empty answer"))
            return None
        if self.schema is not None and finish != "tool_calls":
            checked = self._checked(text, finish, call)
            if checked is None:
                return None
            text = checked
        message = Message("assistant", text, answer.tool_calls)
        return Reply(message, call, finish, tuple(self.calls))

    def _checked(self, text: str, finish: str, call: Call) -> str | None:
        """The JSON in an answer; None when a correction is to be asked for."""
        assert self.schema is not None
        try:
            return structured.read(text, self.schema)
        except structured.MalformedJson as malformed:
            if finish == "refused":
                self.calls.append(replace(call, error="refused"))
                self._give_up("refused", f"{self.model.name} declined to answer: {text[:200]}")
            wrong = f"{malformed}; it was cut off at {self.max_tokens} tokens" if finish == "length" else str(malformed)
        self.calls.append(replace(call, error=f"malformed: {wrong}"))
        if self.correction:
            self._give_up("malformed", f"{self.model.name} was asked twice for JSON by a schema: {wrong}")
        self.correction = structured.repair(text, wrong)
        return None

    def _try(self) -> tuple[ModelAnswer, Call]:
        """One request. Raises ModelFault, after its row was added; returns the row of a success."""
        model, facts = self.model, self.model.facts()
        messages, request = self._request(facts)
        weight = size(messages) + len(repr(request.get("tools", ""))) + len(repr(request.get("response_format", "")))
        tokens_in = model.bound.tokens(weight, len(messages))
        worst = facts.price.worst(tokens_in, self.max_tokens) if facts.price else None
        tokens = tokens_in + self.max_tokens
        if model.stop.is_set():
            self._give_up("stopped", STOPPED)
        if not model.purse.set_aside(worst, tokens, max(0.0, self.ends - time.monotonic())):
            cost = "a price that is not known (set dollars per token)" if worst is None else f"at most ${worst:.4f}"
            self._give_up("budget", f"this call of {model.name}, {tokens} tokens, {cost}, is beyond the budget")
        began, spent = time.monotonic(), (0.0, 0)
        try:
            self._admit()
            began, spent = time.monotonic(), (worst or 0.0, tokens)  # should anything unforeseen end it
            answer = self._send(request)
            model.bound.learn(weight, len(messages), answer.tokens_in)
            if not answer.tokens_in and not answer.tokens_out:  # it keeps no count: what it can have been at most
                size_out = len(answer.text) + sum(len(call.arguments) for call in answer.tool_calls)
                answer = replace(answer, tokens_in=tokens_in, tokens_out=min(size_out, self.max_tokens))
            call = self._row(messages, began, facts, answer)
            spent = (call.dollars or 0.0, call.tokens_in + call.tokens_out)
            return answer, call
        except ModelFault as fault:
            endpoint = self.model.endpoint
            if fault.kind in {"broken", "timeout"}:
                endpoint.failed()
            elif fault.kind == "busy":
                endpoint.busy(fault.retry_after_s or 0.0)
            elif fault.kind == "stopped":
                endpoint.gave_up()
            else:
                endpoint.worked()
            # What may have been billed counts as billed: a budget must hold against the provider's books, not ours.
            cost = Call(model.name, tokens_in, self.max_tokens, dollars=worst) if fault.billed else Call(model.name)
            spent = (cost.dollars or 0.0, cost.tokens_in + cost.tokens_out)
            said = redact(f"{fault.kind}: {fault.reason}")
            kept = pack(self._kept(messages), None)
            self.calls.append(replace(cost, wall_s=time.monotonic() - began, error=said, messages=kept))
            raise
        finally:
            model.purse.book(worst, tokens, *spent)

    def _send(self, request: Mapping[str, Any]) -> ModelAnswer:
        timeout_s = max(0.1, min(self.patience.try_s, self.ends - time.monotonic()))
        try:
            answer = self.model.wire.send(request, timeout_s, self.model.stop)
        except ModelFault:
            raise
        except BaseException:
            self.model.endpoint.gave_up()
            raise
        self.model.endpoint.worked()
        return answer

    def _request(self, facts: Facts) -> tuple[tuple[Message, ...], dict[str, Any]]:
        messages, request = self.request.messages, dict[str, Any]()
        if self.schema is not None and facts.structured:
            held = {"name": "answer", "schema": dict(self.schema), "strict": structured.strict(self.schema)}
            request["response_format"] = {"type": "json_schema", "json_schema": held}
        elif self.schema is not None:
            messages = structured.in_words(messages, self.schema)
        messages = (*messages, *self.correction)
        if self.request.tools:
            empty = {"type": "object", "properties": {}}
            tools = [{**vars(tool), "parameters": dict(tool.parameters) or empty} for tool in self.request.tools]
            request["tools"] = [{"type": "function", "function": tool} for tool in tools]
        if self.model.temperature is not None:
            request["temperature"] = self.model.temperature
        request |= {"model": self.model.served(), "max_tokens": self.max_tokens}
        request["messages"] = messages_payload(messages, facts.cache_marks)
        return messages, request | self.model.credentials()

    def _admit(self) -> None:
        """Wait while the endpoint wants quiet, give up while its circuit is open."""
        if self.model.stop.is_set():  # since the money was asked for: what others set aside is free now
            self._give_up("stopped", STOPPED)
        endpoint = self.model.endpoint
        quiet_s = endpoint.quiet_s()
        if quiet_s and time.monotonic() + quiet_s > self.ends:
            self._give_up("down", f"{endpoint.name} asks to be left alone for {quiet_s:.0f} s more")
        if quiet_s and self.model.stop.wait(quiet_s + JITTER.uniform(0, min(1.0, quiet_s))):
            self._give_up("stopped", STOPPED)
        if closed_s := endpoint.admit():
            self._give_up("down", f"{endpoint.name} failed many times in a row: asked again in {closed_s:.0f} s")

    def _row(self, messages: tuple[Message, ...], began: float, facts: Facts, answer: ModelAnswer) -> Call:
        dollars = answer.dollars
        if self.model.price is not None or (dollars is None and facts.price is not None):
            assert facts.price is not None
            dollars = facts.price.dollars(answer.tokens_in, answer.tokens_out, answer.tokens_cached)
        elif self.model.base_url is not None:
            dollars = None  # whatever litellm takes for the price of that name elsewhere
        said = message_data(Message("assistant", answer.text or answer.refusal, answer.tool_calls))
        return Call(
            model=self.model.name,
            tokens_in=answer.tokens_in,
            tokens_out=answer.tokens_out,
            tokens_cached=answer.tokens_cached,
            dollars=dollars,
            wall_s=time.monotonic() - began,
            messages=pack(self._kept(messages), said | {"finish": answer.finish}),
        )

    def _kept(self, messages: tuple[Message, ...]) -> dict[str, Any]:
        return request_data(replace(self.request, messages=messages, max_tokens=self.max_tokens))

    def _cope(self, fault: ModelFault) -> None:
        """Do what a fault asks for, so that trying again makes sense; else raises ModelFailed."""
        name, key = self.model.name, self.model.key_env or "its provider's variable"
        if fault.kind == "overflow":
            # Where the room asked for the answer left none for the prompt, ask for less.
            limit = LIMIT.search(fault.reason)
            if limit is None or self.max_tokens <= int(limit[1]) // 2:
                self._give_up("too long", f"{name}: the prompt does not fit: {fault.reason[:300]}")
            self.max_tokens = max(1, int(limit[1]) // 4)
        elif fault.kind == "stopped":
            self._give_up("stopped", fault.reason)
        elif fault.kind == "refused":
            self._give_up("refused", f"{name}: {fault.reason}")
        elif fault.kind == "invalid":
            if self.schema is not None and self.model.facts().structured and "response_format" in fault.reason:
                self.model.words_only()
                return
            self._give_up("invalid", f"{name}: {fault.reason}. Check the model's name, its base URL, the key ({key})")
        else:
            self._wait(fault)

    def _wait(self, fault: ModelFault) -> None:
        self.failures += 1
        left_s = self.ends - time.monotonic()
        most = min(self.patience.first_wait_s * 2 ** min(self.failures - 1, 16), self.patience.longest_wait_s)
        wait_s = (fault.retry_after_s or 0.0) + JITTER.uniform(0.0, most)
        # A busy endpoint is waited for until the deadline: it works, only not for us yet.
        if wait_s >= left_s or (fault.kind != "busy" and self.failures >= self.patience.tries):
            tries = f"after {self.failures} failed tries, the last one {fault.kind}"
            self._give_up("down", f"{self.model.name}, {tries}: {fault.reason}")
        if self.model.stop.wait(wait_s):
            self._give_up("stopped", STOPPED)

    def _give_up(self, kind: str, reason: str) -> NoReturn:
        raise ModelFailed(redact(reason), kind, tuple(self.calls)) from None


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
