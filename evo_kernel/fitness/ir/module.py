"""Data classes of a parsed IR module: functions, regions, blocks, operations, values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from evo_kernel.fitness.ir.types import IRError, Type


@dataclass(frozen=True, slots=True)
class IRValue:
    """A value in static single assignment form: its name and type."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Successor:
    """Target of a branch, and its arguments."""

    label: str
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation. `head`: its text between name and types. `ordinal`: its number in the text."""

    name: str
    results: tuple[IRValue, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    words: tuple[str, ...]
    types: tuple[Type, ...]
    head: str
    ordinal: int
    line: int
    regions: tuple[Region, ...] = ()
    successors: tuple[Successor, ...] = ()

    def integer(self, attribute: str, default: int | None = None) -> int:
        """An integer attribute such as `axis = 1 : i32`. Raises IRError if it is missing without a default."""
        text = self.attributes.get(attribute)
        if text is None:
            if default is None:
                raise IRError(f"{self.name} has no attribute {attribute}")
            return default
        match = re.match(r"-?\d+", text)
        if not match:
            raise IRError(f"{self.name}: {attribute} = {text[:40]} is not an integer")
        return int(match[0])

    def flag(self, attribute: str) -> bool:
        return self.attributes.get(attribute, "false") in ("true", "unit") or attribute in self.words


@dataclass(frozen=True, slots=True, eq=False)
class IRBlock:
    label: str
    arguments: tuple[IRValue, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    blocks: tuple[IRBlock, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of a region with one block."""
        return self.blocks[0].operations

    @property
    def arguments(self) -> tuple[IRValue, ...]:
        return self.blocks[0].arguments

    def walk(self) -> Iterator[Operation]:
        """All operations, outer before inner."""
        for block in self.blocks:
            for operation in block.operations:
                yield operation
                for inner in operation.regions:
                    yield from inner.walk()


@dataclass(frozen=True, eq=False)
class Function:
    name: str
    arguments: tuple[IRValue, ...]
    results: tuple[Type, ...]
    body: Region
    public: bool


@dataclass(frozen=True, eq=False)
class IRModule:
    """A module: `entry` is the public function, the kernel; it calls the others."""

    entry: Function
    functions: Mapping[str, Function]
    attributes: Mapping[str, str] = field(default_factory=dict)

    def operations(self) -> Iterator[Operation]:
        """All operations of all functions, outer before inner."""
        for function in self.functions.values():
            yield from function.body.walk()
