"""Loads that compiled code issues rounds early, because their loop is pipelined: they must not need its own stores.

Triton pipelines a loop whatever it stores, so what a program stores to an element, and loads from it a few rounds
later, is not there yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.memory import DeviceMemory, MemoryFault, scattered
from evo_kernel.fitness.ir.module import LOADS, STORES, Operation
from evo_kernel.fitness.ir.types import Type

_LOOPS = frozenset({"scf.for", "scf.while"})
_BARRIERS = frozenset({"ttg.barrier", "gpu.barrier"})
"""A loop that holds one is not pipelined."""


def latest_stores(loop: Operation, ahead: int, memory: DeviceMemory, skips_floats: bool) -> LatestStores | None:
    """A record for a loop whose loads are issued early and may need its stores; None for others."""
    if not ahead or skips_floats or not any(buffer.track_reads for buffer in memory.buffers):
        return None
    loads = _rounds_early(loop)
    return LatestStores(loads, ahead * loop.integer("tt.loop_unroll_factor", 1), memory) if loads else None


@lru_cache(maxsize=256)
def _rounds_early(loop: Operation) -> Mapping[Operation, int]:
    """Loads that are issued early, and by how many times the rounds of a copy: what a load's address needs is loaded
    before it, and so on."""
    loads = _issued_early(loop)
    made = {value.name: one for one in loop.regions[0].walk() for value in one.results}
    levels = dict.fromkeys(loads, 1)
    for _ in loads:  # a chain is no longer
        for load in loads:
            pending, seen = list(load.operands), set[str]()
            while pending:
                if (name := pending.pop()) in seen or name not in made:
                    continue
                seen.add(name)
                if (source := made[name]) in levels:
                    levels[source] = max(levels[source], levels[load] + 1)
                else:
                    pending += source.operands
    return levels


def _issued_early(loop: Operation) -> frozenset[Operation]:
    """Loads that Triton's pipeliner moves ahead: what products need, or all where the loop asks for it and has none.

    A loop that is flattened is one with the loop inside.
    """
    within = list(loop.regions[0].walk())
    inner, names = [one for one in within if one.name in _LOOPS], {one.name for one in within}
    flattens = loop.flag("tt.flatten") and [one.name for one in inner] == ["scf.for"]
    stages = loop.integer("tt.num_stages", 0)
    if (inner and not flattens) or names & _BARRIERS or not names & STORES or stages == 1:
        return frozenset()
    body = [operation for each in (loop, *inner) for operation in each.regions[0].operations]
    products = [operation for operation in body if operation.name in ("tt.dot", "tt.dot_scaled")]
    if not products:
        return frozenset(one for one in body if one.name in LOADS) if stages else frozenset()
    made = {value.name: one for one in body for value in one.results}
    carried: dict[str, str] = {}
    for each in (loop, *inner):
        values = each.regions[0].arguments[1:]
        carried |= zip((value.name for value in values), each.regions[0].operations[-1].operands, strict=False)
    pending, seen = [name for one in products for name in (*one.operands[:2], *one.operands[3:])], set[str]()
    while pending:
        if (name := pending.pop()) not in seen:
            seen.add(name)
            pending += [carried[name]] if name in carried else made[name].operands if name in made else ()
    return frozenset(made[name] for name in seen if name in made and made[name].name in LOADS)


@dataclass(frozen=True)
class _Access:
    """Lanes of a load or a store. `low`, `high`: of each program, its first byte and the one behind its last."""

    pointer: Lanes
    mask: Lanes | None
    programs: torch.Tensor
    type: Type
    low: torch.Tensor
    high: torch.Tensor

    def may_meet(self, other: _Access) -> bool:
        """Whether a program may access a byte in both; masks are not looked at."""
        if self.programs.numel() != other.programs.numel():
            return bool((self.low.min() < other.high.max()) & (other.low.min() < self.high.max()))
        return bool(((self.low < other.high) & (other.low < self.high)).any())

    def bytes(self, memory: DeviceMemory) -> tuple[torch.Tensor, torch.Tensor]:
        """Addresses of bytes in buffers that the launch loads and stores, and the programs that access them."""
        shape, item = (self.programs.numel(), *(self.type.shape or ())), self.type.item_bytes
        lanes = scattered(self.pointer, None if self.mask is None else self.mask.data, self.programs, shape)
        found = [(torch.zeros(0, dtype=torch.int64),) * 2]
        for buffer, _, chosen in lanes.by_buffer(memory, item):
            if buffer.track_reads:
                some = slice(None) if chosen is None else chosen
                places = lanes.addresses[some].unsqueeze(-1) + torch.arange(item)
                found.append((places.reshape(-1), lanes.programs[some].unsqueeze(-1).expand(places.shape).reshape(-1)))
        return torch.cat([places for places, _ in found]), torch.cat([ids for _, ids in found])


def _access(pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, type_: Type) -> _Access:
    low = high = torch.full((1,), pointer.sum.constant, dtype=torch.int64)
    for term in pointer.sum.terms:
        data = term.data.reshape(term.data.shape[0], -1)
        low, high = low + data.amin(1), high + data.amax(1)
    return _Access(pointer, mask, programs, type_, low, high + type_.item_bytes)


class LatestStores:
    """What programs stored in the latest rounds of a pipelined loop. `ahead`: rounds that copies are issued early, of
    `loads` those times its number."""

    def __init__(self, loads: Mapping[Operation, int], ahead: int, memory: DeviceMemory) -> None:
        self._loads, self._ahead, self._memory = loads, ahead, memory
        self._rounds: deque[list[_Access]] = deque([[]], maxlen=ahead * max(loads.values()) + 1)

    def begin_round(self) -> None:
        self._rounds.append([])

    def note(self, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, type_: Type) -> None:
        """Record a store of a value of a type."""
        self._rounds[-1].append(_access(pointer, mask, programs, type_))

    def check(self, load: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, type_: Type) -> None:
        """Raise MemoryFault if a load that is issued early takes what was stored since."""
        if load not in self._loads or not any(self._rounds):
            return
        own, ahead = _access(pointer, mask, programs, type_), self._ahead * self._loads[load]
        latest = [stored for round_ in list(self._rounds)[-ahead - 1 :] for stored in round_ if stored.may_meet(own)]
        if not latest:
            return
        places, ids = own.bytes(self._memory)
        early = torch.isin(places, torch.cat([stored.bytes(self._memory)[0] for stored in latest]))
        if bool(early.any()):
            message = f"loads what it stored in the {ahead} rounds before, when compiled code has loaded it: the "
            message += "loop is pipelined. Keep it in variables, use another loop, or num_stages=1"
            raise MemoryFault("race", message, int(ids[early][0]))
