"""Parses the printed form of types."""

from __future__ import annotations

import re
from functools import lru_cache

from evo_kernel.fitness.ir.types import BITS, IRError, Type

MAX_DEPTH = 64


MAX_ELEMENTS = 1 << 20
"""Elements of one tensor: Triton's limit (TRITON_MAX_TENSOR_NUMEL)."""


_SCALAR = re.compile(r"[a-z][A-Za-z0-9]*")


_SIGNED = re.compile(r"^[su]i(?=\d)")  # blocks of descriptors have a signedness
_NAMED = re.compile(r"![\w.]+")
_SIZE = re.compile(r"(\d{1,9})x")


@lru_cache(maxsize=1024)  # of the thousand types of a kernel, most are the same few
def parse_type(text: str) -> Type:
    """Parse a type as MLIR prints it. Raises IRError."""
    type_, rest = leading_type(text.strip(), 0)
    if rest.strip():
        raise IRError(f"unreadable type {text[:80]}")
    return type_


def leading_type(text: str, depth: int) -> tuple[Type, str]:
    """The type at the start of a text, and the rest."""
    if depth > 4:
        raise IRError("types are nested too deep")
    if text.startswith(("!tt.ptr<", "!tt.tensordesc<")):
        inside, rest = bracketed(text[text.index("<") :])
        if text.startswith("!tt.ptr<"):
            return Type("ptr", None, leading_type(split_top(inside, ",")[0], depth + 1)[0]), rest
        pointee = leading_type(inside, depth + 1)[0] if inside.startswith("tensor<") else tensor_type(inside, depth)
        return Type("desc", None, pointee), rest
    if text.startswith("tensor<"):
        inside, rest = bracketed(text[len("tensor") :])
        return tensor_type(inside, depth), rest
    if text.startswith("!"):
        name = _NAMED.match(text)
        if name is None:
            raise IRError(f"unreadable type {text[:80]}")
        rest = text[name.end() :]
        inside, rest = bracketed(rest) if rest.startswith("<") else ("", rest)
        return Type(name[0], None, None, inside), rest
    match = _SCALAR.match(text)
    if match is None:
        raise IRError(f"unreadable type {text[:80]}")
    return Type(_SIGNED.sub("i", match[0])), text[match.end() :]


def tensor_type(inside: str, depth: int) -> Type:
    body, *encoding = split_top(inside, ",")
    shape: list[int] = []
    while match := _SIZE.match(body):
        shape.append(int(match[1]))
        body = body[match.end() :]
    element = leading_type(body, depth + 1)[0]
    tensor = Type(element.element, tuple(shape), element.pointee, ",".join(encoding).strip())
    if tensor.elements > MAX_ELEMENTS or len(shape) > 20 or (element.element not in BITS and element.element != "ptr"):
        raise IRError(f"a tensor<{inside[:80]}> is more than the executor holds")
    return tensor


def bracketed(text: str) -> tuple[str, str]:
    """The content of the bracket at the start of a text, and the rest."""
    depth = 0
    for position, character in enumerate(text):
        if character in "<([{":
            depth += 1
        elif character in ")]}" or (character == ">" and text[position - 1] != "-"):
            depth -= 1
            if depth == 0:
                return text[1:position], text[position + 1 :]
    raise IRError(f"an open bracket in {text[:80]}")


def split_top(text: str, separator: str) -> list[str]:
    """Parts of a text between separators outside all brackets, stripped."""
    if separator not in text:
        return [text.strip()]
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        if depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position].strip())
            position = start = position + len(separator)
            continue
        if character in "<([{":
            depth += 1
        elif character in ")]}" or (character == ">" and text[position - 1 : position] != "-"):
            depth -= 1
        position += 1
    return [*parts, text[start:].strip()]


def parse_types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("("):
        text = bracketed(text)[0]
    return [parse_type(part) for part in split_top(text, ",")] if text else []
