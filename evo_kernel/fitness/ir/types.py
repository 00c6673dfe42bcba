"""Types of Triton IR values, and the torch dtypes that represent them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch


class IRError(Exception):
    """The text is not IR that the executor can read or execute; the message names the operation."""


DTYPES = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "index": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2,
}  # fmt: skip
BITS = {
    "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    "f8E4M3FN": 8, "f8E5M2": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """A scalar or tensor type. `element`: an entry of DTYPES, `ptr` or `desc`; `pointee`: the type that those point to.

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
        return torch.int64 if self.element == "ptr" else DTYPES[self.element]

    @property
    def bits(self) -> int:
        return 64 if self.element == "ptr" else BITS[self.element]

    @property
    def is_float(self) -> bool:
        return self.element[0] in "fb"

    @property
    def is_integer(self) -> bool:
        return self.element in ("i1", "i8", "i16", "i32", "i64", "index")

    @property
    def item_bytes(self) -> int:
        """Bytes of one element in memory; a boolean has one."""
        return max(1, self.bits // 8)

    def of(self, element: str) -> Type:
        """The same shape with another element type."""
        return Type(element, self.shape, None, self.encoding)

    def shaped(self, shape: tuple[int, ...] | None) -> Type:
        """The same element type with another shape."""
        return Type(self.element, shape, self.pointee)

    def __str__(self) -> str:
        element = f"!tt.{self.element}<{self.pointee}>" if self.pointee else self.element
        return element if self.shape is None else f"tensor<{'x'.join(map(str, (*self.shape, element)))}>"


def dims(type_: Type) -> tuple[int, ...]:
    """Sizes of a value's own axes; none for a scalar."""
    return type_.shape or ()


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
