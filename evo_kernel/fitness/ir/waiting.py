"""Counts what a program waits for that spins until another program of its launch has stored something.

Such programs run one at a time here, each when all that it waits for is done. So a store posts how much its program has
behind it, and a loop's condition that reads what was posted takes that over: no program is past its wait before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.memory import BASE_BITS
from evo_kernel.fitness.ir.module import IRModule, Operation

ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
_MOST_POSTED = 1 << 18  # addresses; beyond, stores to a buffer count as one

Work = Mapping[str, float]
"""By the names of `Counter.by_program`."""


def spins_of(module: IRModule) -> frozenset[int]:
    """Loads and atomic operations in the conditions of loops, by their ordinals; none in a kernel without atomics."""
    operations = list(module.operations())
    if not any(operation.name in ATOMICS for operation in operations):
        return frozenset()
    conditions = [operation.regions[0] for operation in operations if operation.name == "scf.while"]
    return frozenset(
        inner.ordinal for region in conditions for inner in region.walk() if inner.name in (*ATOMICS, "tt.load")
    )


class WaitCounter:
    """What each program of a launch took over from others: `behind` holds it by program, beside its own work."""

    def __init__(self, module: IRModule, own: Callable[[int], Work]) -> None:
        """`own`: what makes a program last, of all that it has done itself."""
        self._spins, self._own = spins_of(module), own
        self.behind: dict[int, Work] = {}
        self._posted: dict[int, Work] = {}  # by address
        self._anywhere: defaultdict[int, Work] = defaultdict(dict)  # by buffer: posted over many addresses at once

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
                    self._anywhere[buffer] = _most(self._anywhere[buffer], self._reached(program))

    def _reached(self, program: int) -> Work:
        own, behind = self._own(program), self.behind.get(program, {})
        return {name: amount + behind.get(name, 0.0) for name, amount in own.items()}

    def _take_over(self, low: int, high: int, program: int) -> None:
        if low == high:
            found = self._posted.get(low, {})
        else:
            found = _most({}, *(work for address, work in self._posted.items() if low <= address <= high))
        for buffer in range(low >> BASE_BITS, (high >> BASE_BITS) + 1):
            found = _most(found, self._anywhere.get(buffer, {}))
        if found:
            own = self._own(program)
            late = {name: amount - own.get(name, 0.0) for name, amount in found.items()}
            self.behind[program] = _most(self.behind.get(program, {}), late)


def _most(*works: Work) -> Work:
    """The larger amount of each; none is negative."""
    together: dict[str, float] = {}
    for work in works:
        for name, amount in work.items():
            together[name] = max(together.get(name, 0.0), amount)
    return together
