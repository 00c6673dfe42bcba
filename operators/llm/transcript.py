"""Messages and requests as plain data without secrets: for the chat-completions protocol, and compressed for a row.

Secrets are the values of environment variables that look like one; they stay out of prompts, rows, errors and logs.
"""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from evo_kernel.types.inflating import inflated
from operators.llm.base import Message, ModelRequest, ToolCall
from operators.llm.structured import whole

SECRET_NAMES = re.compile(r"(API_?KEY|ACCESS_KEY|SECRET_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
SHORTEST = 8  # characters; a shorter value is a flag or a number, and replacing it would garble text

# Well-known shapes, in case an endpoint quotes a key that is in no variable of ours. None is a name in Python.
SHAPES = re.compile(
    r"\bsk-[A-Za-z0-9_\-*]{12,}|\b(?:gsk_|ghp_|gho_|hf_|xai-|nvapi-|AIza)[A-Za-z0-9_\-]{30,}"
    r"|(?<=Bearer )[A-Za-z0-9._\-]{8,}"
)
SIGNS = ("sk-", "gsk_", "ghp_", "gho_", "hf_", "xai-", "nvapi-", "AIza", "Bearer ")
# Each match holds one: looking for these first is a thousand times faster in a long prompt.


def secrets(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Value → name of the variable, longest first, so that a secret within a secret leaves no remains."""
    given = os.environ if environ is None else environ
    named = {given.get(name, ""): name for name in given if _secret(name)}
    found = {value: name for value, name in named.items() if len(value) >= SHORTEST and not os.path.exists(value)}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


@lru_cache(maxsize=4096)  # asked of every variable, several times a call
def _secret(name: str) -> bool:
    return SECRET_NAMES.search(name) is not None


def redactor(environ: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """What replaces every secret by the name of its variable in brackets, as the variables are now.

    A text without any comes back as the same object.
    """
    known = secrets(environ)

    def clean(text: str) -> str:
        for value, name in known.items():
            text = text.replace(value, f"[{name}]")
        for sign in SIGNS:
            if sign in text:
                return SHAPES.sub("[key]", text)
        return text

    return clean


def redact(text: str, environ: Mapping[str, str] | None = None) -> str:
    """One text, see `redactor`."""
    return redactor(environ)(text)


MARKS = 4  # the most cache marks that a provider takes
MARK = {"type": "ephemeral"}
LEVEL = 4  # of zlib: a long prompt in a third of the time that level 6 takes, and 4 % larger


def message_data(message: Message) -> dict[str, Any]:
    """As JSON; what is at its default is left out."""
    data: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        data["tool_calls"] = [dict(vars(call)) for call in message.tool_calls]
    if message.tool_call_id:
        data["tool_call_id"] = message.tool_call_id
    if message.stable:
        data["stable"] = True
    return data


def message_from(data: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in data.get("tool_calls", ()))
    return Message(data["role"], data["content"], calls, data.get("tool_call_id", ""), data.get("stable", False))


def request_data(request: ModelRequest) -> dict[str, Any]:
    data: dict[str, Any] = {"messages": [message_data(message) for message in request.messages]}
    if request.tools:
        data["tools"] = [dict(vars(tool)) for tool in request.tools]  # asdict would copy every schema
    if request.schema is not None:
        data["schema"] = request.schema
    if request.max_tokens is not None:
        data["max_tokens"] = request.max_tokens
    return data


def pack(request: Mapping[str, Any], reply: Mapping[str, Any] | None) -> str:
    """For Call.messages: JSON with `request` and `reply`, without secrets, zlib, base64."""
    text = redact(json.dumps({"request": request, "reply": reply}, ensure_ascii=False))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), LEVEL)).decode()


def unpack(packed: str) -> dict[str, Any]:
    """What `pack` packed; empty for an empty text. Raises ValueError for anything else."""
    return json.loads(inflated(base64.b64decode(packed))) if packed else {}


# -- for litellm ----------------------------------------------------------------------------------------------------


def messages_payload(messages: Sequence[Message], cache_marks: bool) -> list[dict[str, Any]]:
    """`cache_marks`: the first stable message and the last ones carry the providers' mark for prompt caches."""
    stable = [i for i, message in enumerate(messages) if message.stable] if cache_marks else []
    marked = {*stable[:1], *stable[-(MARKS - 1) :]}
    clean = redactor()
    return [_message_payload(message, i in marked, clean) for i, message in enumerate(messages)]


def _message_payload(message: Message, marked: bool, clean: Callable[[str], str]) -> dict[str, Any]:
    content: Any = clean(message.content)
    if marked and content:
        content = [{"type": "text", "text": content, "cache_control": dict(MARK)}]
    payload: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        payload["content"] = content or None
        payload["tool_calls"] = []
        for one in message.tool_calls:
            # Arguments that are no JSON object would make some providers refuse the whole conversation.
            fine = isinstance(whole(one.arguments), dict)
            told = {"name": one.name, "arguments": one.arguments if fine else json.dumps({"unreadable": one.arguments})}
            payload["tool_calls"].append({"id": one.id, "type": "function", "function": told})
    if message.role == "tool":
        payload["tool_call_id"] = message.tool_call_id
    return payload
