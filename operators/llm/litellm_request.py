"""One request to litellm: an answer or a fault comes back. Tests replace this part.

litellm is imported by the first call (seconds, 170 MB). Requests run on an event loop in a thread of their own: only
there can a call be cancelled for good when its time is up, however slowly the endpoint drips.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import email.utils
import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from operators.llm.base import ToolCall, sound
from operators.llm.limits import Price
from operators.llm.transcript import redact

LOOK_S = 0.5  # how often a waiting thread looks whether it is to stop
OURS = "evo-kernel"  # the source of entries that this process added to litellm's table
CLOSE_S = 2.0  # for calls under way to be cancelled, and again for the loop to end
_import_lock = threading.Lock()


@dataclass(frozen=True)
class ModelAnswer:
    """What came back, in our words. `dollars` as litellm reckons; None where it knows no price."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish: str  # as the provider says: "stop", "length", "tool_calls", "content_filter"
    refusal: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    dollars: float | None


class ModelFault(Exception):
    """One try that brought no answer.

    `kind`: "busy" (429) | "broken" (5xx, resets, no connection, no JSON) | "timeout" | "overflow" | "refused" |
    "invalid" | "stopped". `billed`: an answer may have been under way when it was lost, and be charged for.
    """

    def __init__(self, kind: str, reason: str, retry_after_s: float | None = None, billed: bool = False) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.retry_after_s, self.billed = kind, reason, retry_after_s, billed


@dataclass(frozen=True)
class Facts:
    """What litellm's own table says of a model."""

    price: Price | None
    structured: bool  # can be held to a JSON schema
    cache_marks: bool  # takes marks on what to cache; others cache by themselves or not at all
    longest_output: int | None  # tokens


def load_litellm() -> Any:
    """litellm with its remote look-ups off, silent, and with nobody called back."""
    with _import_lock:
        return _prepared()


@cache
def _prepared() -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"] = "True"
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")  # else it reads a .env file of the working folder
    import litellm

    litellm.suppress_debug_info = True
    litellm.drop_params = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # every failure is a row; logs may quote requests
    return litellm


def unknown_provider(model: str) -> str:
    """That litellm cannot place a name, in a sentence; empty where it can."""
    litellm = load_litellm()
    try:
        litellm.get_llm_provider(model)
    except Exception:  # noqa: BLE001 (litellm raises what it likes for a name that it cannot place)
        return (
            f"litellm knows no provider of a model {model!r}. Write provider/name, for example openai/{model} or "
            f"ollama/{model}, or give the address of a server of your own (--base-url)."
        )
    return ""


def missing_key(model: str) -> str:
    """Which variables of the environment a provider's model needs and has not, in a sentence; empty where none."""
    missing = load_litellm().validate_environment(model).get("missing_keys") or ()
    return f"{model} needs {' and '.join(missing)} in the environment. Put the key there." if missing else ""


class LiteLLMWire:
    """Carries requests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def facts(self, model: str, local: bool) -> Facts:
        """`local`: asked at a base URL of the user's, where a public price does not hold."""
        litellm = load_litellm()
        try:
            info: Mapping[str, Any] = litellm.get_model_info(model)
        except Exception:  # noqa: BLE001 (litellm raises plain exceptions for models that are not in its table)
            info = {}
            if local:
                # litellm prices every answer, and looks for a name that it does not know in a dozen ways each time, a
                # fifth of what an answer costs: it goes into its table. What it finds is not used.
                entry = {"litellm_provider": model.partition("/")[0], "mode": "chat", "source": OURS}
                litellm.register_model({model: entry})
        if litellm.model_cost.get(model, {}).get("source") == OURS:
            info = {}
        marks = "claude" in model.lower() and not local
        return Facts(
            price=None if local else _price(info),
            structured=bool(info.get("supports_response_schema")),
            cache_marks=marks and bool(info.get("supports_prompt_caching")),
            longest_output=info.get("max_output_tokens"),
        )

    def send(self, request: Mapping[str, Any], timeout_s: float, stop: threading.Event) -> ModelAnswer:
        """Raises ModelFault. Never takes much longer than `timeout_s` seconds, nor goes on when `stop` is set."""
        litellm = load_litellm()
        future = asyncio.run_coroutine_threadsafe(self._ask(litellm, request, timeout_s), self._running())
        try:
            while not concurrent.futures.wait((future,), LOOK_S).done:
                if stop.is_set():
                    raise ModelFault("stopped", "the run was stopped", billed=True)
            return future.result()
        except ModelFault:
            raise
        except Exception as error:  # noqa: BLE001 (litellm lets through what its dependencies raise; `_fault` sorts it)
            raise _fault(error, litellm) from None  # the cause may quote a request
        finally:
            future.cancel()

    @staticmethod
    async def _ask(litellm: Any, request: Mapping[str, Any], timeout_s: float) -> ModelAnswer:
        # In this task litellm writes no log entries: nobody listens, and they are a fifth of what an answer costs.
        with contextlib.suppress(ImportError):  # a switch inside of litellm: where it is gone, all is right, but slower
            from litellm._internal_context import is_internal_call

            is_internal_call.set(True)
        # max_retries: the OpenAI client would otherwise retry by itself, unseen.
        try:
            async with asyncio.timeout(timeout_s):
                raw = await litellm.acompletion(**request, timeout=timeout_s, max_retries=0, num_retries=0)
        except TimeoutError:
            raise ModelFault("timeout", f"no complete answer within {timeout_s:.1f} s", billed=True) from None
        return _answer(raw)

    def close(self) -> None:
        """End the loop, its threads, and what litellm left in it, which would complain when the process ends. May be
        used again. Idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(timeout=CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_S)
        if not thread.is_alive():
            loop.close()  # lets go of the threads that looked up names, too

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="model-calls", daemon=True)
                self._thread.start()
            return self._loop


async def _cancel_others() -> None:
    """Cancel every other task of this loop, and let them end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _price(info: Mapping[str, Any]) -> Price | None:
    read, write = info.get("input_cost_per_token"), info.get("output_cost_per_token")
    if read is None or write is None:
        return None
    plain = re.compile(r"(input_cost_per_token|cache_creation_input_token_cost)(_above_\d+k_tokens|_above_1hr)?$")
    dear = re.compile(r"output_cost_per_(reasoning_)?token(_above_\d+k_tokens)?$")
    reads = [value for name, value in info.items() if plain.match(name) and value]
    writes = [value for name, value in info.items() if dear.match(name) and value]
    return Price(read, max([write, *writes]), info.get("cache_read_input_token_cost"), max([read, *reads]))


def _answer(raw: Any) -> ModelAnswer:
    if not getattr(raw, "choices", None):
        raise ModelFault("broken", "the endpoint answered without choices", billed=True)
    choice, usage = raw.choices[0], getattr(raw, "usage", None)
    message = choice.message
    calls = tuple(
        ToolCall(call.id or f"call_{i}", _text(call.function.name), _text(call.function.arguments))
        for i, call in enumerate(message.tool_calls or ())
    )
    details = getattr(usage, "prompt_tokens_details", None)
    refusal = getattr(message, "refusal", None) or (message.provider_specific_fields or {}).get("refusal") or ""
    dollars = (getattr(raw, "_hidden_params", None) or {}).get("response_cost")  # None where it knows no price
    return ModelAnswer(
        text=_text(message.content),
        tool_calls=calls,
        finish=choice.finish_reason or "stop",
        refusal=_text(refusal),
        tokens_in=getattr(usage, "prompt_tokens", 0) or 0,
        tokens_out=getattr(usage, "completion_tokens", 0) or 0,
        tokens_cached=getattr(details, "cached_tokens", 0) or 0,
        dollars=dollars,
    )


def _text(value: Any) -> str:
    return sound(value if isinstance(value, str) else json.dumps(value) if value is not None else "")


OVERFLOW = re.compile(r"context.{0,10}(length|limit|window|size)|prompt is too long|too many tokens", re.IGNORECASE)
FILTERED = re.compile(r"['\"]?code['\"]?:\s*['\"]content_(policy|filter)")


def _fault(error: Exception, litellm: Any) -> ModelFault:
    """litellm's exceptions, sorted into what can be done about them."""
    status, said = 0, f"{error} {getattr(error, 'body', '')}"
    with contextlib.suppress(TypeError, ValueError):
        status = int(getattr(error, "status_code", 0))
    reason = redact(f"{type(error).__name__}: {error}")[:1000]
    if isinstance(error, litellm.ContextWindowExceededError) or (status in {400, 413, 422} and OVERFLOW.search(reason)):
        return ModelFault("overflow", reason)
    if isinstance(error, litellm.ContentPolicyViolationError) or (status in {400, 403, 422} and FILTERED.search(said)):
        return ModelFault("refused", reason)
    causes = _causes(error)
    unreached = bool(causes & {"ConnectError", "ConnectTimeout", "ClientConnectorError", "ConnectionRefusedError"})
    if isinstance(error, litellm.Timeout):
        return ModelFault("timeout", reason, billed=not unreached)
    if "insufficient_quota" in said:
        return ModelFault("invalid", reason)  # comes as a 429, but no wait helps
    if isinstance(error, litellm.RateLimitError) or status == 429:
        return ModelFault("busy", reason, _retry_after(error))
    if status in {400, 401, 402, 403, 404, 405, 413, 422}:
        return ModelFault("invalid", reason)
    # litellm makes a 500 of connections that broke and of answers that are no JSON. What the endpoint itself
    # answered with an error is free, and so is what never reached it.
    said_so = "HTTPStatusError" in causes or getattr(error, "litellm_response_headers", None) is not None
    return ModelFault("broken", reason, _retry_after(error), billed=not said_so and not unreached)


def _causes(error: BaseException | None) -> set[str]:
    """Names of the exceptions that led to this one: litellm keeps them, and wraps them beyond telling apart."""
    names: set[str] = set()
    while error is not None and len(names) < 20:
        names.add(type(error).__name__)
        error = error.__cause__ or error.__context__
    return names


def _retry_after(error: Exception) -> float | None:
    """Seconds, from a Retry-After header that holds seconds or a date."""
    headers = getattr(error, "litellm_response_headers", None)
    headers = headers or getattr(getattr(error, "response", None), "headers", None) or {}
    value = str(headers.get("retry-after") or "").strip()
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
