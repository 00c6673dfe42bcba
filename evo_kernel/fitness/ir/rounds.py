"""Counts what a program waits for: rounds of dependent loads, of one memory latency each, and other programs.

An iteration of a loop with loads is a round. Within an iteration, and in straight-line code, a load is one round after
the loads on which its address, its mask, and the enclosing branches and loop bounds depend, and after those on which
earlier stores to its buffer depend. Earlier iterations are complete, so dependences need not distinguish executions of
an operation, and are computed once from the text.

Copies are issued ahead in loops only, and never past an atomic operation whose result is used. So rounds outside loops,
and rounds of loops with such an operation, wait, whatever the code of other loops does.
"""

from __future__ import annotations

import itertools
import re
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.memory import BASE_BITS
from evo_kernel.fitness.ir.module import (
    ATOMICS,
    COPIES_IN,
    LOADS,
    STORES,
    IRModule,
    IRValue,
    Operation,
    Region,
    loops_of,
)


@dataclass(frozen=True)
class Waits:
    """Dependences between loads; operations are identified by their ordinals."""

    loads: frozenset[int]  # also atomic operations whose results are used
    before: Mapping[int, frozenset[int]]  # by load and store: the loads on which it depends
    awaited: frozenset[int]  # loads on which any other depends
    ahead: frozenset[int]  # loads that copies may issue ahead of their round


class RoundCounter:
    """Counts the rounds of each program of a launch during execution."""

    def __init__(self, module: IRModule, programs: int) -> None:
        self.rounds, self.waiting = torch.zeros(2, programs, dtype=torch.float64)  # `waiting`: no prefetching
        self._rounds, self._waiting = self.rounds.numpy(), self.waiting.numpy()  # the same: quicker if there are few
        self._waits = waits_of(module)
        self._began, self._last_waiting = np.zeros((2, programs))  # rounds when it began
        self._back: dict[int, np.ndarray] = {}  # by load: the round in which it last completed
        self._stored: defaultdict[int, set[int]] = defaultdict(set)  # by buffer: the loads on which stores depend

    def end(self, programs: torch.Tensor) -> None:
        """End the iteration of programs: their next loads depend on nothing before."""
        numbers = programs.numpy()
        self._began[numbers] = self._rounds[numbers]

    def access(self, operation: Operation, pointer: Lanes, programs: torch.Tensor) -> None:
        before = self._waits.before[operation.ordinal]
        if operation.ordinal in self._waits.loads:
            stored = (self._stored[n] for n in (_buffers(pointer) if self._stored else ()) if n in self._stored)
            self._load(operation.ordinal, before.union(*stored), programs.numpy())
        if before and operation.name in STORES:
            for buffer in _buffers(pointer):
                self._stored[buffer] |= before

    def _load(self, ordinal: int, before: frozenset[int], programs: np.ndarray) -> None:
        back = self._began[programs]
        for load in before & self._back.keys():
            back = np.maximum(back, self._back[load][programs])
        back = back + 1
        if ordinal not in self._waits.ahead:  # of several loads in a round one is enough
            self._waiting[programs] += back > self._last_waiting[programs]
            self._last_waiting[programs] = np.maximum(self._last_waiting[programs], back)
        self._rounds[programs] = np.maximum(self._rounds[programs], back)
        if ordinal in self._waits.awaited:
            if ordinal not in self._back:
                self._back[ordinal] = np.zeros_like(self._rounds)
            self._back[ordinal][programs] = back


def _buffers(pointer: Lanes) -> range:
    """Buffers from the lowest to the highest address."""
    return range(pointer.sum.low >> BASE_BITS, (pointer.sum.high >> BASE_BITS) + 1)


@lru_cache(maxsize=256)
def waits_of(module: IRModule) -> Waits:
    flow = _Flow(module)
    dependences = flow.made_of()
    before = {
        ordinal: frozenset(load for value in values for load in _bits(dependences[value]))
        for ordinal, values in flow.accesses.items()
    }
    loads, around = frozenset(flow.loads.values()), loops_of(module).around
    atomics = {operation.ordinal for operation in module.operations() if operation.name in ATOMICS}
    stopped = {around.get(atomic) for atomic in atomics & loads}
    copies = {operation.ordinal for operation in module.operations() if operation.name in COPIES_IN}
    ahead = frozenset(
        load
        for load in copies & loads or loads  # where the source copies itself, the compiler makes no copies of loads
        if (loop := around.get(load, "call")) not in stopped and not loop.startswith("call")
    )
    return Waits(loads, before, frozenset().union(*before.values()), ahead)


def _bits(number: int) -> Iterator[int]:
    while number:
        yield (number & -number).bit_length() - 1
        number &= number - 1


_Values = Sequence[int]
_Scope = ChainMap[str, int]
"""Values have numbers, because separate regions may use the same names."""


class _Flow:
    """Data flow of a module: on which values each value depends; results of loads depend on nothing."""

    def __init__(self, module: IRModule) -> None:
        self.loads: dict[int, int] = {}  # ordinals by results
        self.accesses: dict[int, _Values] = {}  # the values that each access needs, by ordinal
        self._edges: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self.conditions: dict[int, int] = {}  # of `while` loops, by ordinal
        self._returns: defaultdict[str, list[_Values]] = defaultdict(list)
        self._calls: list[tuple[str, _Values, _Values, _Values]] = []
        self._used = {n for o in module.operations() for n in (*o.operands, *_passed(o))}
        entered: dict[str, tuple[int, _Values]] = {}  # control values of a function's callers, and its arguments
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
        """By value, a bitset of the loads on which it depends."""
        loads: defaultdict[int, int] = defaultdict(int, {value: 1 << load for value, load in self.loads.items()})
        changed = True
        while changed:
            changed = False
            for value, source in self._edges:
                if more := loads[source] & ~loads[value]:
                    loads[value] |= more
                    changed = True
        return loads

    def _join(self, values: _Values, sources: _Values) -> None:
        """Add dependences pairwise."""
        self._edges += zip(values, sources, strict=False)

    def _mix(self, values: _Values, sources: _Values) -> None:
        """Add dependences of all values on all sources."""
        self._edges += itertools.product(values, sources)

    def _region(self, function: str, region: Region, outer: _Scope, control: _Values) -> _Scope:
        """`control`: the values that decide whether it is entered."""
        scope = outer.new_child()
        for block in region.blocks:
            values = (*block.arguments, *(value for operation in block.operations for value in operation.results))
            scope.update({value.name: next(self._numbers) for value in values})
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
        if name in COPIES_IN:
            place = 1 if name.startswith("ttg.") else len(operands) - 3
            barrier = () if name.startswith("ttg.") else operands[-2:-1]
            needs = (*operands[:place], *operands[place + 1 + len(barrier) :])
            self.accesses[operation.ordinal] = (*needs, *control)
            self.loads[made := next(self._numbers)] = operation.ordinal
            self._join(operands[place : place + 1], (made,))
        elif name in LOADS or name in STORES:
            self.accesses[operation.ordinal] = (*(operands[:2] if name == "tt.load" else operands), *control)
            if name in LOADS or (name in ATOMICS and operation.results and operation.results[0].name in self._used):
                self.loads |= dict.fromkeys(results, operation.ordinal)
        elif name == "tt.call":
            self._calls.append((operation.attributes["callee"], operands, results, control))
        elif name == "tt.return":
            self._returns[function].append(operands)
        elif name in ("scf.for", "scf.while", "scf.if", "ttg.warp_specialize"):
            self._nested(function, operation, operands, scope, control)
        elif name == "ttg.local_store":
            self._join(operands[1:], operands)
        else:
            self._mix(results, operands)
            if name.startswith("ttg.memdesc_"):  # a view of the same memory
                self._join(operands, results)
            for region in operation.regions:
                self._region(function, region, scope, control)

    def _nested(self, function: str, operation: Operation, operands: _Values, scope: _Scope, control: _Values) -> None:
        """Structured control flow: arguments of its regions, what they yield, and the controlling values."""
        results, kind = _made(scope, operation.results), operation.name
        deciding = operands[:3] if kind == "scf.for" else operands[:1] if kind == "scf.if" else ()
        passed: list[_Values] = []  # to each region
        yielded: list[_Values] = []  # by each
        for region in operation.regions:
            inner = self._region(function, region, scope, (*control, *deciding))
            passed.append(_made(inner, region.arguments))
            yielded.append(_numbers(inner, region.operations[-1].operands if region.operations else ()))
            if kind == "scf.while":  # the first region controls the second, which yields to it
                deciding = deciding or yielded[0][:1]
                self.conditions |= dict.fromkeys((operation.ordinal,), *yielded[0][:1])
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
        elif kind == "ttg.warp_specialize":
            self._join(results, yielded[0])
            for values in passed[1:]:
                self._join(values, operands)
                self._join(operands, values)  # of shared memory
        else:
            for values in yielded:
                self._join(results, values)


def _numbers(scope: _Scope, names: Iterable[str]) -> _Values:
    return [scope.get(name, -1) for name in names]  # the IR is untrusted: undefined names end the execution


def _made(scope: _Scope, values: Iterable[IRValue]) -> _Values:
    return _numbers(scope, (value.name for value in values))


def _passed(operation: Operation) -> Iterator[str]:
    return (name for successor in operation.successors for name in successor.operands)


def _decided(region: Region) -> Mapping[str, set[str]]:
    """By block: the conditions of the branches on which it depends."""
    conditions: dict[str, set[str]] = {block.label: set() for block in region.blocks}
    changed = len(region.blocks) > 1
    while changed:
        changed = False
        for block in region.blocks:
            for last in block.operations[-1:]:
                more = conditions[block.label] | set(last.operands[:1] if last.name == "cf.cond_br" else ())
                for successor in last.successors:
                    target = conditions[successor.label]
                    changed |= not more <= target
                    target |= more
    return conditions


_MOST_POSTED = 1 << 18  # addresses; beyond, stores to a buffer count as one

ProgramCounts = Mapping[str, float]
"""By the names of `Counter.by_program`."""


@lru_cache(maxsize=256)
def spins_of(module: IRModule) -> frozenset[int]:
    """Loads and atomic operations by which loops wait for other programs, by their ordinals.

    They are in a loop's condition; or they decide it, and one of them asks again in the loop's body. A kernel without
    atomics has none.
    """
    operations = list(module.operations())
    if not any(operation.name in ATOMICS for operation in operations):
        return frozenset()
    loops = [operation for operation in operations if operation.name == "scf.while"]
    spins = {inner.ordinal for loop in loops for inner in loop.regions[0].walk() if inner.name in {*ATOMICS, "tt.load"}}
    constants = {o.results[0].name: o.head.strip() for o in operations if o.name == "arith.constant" and o.results}
    asking = {
        loop.ordinal: asks
        for loop in loops
        if (asks := {inner.ordinal for inner in loop.regions[1].walk() if _only_asks(inner, constants)})
    }
    if asking:
        flow = _Flow(module)
        dependences = flow.made_of()
        for loop, asks in asking.items():
            deciding = set(_bits(dependences[flow.conditions[loop]]))
            spins |= deciding if deciding & asks else set()
    return frozenset(spins)


_ZEROS = re.compile(r"(?:dense<)?0(?:\.0*e\+00)?>?")


def _only_asks(operation: Operation, constants: Mapping[str, str]) -> bool:
    """Whether an operation reads what others may change, and takes no part in work: it adds 0, exchanges constants."""
    if operation.name == "tt.load":
        return operation.attributes.get("isVolatile") == "true"
    given = operation.operands[1:2] if operation.name in ATOMICS else ()
    value = "".join(constants.get(name, "") for name in given)
    if operation.name == "tt.atomic_cas":
        return bool(value)
    return operation.words[:1] in (("add",), ("fadd",), ("or",), ("xor",)) and bool(_ZEROS.fullmatch(value))


class WaitCounter:
    """What each program of a launch took over from others: `behind` holds it by program, beside its own work.

    A program that spins until another one has stored something runs alone here, when all that it waits for is done. So
    a store posts how much its program has behind it, and a loop's condition that reads what was posted takes that over:
    no program is past its wait before.
    """

    def __init__(self, module: IRModule, own: Callable[[int], ProgramCounts]) -> None:
        """`own`: what makes a program last, of all that it has done itself."""
        self._spins, self._own = spins_of(module), own
        self.behind: dict[int, ProgramCounts] = {}
        self._posted: dict[int, ProgramCounts] = {}  # by address
        self._anywhere: defaultdict[int, ProgramCounts] = defaultdict(
            dict
        )  # by buffer: posted over many addresses at once

    def access(self, operation: Operation, pointer: Lanes, programs: torch.Tensor) -> None:
        if not self._spins or not programs.numel():
            return
        program = int(programs[0])  # one at a time where they wait
        low, high = pointer.sum.low, pointer.sum.high
        if operation.ordinal in self._spins:
            self._take_over(low, high, program)
        if operation.name != "tt.load":
            if low == high and len(self._posted) < _MOST_POSTED:
                self._posted[low] = self._reached(program)
            else:
                for buffer in range(low >> BASE_BITS, (high >> BASE_BITS) + 1):
                    self._anywhere[buffer] = _larger(self._anywhere[buffer], self._reached(program))

    def _reached(self, program: int) -> ProgramCounts:
        own, behind = self._own(program), self.behind.get(program, {})
        return {name: amount + behind.get(name, 0.0) for name, amount in own.items()}

    def _take_over(self, low: int, high: int, program: int) -> None:
        if low == high:
            found = self._posted.get(low, {})
        else:
            found = _larger({}, *(work for address, work in self._posted.items() if low <= address <= high))
        for buffer in range(low >> BASE_BITS, (high >> BASE_BITS) + 1):
            found = _larger(found, self._anywhere.get(buffer, {}))
        if found:
            own = self._own(program)
            late = {name: amount - own.get(name, 0.0) for name, amount in found.items()}
            self.behind[program] = _larger(self.behind.get(program, {}), late)


def _larger(*works: ProgramCounts) -> ProgramCounts:
    """The larger amount of each; none is negative."""
    together: dict[str, float] = {}
    for work in works:
        for name, amount in work.items():
            together[name] = max(together.get(name, 0.0), amount)
    return together
