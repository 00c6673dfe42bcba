"""Our messages and tools in the form of the chat-completions protocol, as litellm takes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from operators.llm.base import Message, Tool
from operators.llm.redaction import redactor
from operators.llm.structured import strict

MARKS = 4  # the most cache marks that a provider takes
MARK = {"type": "ephemeral"}


def messages_payload(messages: Sequence[Message], cache_marks: bool) -> list[dict[str, Any]]:
    """`cache_marks`: the first stable message and the last ones carry the providers' mark for prompt caches."""
    stable = [i for i, message in enumerate(messages) if message.stable] if cache_marks else []
    marked = {*stable[:1], *stable[-(MARKS - 1) :]}
    clean = redactor()
    return [_message(message, i in marked, clean) for i, message in enumerate(messages)]


def tools_payload(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    empty = {"type": "object", "properties": {}}
    return [
        {"type": "function", "function": {**vars(tool), "parameters": dict(tool.parameters) or empty}} for tool in tools
    ]


def schema_payload(schema: Mapping[str, Any]) -> dict[str, Any]:
    held = {"name": "answer", "schema": dict(schema), "strict": strict(schema)}
    return {"type": "json_schema", "json_schema": held}


def _message(message: Message, marked: bool, clean: Callable[[str], str]) -> dict[str, Any]:
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
