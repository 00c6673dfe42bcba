"""One JSON object by a schema, from models that cannot be held to it: asked for in words, read strictly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from operators.llm.base import Message

FENCE = re.compile(r"```[a-zA-Z]*[^\S\n]*\n(.*?)```", re.DOTALL)
THINKING = re.compile(r"^\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
DECODER = json.JSONDecoder()


class MalformedJson(ValueError):
    """What is wrong with an answer, in words for the model that wrote it."""


def in_words(messages: Sequence[Message], schema: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages, with the request for JSON at the end of the last one: what is stable before it stays so."""
    request = (
        "Answer with exactly one JSON object and nothing else, no prose and no code fence. "
        f"It must fit this JSON schema:\n{json.dumps(schema, sort_keys=True)}"
    )
    last = messages[-1]
    if last.role == "user" and not last.stable:
        return (*messages[:-1], replace(last, content=f"{last.content}\n\n{request}"))
    return (*messages, Message("user", request))


def repair(answer: str, problem: str) -> tuple[Message, Message]:
    """The turn that asks for a correction. The wrong answer is quoted, its tail left out if long."""
    shown = answer if len(answer) <= 4000 else answer[:4000] + "\n[the rest is left out here]"
    return (
        Message("assistant", shown or "(empty)"),
        Message("user", f"That cannot be used: {problem}. Answer again, with the one JSON object and nothing else."),
    )


def read(text: str, schema: Mapping[str, Any]) -> str:
    """The one JSON object in `text`, as compact JSON. Raises MalformedJson.

    Prose and fences around it are forgiven; two different objects are not, because choosing would be guessing.
    """
    found = _objects(THINKING.sub("", text))
    if not found:
        raise MalformedJson("it holds no JSON object")
    fitting = {json.dumps(one, ensure_ascii=False): one for one in found if not problem(one, schema)}
    if len(fitting) == 1:
        return next(iter(fitting))
    if fitting:
        raise MalformedJson(f"it holds {len(fitting)} different JSON objects that fit the schema, not one")
    raise MalformedJson(problem(found[0], schema) if len(found) == 1 else "none of its JSON objects fits the schema")


def problem(value: Any, schema: Mapping[str, Any]) -> str:
    """Why a value does not fit, most telling reason first; empty when it does."""
    from jsonschema import Draft202012Validator  # a tenth of a second
    from jsonschema.exceptions import best_match

    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a text holds half of a surrogate pair, which cannot be stored"
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is None:
        return ""
    return f"at {error.json_path}: {_in_words(error)}"


def _in_words(error: Any) -> str:
    """A validator's finding; of sizes it says neither the size nor the limit."""
    counted = "items" if isinstance(error.instance, list) else "characters"
    if error.validator in ("minLength", "minItems"):
        return f"{len(error.instance)} {counted}, at least {error.validator_value} are needed"
    if error.validator in ("maxLength", "maxItems"):
        return f"{len(error.instance)} {counted}, at most {error.validator_value} are taken"
    return error.message[:300]


def strict(schema: Any) -> bool:
    """Whether providers accept it as a strict one: every object closed, with all of its properties required."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "object" or "properties" in schema:
            names = set(schema.get("properties", {}))
            if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != names:
                return False
        return all(strict(value) for value in schema.values())
    return all(strict(value) for value in schema) if isinstance(schema, list | tuple) else True


def _objects(text: str) -> list[dict[str, Any]]:
    """Outermost JSON objects: the text as a whole, else those inside fences, else those anywhere."""
    for piece in ([text], FENCE.findall(text)):
        values = [value for value in map(whole, piece) if isinstance(value, dict)]
        if values:
            return values
    found, at = [], text.find("{")
    while at >= 0:
        try:
            value, end = DECODER.raw_decode(text, at)
            found.append(value)
        except (json.JSONDecodeError, RecursionError):
            end = at + 1
        at = text.find("{", end)
    return found


def whole(text: str) -> Any:
    """What a text says as JSON; None where it is none."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
