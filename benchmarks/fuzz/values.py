"""Element types, and contents of buffers from recipes: the same bytes for every version of Python and numpy."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

Array = np.ndarray


@dataclass(frozen=True)
class Type:
    """An element type: its names in Triton, its bits, and 'i', 'u', 'b' (i1), 'f' or '8' (8-bit float)."""

    name: str
    triton: str
    code: str
    bits: int
    kind: str
    mantissa: int = 0  # explicit bits of the fraction
    largest: float = 0.0

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def dtype(self) -> torch.dtype:
        """Of floats."""
        names = {"e4": "float8_e4m3fn", "e5": "float8_e5m2"}
        return getattr(torch, names.get(self.name) or self.triton.removeprefix("tl."))

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def eps(self) -> float:
        """Relative error of one rounding."""
        return 2.0 ** -(self.mantissa + 1)


TYPES = {
    t.name: t
    for t in (
        Type("i32", "tl.int32", "i32", 32, "i"),
        Type("f32", "tl.float32", "fp32", 32, "f", 23, 3.4028234663852886e38),
        Type("i8", "tl.int8", "i8", 8, "i"),
        Type("i16", "tl.int16", "i16", 16, "i"),
        Type("i64", "tl.int64", "i64", 64, "i"),
        Type("u8", "tl.uint8", "u8", 8, "u"),
        Type("u16", "tl.uint16", "u16", 16, "u"),
        Type("u32", "tl.uint32", "u32", 32, "u"),
        Type("u64", "tl.uint64", "u64", 64, "u"),
        Type("f16", "tl.float16", "fp16", 16, "f", 10, 65504.0),
        Type("bf16", "tl.bfloat16", "bf16", 16, "f", 7, 3.3895313892515355e38),
        Type("f64", "tl.float64", "fp64", 64, "f", 52, 1.7976931348623157e308),
        Type("e4", "tl.float8e4nv", "fp8e4nv", 8, "8", 3, 448.0),
        Type("e5", "tl.float8e5", "fp8e5", 8, "8", 2, 57344.0),
        Type("i1", "tl.int1", "i1", 1, "b"),
    )
}
FLOATS = [t for t in TYPES.values() if t.is_float]
EIGHTS = [t for t in TYPES.values() if t.kind == "8"]

_FIELDS = {"f64": (11, 52), "f32": (8, 23), "f16": (5, 10), "bf16": (8, 7), "e4": (4, 3), "e5": (5, 2)}


@dataclass(frozen=True)
class Recipe:
    """What a buffer holds at first: `count` elements of `type`, of this kind, from this seed.

    Kinds: 'bits' (anything), 'edge' (extreme integers, special floats, anything), 'small' (whole numbers from -8 to 8),
    'unit' (floats up to 1), 'below' (integers from 0 to `limit` - 1), 'filler' (bytes 0x5a), 'unwritten'
    (memory that nobody wrote).
    """

    type: str
    count: int
    kind: str
    seed: int = 0
    limit: int = 0

    def bytes(self) -> bytes:
        """The contents."""
        kind = TYPES[self.type]
        if self.kind in ("filler", "unwritten"):
            return b"\x5a" * (self.count * kind.bytes)
        raw = np.frombuffer(random.Random(self.seed).randbytes(8 * self.count), np.uint64)
        return _codes(kind, self.kind, raw, self.limit).astype(f"<u{kind.bytes}").tobytes()


def decode(kind: Type, data: bytes) -> Array:
    """Elements as float64 (floats) or Python-exact integers (int64, uint64)."""
    if kind.kind in "iub":
        code = "<i" if kind.kind == "i" else "<u"
        return np.frombuffer(data, f"{code}{kind.bytes}").astype(np.int64 if kind.kind == "i" else np.uint64)
    return torch.frombuffer(bytearray(data), dtype=kind.dtype).double().numpy()


def _codes(kind: Type, what: str, raw: Array, limit: int) -> Array:
    picks, raw = raw >> np.uint64(40), raw ^ (raw << np.uint64(17))
    mask = np.uint64((1 << kind.bits) - 1)
    if what == "below":
        return picks % np.uint64(limit)
    if kind.kind == "b":
        return picks & np.uint64(1)
    if what == "small":
        low = 0 if kind.kind == "u" else -8
        return np.array([_code(kind, low + int(pick) % 17) for pick in picks], np.uint64)
    if what == "unit":
        return _unit(kind, raw, picks)
    if what == "bits":
        return raw & mask
    special = np.array(_special(kind), np.uint64)
    chosen = special[(picks % np.uint64(len(special))).astype(np.int64)]
    return np.where((picks >> np.uint64(12)) & np.uint64(1), chosen, raw & mask)


def _unit(kind: Type, raw: Array, picks: Array) -> Array:
    """Codes of floats from -1 to 1: an exponent of the last eight octaves, any fraction, any sign."""
    exponent_bits, fraction_bits = _FIELDS[kind.name]
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = np.uint64(bias - 1) - picks % np.uint64(min(6, bias - 1))
    fraction = raw & np.uint64((1 << fraction_bits) - 1)
    sign = (picks >> np.uint64(10)) & np.uint64(1)
    return sign << np.uint64(kind.bits - 1) | exponent << np.uint64(fraction_bits) | fraction


def _code(kind: Type, number: int) -> int:
    """The code of a small whole number."""
    if kind.kind in "iu":
        return number & ((1 << kind.bits) - 1)
    return int.from_bytes(torch.tensor([number], dtype=kind.dtype).view(torch.uint8).numpy().tobytes(), "little")


def _special(kind: Type) -> list[int]:
    if kind.is_int:
        numbers = [0, 1, -1, 2, 7, 1 << (kind.bits - 1), (1 << (kind.bits - 1)) - 1, (1 << (kind.bits - 1)) + 1, -2]
        return [number & ((1 << kind.bits) - 1) for number in numbers]
    exponent_bits, fraction_bits = _FIELDS[kind.name]
    sign, top = 1 << (kind.bits - 1), ((1 << exponent_bits) - 1) << fraction_bits
    ones = [_code(kind, number) for number in (1, -1, 2, -3, 5)]
    if kind.name == "e4":
        return [0, sign, 1, sign | 3, top | 6, sign | top | 6, top | 7, *ones]
    nan = top | 1 << (fraction_bits - 1)
    return [0, sign, 1, sign | 3, top, sign | top, nan, top - 1, sign | (top - 1), 1 << fraction_bits, *ones]
