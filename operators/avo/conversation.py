"""The conversation of an attempt, of bounded size: a stable opening, a summary of older turns, the latest turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from operators.llm.base import Message, ToolCall, size
from operators.workbench.tool import bounded

COMPACT_AT = 0.8  # share of the bound at which older turns are summed up
CAPS = (6000, 2000, 600, 150)  # characters that the texts of kept turns are cut to, one after the other
OPENING_SHARE = 0.4  # of the bound, at most
MOST_CALLS = 64  # tool calls that an answer is kept with
ARGUMENT_LINE = 160
SUMMARY = "[Earlier turns of this conversation are summed up here. Your files are as you left them.]"


@dataclass(frozen=True)
class ContextLimits:
    """`bytes`: hard bound of a prompt's text. `keep_turns`: the latest turns, which are never summed up."""

    bytes: int = 240_000
    keep_turns: int = 8
    summary_bytes: int = 16_000


@dataclass
class Turn:
    """An answer and what its calls brought, with a line for each of these."""

    messages: list[Message]
    lines: list[str] = field(default_factory=list)

    def cut(self, cap: int) -> None:
        """Its texts to so many characters."""
        self.messages = [_cut(message, cap) for message in self.messages]


class AgentConversation:
    """One attempt's. Not thread-safe."""

    def __init__(self, opening: Sequence[Message], limits: ContextLimits) -> None:
        self._limits = limits
        self._opening = tuple(opening)
        self._summary = ""
        self._turns: list[Turn] = []

    def messages(self) -> tuple[Message, ...]:
        """The prompt. Its size is at most the bound."""
        middle = (Message("user", f"{SUMMARY}\n{self._summary}"),) if self._summary else ()
        return (*self._opening, *middle, *(message for turn in self._turns for message in turn.messages))

    @property
    def bytes(self) -> int:
        return size(self.messages())

    def answer(self, message: Message) -> None:
        """A new turn begins with the model's answer."""
        kept = replace(message, tool_calls=message.tool_calls[:MOST_CALLS], stable=False)
        said = " ".join(message.content.split())
        self._turns.append(Turn([kept], [f"- you said: {said[:300]}"] if said else []))
        self.hold()

    def result(self, call: ToolCall, text: str, failed: bool) -> None:
        turn = self._turns[-1]
        turn.messages.append(Message("tool", text, tool_call_id=call.id))
        turn.lines.append(_line(call, text, failed))
        self.hold()

    def say(self, text: str) -> None:
        """A word of ours after the latest turn."""
        if not self._turns:
            self._turns.append(Turn([]))
        self._turns[-1].messages.append(Message("user", text))
        self.hold()

    # ---- compaction -----------------------------------------------------------------------------------------------

    def due(self) -> int:
        """How many turns are to be summed up now; 0 while all fits."""
        if len(self._turns) <= self._limits.keep_turns or self.bytes <= COMPACT_AT * self._limits.bytes:
            return 0
        return len(self._turns) - self._limits.keep_turns

    @property
    def count(self) -> int:
        """Turns that are not summed up."""
        return len(self._turns)

    def by_rule(self, count: int) -> str:
        """The summary with one line a call of the oldest `count` turns; the oldest lines go where it is too long."""
        lines = self._summary.split("\n") if self._summary else []
        lines += [line for turn in self._turns[:count] for line in turn.lines]
        return _newest(lines, self._limits.summary_bytes)

    def sum_up(self, count: int, summary: str) -> None:
        """Replace the oldest `count` turns, and the summary before, by this summary."""
        self._summary = _newest(summary.split("\n"), self._limits.summary_bytes)
        del self._turns[:count]
        self.hold()

    def hold(self) -> None:
        """Keep to the bound whatever there is in the latest turns."""
        for cap in CAPS:
            for turn in self._turns:
                if self.bytes <= self._limits.bytes:
                    return
                turn.cut(cap)
        while self.bytes > self._limits.bytes and len(self._turns) > 1:
            self._turns.pop(0)


def fitted(opening: Sequence[Message], limits: ContextLimits) -> tuple[Message, ...]:
    """An opening that leaves room for a conversation: its longest texts are cut where it does not."""
    found, room = list(opening), int(OPENING_SHARE * limits.bytes)
    while size(found) > room:
        longest = max(range(len(found)), key=lambda at: len(found[at].content))
        text = found[longest].content
        found[longest] = replace(found[longest], content=bounded(text, max(len(text) * 3 // 4 - 200, 400)))
    return tuple(found)


def _cut(message: Message, cap: int) -> Message:
    calls = [(call, json.dumps({"left_out": f"{len(call.arguments)} characters"})) for call in message.tool_calls]
    calls = tuple(call if len(call.arguments) <= cap else replace(call, arguments=cut) for call, cut in calls)
    return replace(message, content=bounded(message.content, cap), tool_calls=calls)


def _line(call: ToolCall, text: str, failed: bool) -> str:
    arguments = " ".join(call.arguments.split())
    short = arguments if len(arguments) <= ARGUMENT_LINE else f"{arguments[:ARGUMENT_LINE]}…"
    told = " ".join(text.split())[:240]
    return f"- {call.name} {short} -> {'FAILED ' if failed else ''}{told}"


def _newest(lines: Sequence[str], limit: int) -> str:
    """The latest lines that fit into so many bytes."""
    kept: list[str] = []
    left = limit
    for line in reversed(lines):
        left -= len(line.encode()) + 1
        if left < 0:
            kept.append("- (older ones were left out)")
            break
        kept.append(line)
    return "\n".join(reversed(kept))
