"""Types of Triton IR values, the torch dtypes that represent them, and parsing of their printed form."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch


class IRError(Exception):
    """The text is not IR that the executor can read or execute; the message names the operation."""


DTYPES = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2,
}  # fmt: skip
BITS = {
    "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    "f8E4M3FN": 8, "f8E5M2": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """A scalar or tensor type. `element`: an entry of DTYPES, `ptr`, `desc` or `memdesc` (shared memory); `pointee`:
    the type that those point to.

    `shape` is None for a scalar. `encoding` is the layout of a Gluon tensor, as text.
    """

    element: str
    shape: tuple[int, ...] | None = None
    pointee: Type | None = None
    encoding: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape) if self.shape else 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape or ())

    @cached_property
    def dtype(self) -> torch.dtype:
        """The torch dtype of a value; addresses are int64."""
        if self.element not in (*DTYPES, "ptr"):
            raise IRError(f"a value of the type {self.element[:80]} is more than the executor holds")
        return torch.int64 if self.element == "ptr" else DTYPES[self.element]

    @property
    def bits(self) -> int:
        return 64 if self.element == "ptr" else BITS[self.element]

    @property
    def is_float(self) -> bool:
        return self.element[0] in "fb"

    @property
    def is_integer(self) -> bool:
        return self.element in ("i1", "i8", "i16", "i32", "i64")

    @property
    def item_bytes(self) -> int:
        """Bytes of one element in memory; a boolean has one."""
        return max(1, self.bits // 8)

    def of(self, element: str) -> Type:
        """The same shape with another element type."""
        return Type(element, self.shape, None, self.encoding)

    def __str__(self) -> str:
        element = f"!tt.{self.element}<{self.pointee}>" if self.pointee else self.element
        return element if self.shape is None else f"tensor<{'x'.join(map(str, (*self.shape, element)))}>"


def parse_element(text: str, element: str) -> int | float | list[int] | list[float]:
    """The value of a constant's text: a number, `true`, hexadecimal bits of a float, a list, or a string of bytes."""
    text = text.strip()
    if text.startswith('"'):
        return _from_bytes(text, element)
    if text.startswith("["):
        parts = [part for part in text.replace("[", " ").replace("]", " ").replace(",", " ").split() if part]
        return [_number(part, element) for part in parts]  # pyright: ignore[reportReturnType]
    return _number(text, element)


def _number(text: str, element: str) -> int | float:
    try:
        if text in ("true", "false"):
            return int(text == "true")
        if element[0] in "i":
            return int(text, 0)
        if text.startswith("0x"):
            bits = int(text, 16)
            return _from_bytes("0x" + bits.to_bytes(max(1, BITS[element] // 8), "little").hex(), element)[0]
        return float(text)
    except (ValueError, OverflowError) as error:
        raise IRError(f"unreadable number {text[:40]}") from error


def _from_bytes(text: str, element: str) -> list[int] | list[float]:
    """Elements of a dense constant that MLIR prints as hexadecimal bytes."""
    try:
        data = bytearray(bytes.fromhex(text.strip('"').removeprefix("0x")))
        if element == "i1":
            return [int(byte != 0) for byte in data]
        return torch.frombuffer(data, dtype=DTYPES[element]).double().tolist() if element[0] in "fb" else (
            torch.frombuffer(data, dtype=DTYPES[element]).tolist()
        )  # fmt: skip
    except ValueError as error:
        raise IRError(f"unreadable bytes {text[:40]}") from error


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
    if text.startswith(("!ttg.memdesc<", "<")):  # some operations leave the name out
        inside, rest = bracketed(text[text.index("<") :])
        return Type("memdesc", None, tensor_type(inside, depth)), rest
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
