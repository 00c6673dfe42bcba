"""A model that is a script: for demonstrations and tests of the whole path, with no network and no cost."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, ModelRequest, Reply, ToolCall, sound
from operators.llm.structured import problem
from operators.llm.transcript import message_data, pack, request_data

NAME = "scripted"
BYTES_A_TOKEN = 4
CODE = re.compile(r"```(?:python)?\s*\n(.*?)```", re.DOTALL)
SOURCE = re.compile(r"(?:## Source[^\n]*|Its source:)\n```python\n(.*?)```", re.DOTALL)  # not examples, nor relatives
WARPS = re.compile(r"(num_warps\s*=\s*)(\d+)")


@dataclass(frozen=True)
class Asked(ModelRequest):
    """What a script is asked; `number` counts the model's calls from 0."""

    number: int = 0

    @property
    def last(self) -> str:
        return self.messages[-1].content


Script = Callable[[Asked], str | Message]
"""The answer's text, or the message as a whole. May raise ModelFailed."""


class ScriptedModel(Model):
    """Answers by a script. Thread-safe if the script is. Counts tokens as bytes ÷ 4, at no cost."""

    def __init__(self, script: Script | None = None, name: str = NAME) -> None:
        self.name, self._script = name, script or first_offer
        self._lock, self._asked = threading.Lock(), 0

    def answer(self, request: ModelRequest) -> Reply:
        with self._lock:
            number, self._asked = self._asked, self._asked + 1
        said = self._script(Asked(**vars(request), number=number))
        message = said if isinstance(said, Message) else Message("assistant", said)
        calls = tuple(ToolCall(sound(call.id), sound(call.name), sound(call.arguments)) for call in message.tool_calls)
        message = replace(message, content=sound(message.content), tool_calls=calls)  # as real models' are handed over
        call = Call(
            model=self.name,
            tokens_in=sum(len(one.content) for one in request.messages) // BYTES_A_TOKEN,
            tokens_out=len(message.content) // BYTES_A_TOKEN,
            dollars=0.0,
            messages=pack(request_data(request), message_data(message)),
        )
        if request.schema is not None and not message.tool_calls:
            try:
                wrong = problem(json.loads(message.content), request.schema)
            except json.JSONDecodeError as error:
                wrong = f"it is no JSON: {error}"
            if wrong:
                raise ModelFailed(f"the script's answer does not fit the schema: {wrong}", "malformed", (call,))
        return Reply(message, call, "tool_calls" if message.tool_calls else "stop")


def first_offer(asked: Asked) -> str:
    """The built-in script: of choices, the first one; of code, the source to work on, with another number of warps.

    So a policy picks the first offer, a coder makes the same small edit every time, and an agent with tools ends its
    conversation at once.
    """
    if asked.schema is not None:
        return json.dumps(smallest(asked.schema))
    found = [block for message in asked.messages for block in SOURCE.findall(message.content)]
    found = found or [block for message in asked.messages for block in CODE.findall(message.content) if "def " in block]
    if not found:
        return "Nothing to do."
    code = found[-1]
    edited = WARPS.sub(lambda found: f"{found[1]}{4 if found[2] == '8' else 8}", code, count=1)
    return f"```python\n{edited if edited != code else code.rstrip() + chr(10) + '# as it was' + chr(10)}```"


def smallest(schema: Mapping[str, Any]) -> Any:
    """A value that fits a schema of ours: first of an enumeration, least number, required properties only."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return smallest(schema["anyOf"][0])
    match schema["type"]:
        case "object":
            return {name: smallest(schema["properties"][name]) for name in schema["required"]}
        case "array":
            return [smallest(schema["items"]) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "string":
            return "scripted".ljust(schema.get("minLength", 0), ".")
    return None
