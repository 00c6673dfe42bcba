"""Counts loads that wait for each other: a program's rounds of loads, each of which takes a memory's latency.

An iteration of a loop that loads is a round. Within one, and within straight-line code, a load comes back a round after
the loads that its address, its mask, and the branches and loop bounds around it are made of; or that a store to its
buffer was made of before it. What lies in an earlier iteration is over, so which loads a value is made of need not tell
one execution of an operation from another, and is read off the text once.

Copies run ahead in loops only, and never of an atomic operation whose result is used: rounds outside loops, and those
of loops with such an operation, wait whatever the code of other loops looks like.
"""

from __future__ import annotations

import itertools
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.loops import loops_of
from evo_kernel.fitness.ir.memory import BASE_BITS
from evo_kernel.fitness.ir.parse import IRModule, IRValue, Operation, Region

_LOADS = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather"}
_ATOMICS = {"tt.atomic_rmw", "tt.atomic_cas"}
_STORES = {"tt.store", "tt.descriptor_store", "tt.descriptor_reduce", "tt.descriptor_scatter"} | _ATOMICS


@dataclass(frozen=True)
class Waits:
    """Operations are named by their ordinals."""

    loads: frozenset[int]  # also atomic operations whose results are used
    before: Mapping[int, frozenset[int]]  # by load and store: the loads that it is made of
    awaited: frozenset[int]  # loads that any other is made of
    ahead: frozenset[int]  # loads that copies may bring ahead of their round


class RoundCounter:
    """Rounds of each program of a launch, while it is executed."""

    def __init__(self, module: IRModule, programs: int) -> None:
        self.rounds, self.waiting = torch.zeros(2, programs, dtype=torch.float64)  # `waiting`: that no copy is ahead of
        self._waits = waits_of(module)
        self._began = torch.zeros(programs, dtype=torch.float64)  # rounds when the iteration began
        self._back: dict[int, torch.Tensor] = {}  # by load: the round in which it came back last
        self._stored: defaultdict[int, set[int]] = defaultdict(set)  # by buffer: the loads that stores are made of

    def end(self, programs: torch.Tensor) -> None:
        """What programs load next waits for nothing of before, beyond its turn."""
        self._began[programs] = self.rounds[programs]

    def access(self, operation: Operation, pointer: Lanes, programs: torch.Tensor) -> None:
        before = self._waits.before[operation.ordinal]
        if operation.ordinal in self._waits.loads:
            self._load(operation.ordinal, before.union(*self._stored_to(pointer)), programs)
        if before and operation.name in _STORES:
            for buffer in _buffers(pointer):
                self._stored[buffer] |= before

    def _load(self, ordinal: int, before: frozenset[int], programs: torch.Tensor) -> None:
        back = self._began[programs]
        for load in before & self._back.keys():
            back = torch.maximum(back, self._back[load][programs])
        back = back + 1
        rounds = torch.maximum(self.rounds[programs], back)
        if ordinal not in self._waits.ahead:
            self.waiting[programs] += rounds - self.rounds[programs]
        self.rounds[programs] = rounds
        if ordinal in self._waits.awaited:
            if ordinal not in self._back:
                self._back[ordinal] = torch.zeros_like(self.rounds)
            self._back[ordinal][programs] = back

    def _stored_to(self, pointer: Lanes) -> Iterator[set[int]]:
        if self._stored:
            yield from (self._stored[buffer] for buffer in _buffers(pointer) if buffer in self._stored)


def _buffers(pointer: Lanes) -> range:
    """Where the addresses lie; those between too."""
    return range(pointer.sum.low >> BASE_BITS, (pointer.sum.high >> BASE_BITS) + 1)


@lru_cache(maxsize=256)
def waits_of(module: IRModule) -> Waits:
    flow = _Flow(module)
    made = flow.made_of()
    before = {
        ordinal: frozenset(load for value in values for load in _bits(made[value]))
        for ordinal, values in flow.accesses.items()
    }
    loads, around = frozenset(flow.loads.values()), loops_of(module).around
    atomics = {operation.ordinal for operation in module.operations() if operation.name in _ATOMICS}
    stopped = {around.get(atomic) for atomic in atomics & loads}
    ahead = frozenset(
        load for load in loads if (loop := around.get(load, "call")) not in stopped and not loop.startswith("call")
    )
    return Waits(loads, before, frozenset().union(*before.values()), ahead)


def _bits(number: int) -> Iterator[int]:
    while number:
        yield (number & -number).bit_length() - 1
        number &= number - 1


_Values = Sequence[int]
_Scope = ChainMap[str, int]
"""Values have numbers: regions side by side use the same names."""


class _Flow:
    """From which values each value of a module is made; results of loads are made of nothing."""

    def __init__(self, module: IRModule) -> None:
        self.loads: dict[int, int] = {}  # ordinals by results
        self.accesses: dict[int, _Values] = {}  # what each needs, by ordinal
        self._edges: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._returns: defaultdict[str, list[_Values]] = defaultdict(list)
        self._calls: list[tuple[str, _Values, _Values, _Values]] = []
        self._used = {n for o in module.operations() for n in (*o.operands, *_passed(o))}
        entered: dict[str, tuple[int, _Values]] = {}  # what a function's callers decide, and its arguments
        for name, function in module.functions.items():
            scope = _Scope({value.name: next(self._numbers) for value in function.arguments})
            arguments, called = list(scope.values()), next(self._numbers)
            inner = self._region(name, function.body, scope, (called,))
            first = function.body.blocks[0].arguments if function.body.blocks else ()
            entered[name] = called, _made(inner, first) or arguments
        for callee, operands, results, control in self._calls:
            if callee in entered:
                called, arguments = entered[callee]
                self._mix((called,), control)
                self._join(arguments, operands)
                for returned in self._returns[callee]:
                    self._join(results, returned)

    def made_of(self) -> Mapping[int, int]:
        """By value, a bit for each load by its ordinal."""
        made: defaultdict[int, int] = defaultdict(int, {value: 1 << load for value, load in self.loads.items()})
        changed = True
        while changed:
            changed = False
            for value, source in self._edges:
                if more := made[source] & ~made[value]:
                    made[value] |= more
                    changed = True
        return made

    def _join(self, values: _Values, sources: _Values) -> None:
        """One by one."""
        self._edges += zip(values, sources, strict=False)

    def _mix(self, values: _Values, sources: _Values) -> None:
        """All of all."""
        self._edges += itertools.product(values, sources)

    def _region(self, function: str, region: Region, outer: _Scope, control: _Values) -> _Scope:
        """`control`: what decides whether it is entered."""
        scope = outer.new_child()
        for block in region.blocks:
            made = (*block.arguments, *(value for operation in block.operations for value in operation.results))
            scope.update({value.name: next(self._numbers) for value in made})
        arguments = {block.label: _made(scope, block.arguments) for block in region.blocks}
        decided = _decided(region)
        for block in region.blocks:
            inside = (*control, *_numbers(scope, decided[block.label]))
            for operation in block.operations:
                self._operation(function, operation, _numbers(scope, operation.operands), scope, inside)
                for successor in operation.successors:
                    self._join(arguments[successor.label], _numbers(scope, successor.operands))
        return scope

    def _operation(
        self, function: str, operation: Operation, operands: _Values, scope: _Scope, control: _Values
    ) -> None:
        name, results = operation.name, _made(scope, operation.results)
        if name in _LOADS or name in _STORES:
            self.accesses[operation.ordinal] = (*(operands[:2] if name == "tt.load" else operands), *control)
            if name in _LOADS or (name in _ATOMICS and operation.results[0].name in self._used):
                self.loads |= dict.fromkeys(results, operation.ordinal)
        elif name == "tt.call":
            self._calls.append((operation.attributes["callee"], operands, results, control))
        elif name == "tt.return":
            self._returns[function].append(operands)
        elif name in ("scf.for", "scf.while", "scf.if"):
            self._nested(function, operation, operands, scope, control)
        else:
            self._mix(results, operands)
            for region in operation.regions:
                self._region(function, region, scope, control)

    def _nested(self, function: str, operation: Operation, operands: _Values, scope: _Scope, control: _Values) -> None:
        """Structured control flow: what it passes to its regions, what these yield, and what decides."""
        results, kind = _made(scope, operation.results), operation.name
        deciding = operands[:3] if kind == "scf.for" else operands[:1] if kind == "scf.if" else ()
        passed: list[_Values] = []  # to each region
        yielded: list[_Values] = []  # by each
        for region in operation.regions:
            inner = self._region(function, region, scope, (*control, *deciding))
            passed.append(_made(inner, region.arguments))
            yielded.append(_numbers(inner, region.operations[-1].operands if region.operations else ()))
            if kind == "scf.while":  # the second is entered if the first says so, and what it yields goes back to that
                deciding = deciding or yielded[0][:1]
        self._mix(results, deciding)
        if kind == "scf.for":
            self._mix(passed[0][:1], deciding)
            for values in (operands[3:], yielded[0]):
                self._join(passed[0][1:], values)
                self._join(results, values)
        elif kind == "scf.while":
            self._join(results, yielded[0][1:])
            self._join(passed[1], yielded[0][1:])
            for values in (operands, yielded[1]):
                self._join(passed[0], values)
        else:
            for values in yielded:
                self._join(results, values)


def _numbers(scope: _Scope, names: Iterable[str]) -> _Values:
    return [scope.get(name, -1) for name in names]  # IR is hostile: what is not defined ends the execution


def _made(scope: _Scope, values: Iterable[IRValue]) -> _Values:
    return _numbers(scope, (value.name for value in values))


def _passed(operation: Operation) -> Iterator[str]:
    return (name for successor in operation.successors for name in successor.operands)


def _decided(region: Region) -> Mapping[str, set[str]]:
    """By block: the conditions of the branches behind which it lies."""
    found: dict[str, set[str]] = {block.label: set() for block in region.blocks}
    changed = len(region.blocks) > 1
    while changed:
        changed = False
        for block in region.blocks:
            for last in block.operations[-1:]:
                more = found[block.label] | set(last.operands[:1] if last.name == "cf.cond_br" else ())
                for successor in last.successors:
                    target = found[successor.label]
                    changed |= not more <= target
                    target |= more
    return found
