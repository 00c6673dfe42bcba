"""Messages and requests as plain data: as the chat-completions protocol has them, and compressed for a row."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from operators.llm.base import Message, ModelRequest, Tool, ToolCall
from operators.llm.redaction import redact, redactor
from operators.llm.structured import strict

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
    """What `pack` packed; empty for an empty text."""
    return json.loads(zlib.decompress(base64.b64decode(packed))) if packed else {}


# -- for litellm ----------------------------------------------------------------------------------------------------


def messages_payload(messages: Sequence[Message], cache_marks: bool) -> list[dict[str, Any]]:
    """`cache_marks`: the first stable message and the last ones carry the providers' mark for prompt caches."""
    stable = [i for i, message in enumerate(messages) if message.stable] if cache_marks else []
    marked = {*stable[:1], *stable[-(MARKS - 1) :]}
    clean = redactor()
    return [_message_payload(message, i in marked, clean) for i, message in enumerate(messages)]


def tools_payload(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    empty = {"type": "object", "properties": {}}
    return [
        {"type": "function", "function": {**vars(tool), "parameters": dict(tool.parameters) or empty}} for tool in tools
    ]


def schema_payload(schema: Mapping[str, Any]) -> dict[str, Any]:
    held = {"name": "answer", "schema": dict(schema), "strict": strict(schema)}
    return {"type": "json_schema", "json_schema": held}


def _message_payload(message: Message, marked: bool, clean: Callable[[str], str]) -> dict[str, Any]:
    content: Any = clean(message.content)
    if marked and content:
        content = [{"type": "text", "text": content, "cache_control": dict(MARK)}]
    payload: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        payload["content"] = content or None
        payload["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": _arguments(one.arguments)}}
            for one in message.tool_calls
        ]
    if message.role == "tool":
        payload["tool_call_id"] = message.tool_call_id
    return payload


def _arguments(text: str) -> str:
    """Arguments that are no JSON object would make some providers refuse the whole conversation."""
    try:
        fine = isinstance(json.loads(text), dict)
    except (json.JSONDecodeError, RecursionError):
        fine = False
    return text if fine else json.dumps({"unreadable": text})
