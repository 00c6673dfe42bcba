"""Making a conversation shorter when it has outgrown a model's context."""

from __future__ import annotations

from collections.abc import Sequence

from operators.llm.base import Message

KEEP = 0.6  # share of the bytes that remains after one round
MARK = "[Earlier messages of this conversation were left out here: it had outgrown the context.]"


def size(messages: Sequence[Message]) -> int:
    """UTF-8 bytes of everything that becomes prompt."""
    return sum(
        len(message.content.encode())
        + sum(len(call.name) + len(call.arguments.encode()) for call in message.tool_calls)
        for message in messages
    )


def drop_oldest(messages: Sequence[Message]) -> Sequence[Message] | None:
    """Without the oldest turns after the stable prefix, until KEEP of the bytes are left; None where none may go.

    The prefix (all up to the last stable message, system messages and the first user message: the task) and the last
    turn stay. A tool's answer goes with the call that asked for it.
    """
    head = _prefix(messages)
    turns = _turns(messages[head:])
    limit, dropped = KEEP * size(messages), 0
    while dropped < len(turns) - 1 and size(messages[:head]) + sum(map(size, turns[dropped:])) > limit:
        dropped += 1
    only_mark = dropped == 1 and len(turns) == 2 and turns[0][0].content == MARK
    if not dropped or only_mark:
        return None
    rest = [message for turn in turns[dropped:] for message in turn]
    return (*messages[:head], Message("user", MARK), *rest)


def _prefix(messages: Sequence[Message]) -> int:
    last = max((i for i, message in enumerate(messages) if message.stable), default=-1) + 1
    while last < len(messages) and messages[last].role == "system":
        last += 1
    if not any(message.role == "user" for message in messages[:last]) and last < len(messages) - 1:
        last += messages[last].role == "user"
    return last


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    turns: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns
