"""Finds the loops of a kernel's IR and the functions that it calls, and to which of them each operation belongs.

A loop of plain branches extends, in the order of the text, from the target of a backward branch to that branch; every
cycle contains one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from evo_kernel.fitness.ir.module import IRBlock, IRModule, Region


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
