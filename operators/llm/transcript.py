"""A request and what came of it as text: compressed for a row."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from operators.llm.base import Message, Tool, ToolCall
from operators.llm.redaction import redact

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


def request_data(
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    schema: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    data: dict[str, Any] = {"messages": [message_data(message) for message in messages]}
    if tools:
        data["tools"] = [dict(vars(tool)) for tool in tools]  # asdict would copy every schema
    if schema is not None:
        data["schema"] = schema
    if max_tokens is not None:
        data["max_tokens"] = max_tokens
    return data


def pack(request: Mapping[str, Any], reply: Mapping[str, Any] | None) -> str:
    """For Call.messages: JSON with `request` and `reply`, without secrets, zlib, base64."""
    text = redact(json.dumps({"request": request, "reply": reply}, ensure_ascii=False))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), LEVEL)).decode()


def unpack(packed: str) -> dict[str, Any]:
    """What `pack` packed; empty for an empty text."""
    return json.loads(zlib.decompress(base64.b64decode(packed))) if packed else {}
