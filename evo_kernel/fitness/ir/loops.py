"""The loops of a kernel's IR and the functions that it calls: which of them each operation belongs to.

A loop of plain branches reaches from the block that a branch goes back to, as the text has them, to that branch: every
way around takes one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from evo_kernel.fitness.ir.parse import IRBlock, IRModule, Region


@dataclass(frozen=True)
class IRLoops:
    """Loops and called functions ("call" and a number); operations are named by their ordinals."""

    around: Mapping[int, str]  # the innermost one around an operation; what lies in none is left out
    begins: Mapping[int, str]  # by the operation that begins a round of it: a loop, a branch back, a call


@lru_cache(maxsize=256)
def loops_of(module: IRModule) -> IRLoops:
    names = map(str, itertools.count())
    called = {name: f"call{next(names)}" for name, one in module.functions.items() if one is not module.entry}
    around: dict[int, str] = {}
    begins: dict[int, str] = {}

    def walk(region: Region, outer: str | None) -> None:
        backs = {
            end: start for end in range(len(region.blocks)) if (start := goes_back(region.blocks, end)) is not None
        }
        made = {place: next(names) for place in backs}
        for place, block in enumerate(region.blocks):
            spans = [(end - start, made[end]) for end, start in backs.items() if start <= place <= end]
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
            if place in made:
                begins[block.operations[-1].ordinal] = made[place]

    for name, function in module.functions.items():
        walk(function.body, called.get(name))
    return IRLoops(around, begins)


def goes_back(blocks: tuple[IRBlock, ...], place: int) -> int | None:
    """The first block, itself or before it, that the end of a block may branch to."""
    last = blocks[place].operations[-1:]
    labels = {successor.label for operation in last for successor in operation.successors}
    return next((before for before in range(place + 1) if blocks[before].label in labels), None)
