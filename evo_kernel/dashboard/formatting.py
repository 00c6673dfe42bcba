"""Hostile text made harmless, numbers made readable, and what an agent was told and said as plain text.

Markup is escaped by the templates, always. What is left are characters that mislead: controls, and marks that turn
the direction of writing, so that code reads otherwise than it runs. They are shown by their code points. Conversations
were written by models and by tools on their behalf: nothing in them is trusted, not even to be what it should.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sqlite3
import time
import zlib
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

LONGEST_LINE = 1000  # characters of a line that are shown
MOST_LINES = 4000
HIGHLIGHTED = 64_000  # characters; longer texts are shown plain: colouring them takes seconds

_MISLEADING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def plain(text: str) -> str:
    """The same with misleading characters written out, like ⟨U+202E⟩; tabs and line ends stay."""
    return _MISLEADING.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text.replace("\r\n", "\n"))


def clip(text: str, longest: int = 300) -> str:
    """As one line, cut."""
    line = plain(" ".join(text[: 4 * longest].split()))
    return line if len(line) <= longest and len(text) <= 4 * longest else line[: longest - 1] + "…"


def lines_of(text: str) -> list[str]:
    """What is shown of a text: lines without misleading characters, cut where they are longer than anyone reads."""
    lines = text.replace("\r\n", "\n").split("\n", MOST_LINES)
    left_out = len(lines) > MOST_LINES
    shown = [_cut(line) for line in lines[:MOST_LINES]]
    return [*shown, f"… {len(lines[-1])} more characters are left out here"] if left_out else shown


def _cut(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return plain(line)
    return f"{plain(line[:LONGEST_LINE])} … {len(line) - LONGEST_LINE} more characters in this line"


def highlighted(text: str) -> list[Markup]:
    """Python source as lines of escaped HTML with classes for colours."""
    lines = lines_of(text)
    if sum(map(len, lines)) > HIGHLIGHTED:
        return [Markup.escape(line) for line in lines]
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer = PythonLexer(stripnl=False, ensurenl=False)
    told = highlight("\n".join(lines), lexer, HtmlFormatter(nowrap=True))  # escapes what it is given
    return [Markup(line) for line in told.rstrip("\n").split("\n")]


def micros(us: float | None) -> str:
    if us is None or math.isnan(us):
        return "–"
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 1000 else f"{us:,.0f}"


def ratio(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}×"


def percent(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{100 * value:.0f} %"


def count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def few(value: int) -> str:
    """A count in at most four characters."""
    for unit, name in ((1_000_000, "M"), (1000, "k")):
        if value >= unit:
            return f"{value / unit:.1f}{name}" if value < 10 * unit else f"{value // unit}{name}"
    return str(value)


def hours(value: float) -> str:
    return f"{value:.1f} h" if value >= 2 else f"{60 * value:.1f} min"


def dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 0.01 or not value else f"${value:.4f}"


def ago(at: float | None) -> str:
    """How long since a Unix time."""
    if at is None:
        return "never"
    passed_s = max(0.0, time.time() - at)
    for unit_s, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= 2 * unit_s:
            return f"{passed_s / unit_s:.0f} {name} ago"
    return f"{passed_s:.0f} s ago"


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
