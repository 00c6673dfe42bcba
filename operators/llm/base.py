"""The protocol of language models: messages, tools, requests, replies, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evo_kernel.errors import EvoKernelError
from evo_kernel.types import Call

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """What a model wants done. `arguments` is the text it wrote: JSON if it kept to the schema."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One turn. `stable`: all up to and including this message is the same in the next call too, and may be cached."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant
    tool_call_id: str = ""  # of a tool's answer
    stable: bool = False


def size(messages: Sequence[Message]) -> int:
    """UTF-8 bytes of everything that becomes prompt."""
    return sum(
        len(message.content.encode())
        + sum(len(call.name) + len(call.arguments.encode()) for call in message.tool_calls)
        for message in messages
    )


def sound(text: str) -> str:
    """Text that can be stored and sent again: half a surrogate pair, which JSON can spell, cannot."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class Tool:
    """What a model may call. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """An answer and what it cost: `call` is the try that brought it, `earlier` the tries before it, oldest first.

    Whoever keeps rows keeps `calls`: a try that failed may have cost money too.
    """

    message: Message
    call: Call
    finish: str = "stop"  # "stop" | "tool_calls" | "length": cut off | "refused"
    earlier: tuple[Call, ...] = ()

    @property
    def calls(self) -> tuple[Call, ...]:
        return (*self.earlier, self.call)


class ModelFailed(EvoKernelError):
    """No answer could be had, or none may be asked for; `calls` are what was spent on trying.

    `kind`: "budget" (the worst case of the call does not fit), "down" (the endpoint, for now), "stopped" (the run ends
    before an answer came: nobody is at fault), "refused" (a content filter), "too long" (whoever asks may make the
    prompt shorter), "invalid" (credentials, model name, arguments), "malformed" (after a repair there is still no
    answer that fits the schema).
    """

    def __init__(self, reason: str, kind: str, calls: tuple[Call, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.calls = reason, kind, calls


@dataclass(frozen=True)
class ModelRequest:
    """One question. `schema`: the answer is to be one JSON object that fits it. `max_tokens`: of the answer; the
    model's own limit if None."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None


class Model:
    """A language model, or several as one. Thread-safe."""

    name: str

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """The next turn. Raises ModelFailed.

        Where a provider cannot be held to a schema, the door asks for it in words and checks it, so that what returns
        is valid JSON by the schema or ModelFailed.
        """
        return self.answer(ModelRequest(tuple(messages), tuple(tools), schema, max_tokens))

    def answer(self, request: ModelRequest) -> Reply:
        """As `complete`: what a model of its own kind does."""
        raise NotImplementedError
