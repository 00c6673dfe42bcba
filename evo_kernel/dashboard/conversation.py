"""What an agent was told and said, as plain text: turns of an attempt, else calls of models, as they were stored.

The rows were written by models and by tools on their behalf: nothing in them is trusted, not even to be what it should.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import zlib
from typing import Any

from evo_kernel.dashboard.formatting import lines_of

LARGEST = 8_000_000  # bytes that one row may unfold to
ROWS = 400  # turns or calls of an attempt that are shown
SHOWN = 40_000  # characters of one of them


def conversation(connection: sqlite3.Connection, attempt: int) -> str:
    """Of an attempt, oldest first; empty where no model was asked."""
    turns = "SELECT kind, data FROM turns WHERE attempt = ? ORDER BY position LIMIT ?"
    calls = "SELECT model, messages FROM calls WHERE attempt = ? ORDER BY position LIMIT ?"
    found = [(kind, unfold(data)) for kind, data in connection.execute(turns, (attempt, ROWS))]
    found = found or [(model, unpack(packed or "")) for model, packed in connection.execute(calls, (attempt, ROWS))]
    return "\n\n".join(f"=== {_plain(title)}\n{_plain(_text(data))}" for title, data in found)


def _plain(text: str) -> str:
    return "\n".join(lines_of(text[:SHOWN])) + (f"\n… {len(text) - SHOWN} more characters" if text[SHOWN:] else "")


def _text(data: Any) -> str:
    """Strings as they are, so that lines are lines; everything else as JSON."""
    match data:
        case str():
            return data
        case dict():
            return "\n".join(f"{name}: {_text(value)}" for name, value in data.items() if value)
        case list():
            return "\n".join(map(_text, data))
    return json.dumps(data)


def unfold(data: bytes) -> Any:
    """Deflated JSON; a sentence where it is none, or would unfold to more than anyone reads."""
    unfolding = zlib.decompressobj()
    try:
        text = unfolding.decompress(data, LARGEST)
        if unfolding.unconsumed_tail:
            return f"(more than {LARGEST} bytes)"
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError):
        return "(cannot be read)"


def unpack(packed: str) -> Any:
    """What a call holds: plain JSON, or JSON deflated in base64."""
    try:
        if packed[:1] in "[{":
            return json.loads(packed) if packed else ""
        return unfold(base64.b64decode(packed))
    except (ValueError, RecursionError):
        return "(cannot be read)"
