"""Data classes of a parsed IR module, and its loops: which operations belong to which loop or called function.

A loop of plain branches extends, in the order of the text, from the target of a backward branch to that branch; every
cycle contains one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from evo_kernel.fitness.ir.types import IRError, Type

COPIES_IN = frozenset({"ttng.async_tma_copy_global_to_local", "ttg.async_copy_global_to_local"})
"""Into shared memory: by TMA, and by threads (cp.async)."""
LOADS = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"}) | COPIES_IN
ATOMICS = frozenset({"tt.atomic_rmw", "tt.atomic_cas"})
STORES = ATOMICS | {"tt.store", "tt.descriptor_store", "tt.descriptor_reduce", "tt.descriptor_scatter",
                    "ttng.async_tma_copy_local_to_global"}  # fmt: skip
"""Operations that access memory; atomic ones count as stores, whatever they return."""


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
        if text.isdecimal():
            return int(text)
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
    blocks: int = 1  # of a program, if the text says so: a cluster
    layouts: Mapping[str, str] = field(default_factory=dict)  # by the names that types have for them
    ahead: int = 0  # rounds that its compiled code issues loads early, in the loop that does most
    fuses: bool = True  # products with sums

    def operations(self) -> Iterator[Operation]:
        """All operations of all functions, outer before inner."""
        for function in self.functions.values():
            yield from function.body.walk()


@dataclass(frozen=True)
class IRLoops:
    """Loops and called functions ("call" and a number); operations are identified by their ordinals."""

    around: Mapping[int, str]  # the innermost loop of an operation; operations outside loops are missing
    begins: Mapping[int, str]  # by the operation that begins an iteration: a loop, a backward branch, a call


@lru_cache(maxsize=256)
def loops_of(module: IRModule) -> IRLoops:
    names = map(str, itertools.count())
    called = {name: f"call{next(names)}" for name, function in module.functions.items() if function is not module.entry}
    around: dict[int, str] = {}
    begins: dict[int, str] = {}

    def walk(region: Region, outer: str | None) -> None:
        backs = {
            end: start for end in range(len(region.blocks)) if (start := goes_back(region.blocks, end)) is not None
        }
        names_by_block = {place: next(names) for place in backs}
        for place, block in enumerate(region.blocks):
            spans = [(end - start, names_by_block[end]) for end, start in backs.items() if start <= place <= end]
            inside = min(spans)[1] if spans else outer
            for operation in block.operations:
                if inside is not None:
                    around[operation.ordinal] = inside
                within = inside
                if operation.name in ("scf.for", "scf.while"):
                    within = begins[operation.ordinal] = next(names)
                elif operation.name == "tt.call" and operation.attributes.get("callee") in called:
                    begins[operation.ordinal] = called[operation.attributes["callee"]]
                for inner in operation.regions:
                    walk(inner, within)
            if place in names_by_block:
                begins[block.operations[-1].ordinal] = names_by_block[place]

    for name, function in module.functions.items():
        walk(function.body, called.get(name))
    return IRLoops(around, begins)


def goes_back(blocks: tuple[IRBlock, ...], place: int) -> int | None:
    """The first block, itself or an earlier one, to which the end of a block may branch."""
    last = blocks[place].operations[-1:]
    labels = {successor.label for operation in last for successor in operation.successors}
    return next((before for before in range(place + 1) if blocks[before].label in labels), None)
