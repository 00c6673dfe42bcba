"""What an agent was told and said, read from the file: turns of attempts, and calls of models.

The rows were written by models and by tools on their behalf: nothing in them is trusted, not even to be what it should.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from populations.connect import fetch_one, has_table

LARGEST = 8_000_000  # bytes that one row may unfold to
SHOWN = 40_000  # characters of one message
ROWS = 400  # turns of an attempt that are shown, the first and the last


@dataclass(frozen=True)
class MessageView:
    role: str  # "system", "user", "assistant", "tool", ...
    about: str  # the tool's name, the model's, what was left out
    text: str


def conversation(connection: sqlite3.Connection, attempt: int) -> list[MessageView]:
    """Of an attempt, oldest first; empty where no model was asked."""
    found = list(_turns(connection, attempt)) if has_table(connection, "turns") else []
    return found or list(_calls(connection, attempt))


def length(connection: sqlite3.Connection, attempt: int) -> int:
    """How many turns or calls there are."""
    tables = ["turns", "calls"] if has_table(connection, "turns") else ["calls"]
    return max(fetch_one(connection, f"SELECT COUNT(*) FROM {table} WHERE attempt = ?", (attempt,)) for table in tables)


def _turns(connection: sqlite3.Connection, attempt: int) -> Iterator[MessageView]:
    last = fetch_one(connection, "SELECT IFNULL(MAX(position), -1) FROM turns WHERE attempt = ?", (attempt,))
    sql = "SELECT kind, data FROM turns WHERE attempt = ? AND (position < ? OR position > ?) ORDER BY position"
    for position, (kind, data) in enumerate(connection.execute(sql, (attempt, ROWS // 2, last - ROWS // 2))):
        if position == ROWS // 2 and last >= ROWS:
            yield MessageView("note", "", f"{last + 1 - ROWS} turns are left out here")
        yield from _of_turn(kind, _unfold(data))


def _of_turn(kind: str, data: Any) -> Iterator[MessageView]:
    if not isinstance(data, dict):
        yield MessageView(kind, "", _text(data))
    elif isinstance(data.get("messages"), list):  # how an attempt opens
        for message in data["messages"]:
            yield from _message(message)
    elif isinstance(data.get("message"), dict):  # what a model answered
        yield from _message(data["message"])
    elif isinstance(data.get("outcome"), dict):  # what a tool gave back
        outcome = data["outcome"]
        if data.get("arguments"):
            yield MessageView("assistant", f"calls {_text(data.get('tool', 'a tool'))[:80]}", _text(data["arguments"]))
        yield MessageView("tool", _text(data.get("tool", ""))[:80], _text(outcome.get("text", outcome)))
    else:
        yield MessageView(kind, "", _text(data))


def _calls(connection: sqlite3.Connection, attempt: int) -> Iterator[MessageView]:
    sql = "SELECT model, messages FROM calls WHERE attempt = ? ORDER BY position LIMIT ?"
    for model, packed in connection.execute(sql, (attempt, ROWS)):
        data = _unpack(packed or "")
        if not isinstance(data, dict):
            if data:
                yield MessageView("call", str(model), _text(data))
            continue
        request, reply = data.get("request"), data.get("reply")
        for message in request.get("messages", ()) if isinstance(request, dict) else ():
            yield from _message(message)
        if isinstance(reply, dict) and isinstance(reply.get("message"), dict):
            yield from _message(reply["message"], str(model))
        elif reply:
            yield MessageView("assistant", str(model), _text(reply))


def _message(data: Any, about: str = "") -> Iterator[MessageView]:
    if not isinstance(data, dict):
        yield MessageView("message", about, _text(data))
        return
    role = _text(data.get("role", "message"))[:20]
    if content := data.get("content"):
        yield MessageView(role, about, _text(content))
    calls = data.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        named = call if isinstance(call, dict) else {}
        named = named["function"] if isinstance(named.get("function"), dict) else named
        yield MessageView(role, f"calls {_text(named.get('name', '?'))[:80]}", _text(named.get("arguments", "")))


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        value = "\n".join(part["text"] for part in value)  # the parts of a content
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n… {len(text) - SHOWN} more characters"


def _unfold(data: bytes) -> Any:
    """Deflated JSON; a sentence where it is none, or would unfold to more than anyone reads."""
    unfolding = zlib.decompressobj()
    try:
        text = unfolding.decompress(data, LARGEST)
        if unfolding.unconsumed_tail:
            return f"(more than {LARGEST} bytes)"
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError):
        return "(cannot be read)"


def _unpack(packed: str) -> Any:
    """What a call holds: plain JSON, or JSON deflated in base64."""
    if packed[:1] in "[{":
        try:
            return json.loads(packed) if packed else None
        except (ValueError, RecursionError):
            return "(cannot be read)"
    try:
        return _unfold(base64.b64decode(packed))
    except ValueError:
        return "(cannot be read)"
