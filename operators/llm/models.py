"""Models made of others: several as one by weight, or a script, with no network and no cost."""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
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

    name = NAME

    def __init__(self, script: Script | None = None) -> None:
        self._script = script or first_offer
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


class Ensemble(Model):
    """A model made of models. Thread-safe.

    The opening of a conversation (its first two messages) decides who answers, so that it stays with one member, whose
    cache holds it. Where a member cannot answer (down, too long, refused, beyond the budget), the next one is asked;
    one that is invalid is not asked again. `weights`: by member, relative, 1 where not given. A member of weight 0 is
    asked only where no other can answer.
    """

    name = "ensemble"

    def __init__(self, members: Sequence[Model], weights: Mapping[str, float] | None = None) -> None:
        self._members = {member.name: member for member in members}
        if not members or len(self._members) != len(members):
            raise ValueError("an ensemble needs at least one model, each with a name of its own")
        self._weights = {name: float((weights or {}).get(name, 1.0)) for name in self._members}
        self._invalid: set[str] = set()

    def answer(self, request: ModelRequest) -> Reply:
        """See Model. What the members spent that could not answer is in the reply's `earlier`."""
        earlier: list[Call] = []
        failures: list[ModelFailed] = []
        for name in self._order(request.messages):
            try:
                reply = self._members[name].answer(request)
            except ModelFailed as failure:
                earlier += failure.calls
                failures.append(failure)
                if failure.kind == "invalid":
                    self._invalid.add(name)
                continue
            return Reply(reply.message, reply.call, reply.finish, (*earlier, *reply.earlier))
        reasons = "; ".join(failure.reason for failure in failures)
        raise ModelFailed(reasons, _kind(failures), tuple(earlier)) from failures[-1]

    def _order(self, messages: Sequence[Message]) -> list[str]:
        """Members to ask, best first: weighted rendezvous hashing of the conversation's opening."""
        opening = "\0".join(message.content for message in messages[:2])

        def waits(name: str) -> float:
            drawn = int.from_bytes(hashlib.sha256(f"{name}\0{opening}".encode()).digest()[:8]) + 1
            return -math.log(drawn / 2**64) / self._weights[name] if self._weights[name] else math.inf

        names = [name for name in self._members if name not in self._invalid] or list(self._members)
        return sorted(names, key=waits)


def _kind(failures: Sequence[ModelFailed]) -> str:
    """The failure that leaves most hope: what is down comes back, a budget does not."""
    kinds = {failure.kind for failure in failures}
    for kind in ("stopped", "down", "budget", "malformed", "refused", "too long"):
        if kind in kinds:
            return kind
    return failures[-1].kind
