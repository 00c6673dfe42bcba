"""Runs a plan at real size as far as it can be afforded: what it moves, and the elements that some programs write.

First, addresses alone (`skips_floats`): every launch is walked through without its floating-point data, which finds
accesses out of bounds and counts traffic. Then, elements of the outputs are drawn; the programs that write them, those
that write what these read in earlier launches, and so on, are executed for real.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from evo_kernel.fitness.ir.counting import Counter, lines_of, mean_of, means_of
from evo_kernel.fitness.ir.engine import Observer, OutOfTime
from evo_kernel.fitness.ir.execute import Finding, Launched, Traits, launch, traits_of
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES, SECTOR_BYTES, WAVE_PROGRAMS, LaunchTraffic
from evo_kernel.fitness.ir.memory import PADDING, Memory, scattered, unit_places
from evo_kernel.fitness.ir.nodes import elements_of
from evo_kernel.fitness.ir.parse import Module, Operation
from evo_kernel.fitness.ir.types import Type
from evo_kernel.fitness.plan import Launch, Plan, View

FEW, SIDE_BY_SIDE = 8, 8
"""Programs all over a launch, and next to each other, of which every address is looked at."""
COUNT_S = 3.0
"""Seconds for counting all programs of a launch; of what takes longer, a random part is counted."""
MOST_COUNTED = 1 << 15
"""Programs of a launch that are counted at most: of more, a random part."""
MOST_LINES = 1_000_000
"""Runs of bytes up to which lines are told apart for all counted programs; beyond, for FEW of them."""


@dataclass(frozen=True)
class Counted:
    """Traffic of one launch, or what ended the count."""

    traffic: LaunchTraffic | None
    finding: Finding | None = None


def count(module: Module, node: Launch, memory: Memory, deadline: float, complete: bool, seed: int = 0) -> Counted:
    """Traffic of a launch. The same arguments and memory give the same answer, unless time runs short.

    `complete`: floating-point data is in memory too, and used where addresses depend on it.
    Raises Unsupported, IRError, OutOfTime.
    """
    traits, total = traits_of(module), math.prod(node.grid)
    generator = torch.Generator().manual_seed(seed)
    start = int(torch.randint(max(1, total - WAVE_PROGRAMS + 1), (), generator=generator))
    window = start + torch.arange(min(SIDE_BY_SIDE, total))
    few = torch.unique(torch.randint(total, (FEW,), generator=generator))  # none that a kernel could know
    sample = torch.unique(torch.cat([torch.tensor([0, total - 1]), few, window]))
    near = Counter(memory, total, footprints=True)
    found, _ = _walk(module, node, memory, sample, near, traits, deadline, complete)
    if found.finding is not None:
        return Counted(None, found.finding)
    ids = torch.arange(total)
    if total > MOST_COUNTED:
        ids = torch.randperm(total, generator=generator)[:MOST_COUNTED].sort().values
    everyone, counted = near, sample
    if total > sample.numel():
        affordable = near.kept * ids.numel() <= MOST_LINES * sample.numel()
        whole = Counter(memory, total, footprints=affordable)
        try:
            found, _ = _walk(
                module, node, memory, ids, whole, traits, min(deadline, time.monotonic() + COUNT_S), complete
            )
            if found.finding is not None:
                return Counted(None, found.finding)
            everyone, counted = whole, ids
            if affordable:
                few = ids
        except OutOfTime:
            pass  # the sample stands in
    return Counted(_summary(node, memory, near, sample, few, window, everyone, counted))


def _walk(
    module: Module, node: Launch, memory: Memory, programs: torch.Tensor, counter: Counter, traits: Traits,
    deadline: float, complete: bool,
) -> tuple[Launched, bool]:  # fmt: skip
    """Run programs without their floating-point data; with it, where addresses depend on it."""
    for skips in (True, False) if complete else (True,):
        found = launch(
            module, node.grid, node.args, memory, programs=programs, deadline=deadline, observer=counter,
            skips_floats=skips, traits=traits,
        )  # fmt: skip
        counter.end_round(programs)
        if found.finding is None or not skips or found.finding.kind != "undefined":
            return found, skips
        if not complete:
            return found, True
        counter.__init__(memory, math.prod(node.grid), counter._footprints)
    raise AssertionError("unreachable")


def _summary(
    node: Launch, memory: Memory, near: Counter, sample: torch.Tensor, few: torch.Tensor, window: torch.Tensor,
    everyone: Counter, counted: torch.Tensor,
) -> LaunchTraffic:  # fmt: skip
    total = math.prod(node.grid)
    lines = everyone if everyone.footprints("load") or everyone.footprints("store") else near
    work = sum(
        (everyone.by_program[name][counted] * share for name, share in _work_shares(everyone)),
        torch.zeros(counted.numel(), dtype=torch.float64),
    )
    load, store = (mean_of(everyone, f"{kind}_bytes", counted) for kind in ("load", "store"))
    return LaunchTraffic(
        programs=total,
        sampled=int(counted.numel()),
        load_bytes=load,
        store_bytes=store,
        load_sector_bytes=load * _sector_share(near, sample, "load"),
        store_sector_bytes=store * _sector_share(near, sample, "store"),
        atomic_elements=mean_of(everyone, "atomic", counted),
        wave_load_bytes=_together(near, "load", window, min(total, WAVE_PROGRAMS), memory),
        grid_load_bytes=_together(lines, "load", few, total, memory),
        grid_store_bytes=_together(lines, "store", few, total, memory),
        rounds=mean_of(everyone, "rounds", counted),
        iterations=mean_of(everyone, "iterations", counted),
        imbalance=float(work.max() / work.mean()) if float(work.mean()) > 0 else 1.0,
        flops={n[6:]: mean_of(everyone, n, counted) for n in sorted(everyone.by_program) if n.startswith("flops.")},
        elements={kind: everyone.elements[kind] / counted.numel() for kind in ("fp", "mufu", "int", "reduce")},
    )


def _work_shares(counter: Counter) -> list[tuple[str, float]]:
    flops = [(name, 0.01) for name in counter.by_program if name.startswith("flops.")]
    return [("load_bytes", 1.0), ("store_bytes", 1.0), *flops]


def _sector_share(counter: Counter, programs: torch.Tensor, kind: str) -> float:
    """Bytes of the sectors that accesses touch ÷ bytes that they ask for."""
    asked = mean_of(counter, f"{kind}_bytes", programs)
    return mean_of(counter, f"{kind}_sectors", programs) * SECTOR_BYTES / asked if asked else 0.0


def _together(counter: Counter, kind: str, programs: torch.Tensor, count: int, memory: Memory) -> float:
    """Bytes of different lines that `count` programs touch, from some of them; each buffer at most whole.

    Programs are taken to fall into groups of equal size that touch the same lines of a buffer (the tiles of a row share
    their rows of A). The number of groups G is where m programs are expected to touch G (1 - (1 - 1/G)^m) of them.
    """
    total = 0.0
    for buffer, (owners, first, last) in counter.footprints(kind).items():
        chosen = torch.isin(owners, programs)
        if not bool(chosen.any()):
            continue
        each = lines_of(first[chosen], last[chosen], owners[chosen]) / programs.numel()
        union = lines_of(first[chosen], last[chosen])
        lines = each * expand(union / max(each, 1e-9), programs.numel(), count)
        total += min(LINE_BYTES * lines, float(memory.buffers[buffer].size))
    return total


def expand(different: float, sampled: int, count: int) -> float:
    """Footprints' worth of different lines that `count` programs touch, when `sampled` of them touch `different`."""
    if sampled < 2 or different >= sampled - 0.25:  # lines of their own, but for one here and there where two meet
        return float(count)
    low, high = max(different, 1.0), 1e12
    for _ in range(80):
        middle = math.sqrt(low * high)
        if -math.expm1(sampled * math.log1p(-1 / max(middle, 1.0 + 1e-12))) * middle < different:
            low = middle
        else:
            high = middle
    return -math.expm1(count * math.log1p(-1 / max(high, 1.0 + 1e-12))) * high


# --- which programs -------------------------------------------------------------------------------------------------


class Seeker:
    """Finds programs that store to wanted bytes; for given programs, makes what they load wanted."""

    def __init__(self, memory: Memory, programs: int, wanted: dict[int, torch.Tensor]) -> None:
        """`wanted`: a boolean for each shadow element of a buffer, by number; only of buffers that launches write."""
        self._memory, self._wanted = memory, wanted
        self.found = torch.zeros(programs, dtype=torch.bool)
        self.marks = False

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None: ...

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None: ...

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        loads = operation.name in ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")
        if loads != self.marks:
            return
        full = (programs.numel(), *shape)
        access = self._memory.access(pointer.sum, item, len(full), PADDING // 2 if mask is not None else 0)
        if access is not None:
            number = self._memory.buffers.index(access.buffer)
            if number not in self._wanted:
                return
            parts = None if loads else access.by_program(programs.numel())
            if parts is not None:
                unit = access.buffer.unit(item)
                for first, end, part in parts:
                    hit = part.view(self._wanted[number], unit, item // unit)
                    hit = hit.any(-1) if item > unit else hit
                    if not bool(hit.any()):
                        continue
                    hit = hit if mask is None else hit & mask.rows(torch.arange(first, end)).data
                    hit = hit.expand(end - first, *shape).reshape(end - first, -1).any(1)
                    self.found[programs[first:end][hit]] = True
                return
        lanes = scattered(pointer, None if mask is None else mask.data, programs, full)
        for buffer, places, chosen in lanes.by_buffer(self._memory, item):
            number = self._memory.buffers.index(buffer)
            if number not in self._wanted:
                continue
            units = unit_places(places, item, buffer.unit(item))
            if loads:
                self._wanted[number][units] = True
            else:
                owners = lanes.programs if chosen is None else lanes.programs[chosen]
                self.found[owners[self._wanted[number][units].any(-1)]] = True


class DependsOnData(Exception):
    """Where a launch goes depends on its floating-point data: it cannot be surveyed without."""


class Part:
    """A look at a part of a plan: a survey of all launches without floating-point data, then some programs with it."""

    def __init__(
        self, plan: Plan, modules: Sequence[Module], memory: Memory, deadline: float, generator: torch.Generator,
        elements: int,
    ) -> None:  # fmt: skip
        self._plan, self._deadline, self._generator, self._elements = plan, deadline, generator, elements
        self._launches = plan.launches
        self._modules = [modules[node.kernel] for node in self._launches]
        self._memory = memory
        self._chosen: list[torch.Tensor] | None = None
        self._conflicts: list[tuple[int, int]] = []
        self._stored: dict[int, torch.Tensor] = {}
        self._wanted_elements: list[torch.Tensor] = []
        self._blind = False  # programs were chosen without a survey
        self._surveyed: list[Counter] = []
        self._ran: list[Counter] = []
        self.unwritten = [0] * len(plan.outputs)  # elements that no launch writes

    def survey(self, number: int, module: Module, node: Launch) -> Launched:
        """Every launch, for `run_nodes`; after the last one programs are chosen."""
        self._surveyed.append(Counter(self._memory, math.prod(node.grid), footprints=False))
        found = self._skipping(module, node, self._memory, self._surveyed[-1], None)
        if found.finding is not None and found.finding.kind == "undefined":
            raise DependsOnData
        self._conflicts += found.conflicts
        for buffer, marks in self._touched().items():
            self._stored[buffer] = self._stored[buffer] | marks if buffer in self._stored else marks
        if found.finding is None and number == len(self._launches) - 1:
            self.unwritten = [self._unwritten(view) for view in self._plan.outputs]
            self._chosen = self._choose()
        return found

    def choose_blindly(self) -> None:
        """For one launch that cannot be surveyed: random programs, of which whatever they write is looked at."""
        (node,) = self._launches
        total = math.prod(node.grid)
        drawn = torch.randint(total, (self._elements,), generator=self._generator)
        self._chosen = [torch.unique(torch.cat([drawn, torch.tensor([total - 1])]))]
        self._blind = True
        self._wanted_elements = []

    def _touched(self) -> dict[int, torch.Tensor]:
        """Shadow elements that the launch stored to, by buffer."""
        return {
            number: buffer.writer != 0
            for number, buffer in enumerate(self._memory.buffers)
            if buffer.writer is not None
        }

    def _unwritten(self, view: View) -> int:
        buffer, stored = self._memory.buffers[view.buffer], self._stored.get(view.buffer)
        if buffer.defined is None:
            return 0
        buffer.unit(view.item_bytes)
        marks = buffer.defined if stored is None else stored | buffer.defined
        return view.elements - int(elements_of(marks, buffer, view).sum())

    def run(self, memory: Memory) -> Callable[[int, Module, Launch], Launched]:
        """The chosen programs of each launch, for `run_nodes`."""

        def launched(number: int, module: Module, node: Launch) -> Launched:
            assert self._chosen is not None
            programs = self._chosen[number]
            self._ran.append(Counter(memory, math.prod(node.grid), footprints=False))
            if not programs.numel():
                return Launched(math.prod(node.grid), 0)
            return launch(
                module, node.grid, node.args, memory, programs=programs, deadline=self._deadline, seed=number,
                observer=self._ran[-1],
            )  # fmt: skip

        return launched

    def executed(self) -> list[dict[str, float]]:
        """What programs did in the mean: as surveyed, times what those that ran did beyond their survey."""
        assert self._chosen is not None
        made = []
        for surveyed, ran, programs in zip(self._surveyed, self._ran, self._chosen, strict=True):
            means = {} if self._blind else means_of(surveyed)
            for name, amounts in ran.by_program.items():
                did = float(amounts[programs].sum())
                told = 0.0 if self._blind else float(surveyed.by_program[name][programs].sum())
                mean = did / programs.numel() if told == 0 else means.get(name, 0.0) * did / told
                means[name] = max(mean, means.get(name, 0.0))
            made.append(means)
        return made

    def written(self, memory: Memory, output: int) -> torch.Tensor:
        """Numbers (in row-major order) of the elements of an output that the chosen programs had to write."""
        if self._wanted_elements:
            return self._wanted_elements[output]
        view = self._plan.outputs[output]
        buffer = memory.buffers[view.buffer]
        if buffer.writer is None or not view.elements:
            return torch.zeros(0, dtype=torch.int64)
        return elements_of(buffer.writer != 0, buffer, view).reshape(-1).nonzero().squeeze(1)

    def _skipping(
        self, module: Module, node: Launch, memory: Memory, observer: Observer | None, programs: torch.Tensor | None
    ) -> Launched:
        return launch(
            module, node.grid, node.args, memory, programs=programs, deadline=self._deadline, observer=observer,
            skips_floats=True,
        )  # fmt: skip

    def _choose(self) -> list[torch.Tensor]:
        """Programs of each launch from which random elements of the outputs come; see the module."""
        wanted: dict[int, torch.Tensor] = {
            number: self._memory.buffers[number].marks()
            for number, buffer in enumerate(self._plan.buffers)
            if buffer.kind == "scratch"
        }
        for view in self._plan.outputs:
            self._draw(view, wanted)
        for buffer, place in self._conflicts:
            if buffer in wanted:
                wanted[buffer][(PADDING + place) // self._memory.buffers[buffer].unit(1 << 30)] = True
        chosen: list[torch.Tensor] = []
        for module, node in zip(reversed(self._modules), reversed(self._launches), strict=True):
            seeker = Seeker(self._memory, math.prod(node.grid), wanted)
            self._skipping(module, node, self._memory, seeker, None)
            programs = seeker.found.nonzero().squeeze(1)
            if programs.numel() and len(self._launches) > 1:
                seeker.marks = True
                self._skipping(module, node, self._memory, seeker, programs)
            chosen.append(programs)
        self._wanted_elements = self._reached(chosen[::-1])
        return chosen[::-1]

    def _draw(self, view: View, wanted: dict[int, torch.Tensor]) -> None:
        if view.buffer not in wanted or not view.elements:
            return
        numbers = torch.randint(view.elements, (self._elements,), generator=self._generator)
        numbers = torch.cat([numbers, torch.tensor([view.elements - 1])])
        for number in numbers.tolist():
            offset, rest = view.offset, number
            for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
                offset, rest = offset + rest % size * stride, rest // size
            unit = self._memory.buffers[view.buffer].unit(1 << 30)
            first = PADDING + offset * view.item_bytes
            wanted[view.buffer][first // unit : -(-(first + view.item_bytes) // unit)] = True

    def _reached(self, chosen: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Elements of each output that the chosen programs store, by a run of the last launches without data."""
        for buffer in self._memory.buffers:
            buffer.writer = None
        touched: dict[int, torch.Tensor] = {}
        for module, node, programs in zip(self._modules, self._launches, chosen, strict=True):
            if programs.numel():
                self._skipping(module, node, self._memory, None, programs)
                for number, marks in self._touched().items():
                    touched[number] = touched[number] | marks if number in touched else marks
        made = []
        for view in self._plan.outputs:
            marks = touched.get(view.buffer)
            if marks is None or not view.elements:
                made.append(torch.zeros(0, dtype=torch.int64))
                continue
            made.append(elements_of(marks, self._memory.buffers[view.buffer], view).reshape(-1).nonzero().squeeze(1))
        return made
