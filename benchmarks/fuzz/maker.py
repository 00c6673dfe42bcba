"""The state of a program being made: lines, values in scope, buffers, parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.fuzz.draws import Draws, choice
from benchmarks.fuzz.programs import Argument, Output
from benchmarks.fuzz.values import TYPES, Recipe, Type

INF = math.inf
OUTPUT_BYTES = 640  # of one output
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A value in scope. `bound`: no |element| is larger, and none is NaN where it is finite. Two right results differ
    by at most `absolute + relative * |x|`; both 0: they are equal, except for bits of NaN and the sign of zero unless
    `bits`. `loaded`: moved from memory, not computed (a product may be contracted with what it is added to)."""

    name: str
    type: Type
    shape: Shape
    bound: float = INF
    relative: float = 0.0
    absolute: float = 0.0
    bits: bool = True
    whole: bool = False  # a float that holds whole numbers
    loaded: bool = False

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def exact(self) -> bool:
        return self.relative == 0 and self.absolute == 0

    @property
    def error(self) -> float:
        """A bound of the absolute error."""
        return self.absolute + (self.relative * self.bound if self.relative else 0.0)


Make = Callable[["Maker"], "Value | None"]
Test = Callable[[Value], bool]


class Maker:
    """Builds one kernel. Operations append lines and values."""

    def __init__(
        self, draws: Draws, grid: tuple[int, int, int], fused: bool, inner: Sequence[tuple[Make, int]] = ()
    ) -> None:
        """`fused`: products may be contracted with sums. `inner`: operations that bodies of loops are made of."""
        self.draws, self.grid, self.fused, self.inner = draws, grid, fused, inner
        self.lines: list[str] = []
        self.depth = 1
        self.scope: list[Value] = []
        self.used: set[str] = set()
        self.helpers: list[str] = []
        self.parameters: list[tuple[str, str, Argument]] = []
        self.buffers: list[Recipe] = []
        self.outputs: list[Output] = []
        self.operations: list[str] = []
        self._names = 0

    # -- text
    def fresh(self, prefix: str = "v") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block; what is made inside is out of scope afterwards."""
        self.line(head)
        size = len(self.scope)
        self.depth += 1
        yield
        self.depth -= 1
        del self.scope[size:]

    def let(self, text: str, like: Value | None = None, /, **changes: Any) -> Value:
        """A new value in scope, defined by an expression."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        base = replace(like, loaded=False) if like else Value("", TYPES["i32"], ())
        value = replace(base, name=name, **changes)
        self.scope.append(value)
        return value

    def helper(self, text: str) -> None:
        """A function of the module; the same text once."""
        if text not in self.helpers:
            self.helpers.append(text)

    # -- parameters
    def buffer(self, type: Type, count: int, kind: str, limit: int = 0) -> tuple[str, int]:
        """A new buffer and the parameter that points to it."""
        name = self.fresh("p")
        seed = self.draws.integer(0, 1 << 30)
        self.buffers.append(Recipe(type.name, count, kind, seed, limit))
        self.parameters.append((name, f"*{type.code}", (len(self.buffers) - 1, 0)))
        return name, len(self.buffers) - 1

    def number(self, kind: str, value: int | float) -> str:
        """A scalar parameter."""
        name = self.fresh("n")
        self.parameters.append((name, kind, value))
        return name

    # -- operands
    @property
    def programs(self) -> int:
        return math.prod(self.grid)

    def pick(self, *tests: Test) -> Value | None:
        """A value in scope that passes, the newest more often."""
        found = [value for value in self.scope if all(test(value) for test in tests)]
        if not found:
            return None
        back = min(self.draws.integer(0, len(found) - 1), self.draws.integer(0, len(found) - 1))
        value = found[-1 - back]
        self.used.add(value.name)
        return value

    def same(self, value: Value, *tests: Test) -> Value:
        """A second operand: of the same type and shape, from scope or loaded."""
        found = self.pick(lambda v: v.type == value.type and v.shape == value.shape, *tests)
        return found or self.load(value.type, value.shape, "unit" if value.type.is_float else None)

    def load(self, type: Type, shape: Shape, kind: str | None = None, limit: int = 0) -> Value:
        """A block (or a scalar) from a new buffer. Kind: see Recipe; None draws one."""
        kind = kind or choice(self.draws, ("edge", "small", "bits", "unit") if type.is_float else
                              ("small", "edge", "bits") if type.is_int else ("small", "bits"))  # fmt: skip
        if kind == "unit" and not type.is_float and type.kind != "8":
            kind = "bits"
        count = max(1, math.prod(shape))
        name, _ = self.buffer(type, count * self.programs, kind, limit)
        at = f"pid * {count} + {self.index(shape)}" if shape else "pid"
        text = f"tl.load({name} + {at})"
        return self.let(text, type=type, shape=shape, **_known(type, kind, limit), loaded=True)

    def index(self, shape: Shape) -> str:
        """Row-major positions of a block's elements, as an expression."""
        parts = []
        for axis, size in enumerate(shape):
            stride = math.prod(shape[axis + 1 :])
            picked = ", ".join(":" if other == axis else "None" for other in range(len(shape)))
            part = f"tl.arange(0, {size})" + (f"[{picked}]" if len(shape) > 1 else "")
            parts.append(part + (f" * {stride}" if stride > 1 else ""))
        return "(" + " + ".join(parts) + ")"

    def some_type(self, *kinds: str) -> Type:
        """An element type of these kinds; one that is in use more often."""
        pool = [t for t in TYPES.values() if t.kind in kinds]
        return choice(self.draws, pool)

    def shape(self, most: int = 256, least: int = 1) -> Shape:
        """A block's shape of one to three axes, powers of two."""
        rank = choice(self.draws, (1, 1, 2, 2, 3))
        sizes: list[int] = []
        for axis in range(rank):
            room = most // math.prod(sizes)
            low = least if rank > 1 else max(least, 4)
            options = [1 << k for k in range(9) if low <= 1 << k <= max(low, room >> (rank - 1 - axis))]
            sizes.append(choice(self.draws, options))
        return tuple(sizes)

    # -- results
    def store(self, value: Value) -> None:
        """Write a value to an output of its own; of a large block only some elements."""
        width = value.type.bytes * self.programs
        count = max(1, value.count)
        every = 1
        while count // every * width > OUTPUT_BYTES and every < count:
            every *= 2
        name, buffer = self.buffer(value.type, max(1, count // every) * self.programs, "filler")
        self.outputs.append(Output(buffer, value.relative, value.absolute))
        at = f"{name} + pid * {count // every}"
        if not value.shape:
            self.line(f"tl.store({at}, {value.name})")
        elif every == 1:
            self.line(f"tl.store({at} + {self.index(value.shape)}, {value.name})")
        else:
            part = self.draws.integer(0, every - 1)
            self.line(f"at_{name} = {self.index(value.shape)}")
            self.line(f"tl.store({at} + at_{name} // {every}, {value.name}, mask=at_{name} % {every} == {part})")

    def zero_free(self, value: Value) -> str:
        """A tiny float becomes 0: fast functions of the GPU take denormal numbers as 0."""
        return f"tl.where(tl.abs({value.name}) < 1e-30, 0.0, {value.name})"


def is_float(value: Value) -> bool:
    return value.type.is_float


def is_int(value: Value) -> bool:
    return value.type.is_int


def is_block(value: Value) -> bool:
    return bool(value.shape)


def exact(value: Value) -> bool:
    return value.exact


def _known(type: Type, kind: str, limit: int) -> dict[str, object]:
    if kind == "below":
        return {"bound": float(limit - 1), "whole": True}
    if type.kind == "b":
        return {"bound": 1.0}
    if type.is_int:
        return {"bound": 16.0 if kind == "small" else 2.0**type.bits, "whole": True}
    return {"small": {"bound": 16.0, "whole": True}, "unit": {"bound": 1.0}}.get(kind, {})


def numbers(draws: Draws, type: Type) -> str:
    """A constant of a type, as text."""
    if type.is_int:
        low = 0 if type.kind == "u" else -100
        return str(draws.integer(low, 100))
    return choice(draws, ("0.5", "-2.0", "3.0", "1.5", "-0.25", "7.0"))
