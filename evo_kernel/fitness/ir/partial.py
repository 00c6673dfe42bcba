"""Runs a plan at real size as far as it can be afforded: what it moves, and the elements that some programs write.

First, addresses alone (`skips_floats`): every launch is walked through without its floating-point data, which finds
accesses out of bounds and counts traffic. Then programs are drawn (program_sampling.py); those, all that store to the
same elements, those that write what these read in earlier launches, and so on, are executed for real.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from evo_kernel.fitness.ir.counting import Counter, busiest_of, loops_in, mean_of, means_of, most_of
from evo_kernel.fitness.ir.engine import ExecutionObserver, OutOfTime
from evo_kernel.fitness.ir.execute import ExecutionFinding, Launched, Traits, buffers_of, chunk_size, launch, traits_of
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.launch_traffic import SECTOR_BYTES, WAVE_PROGRAMS, LaunchTraffic
from evo_kernel.fitness.ir.memory import PADDING, DeviceMemory, scattered, unit_places
from evo_kernel.fitness.ir.nodes import elements_of
from evo_kernel.fitness.ir.parse import IRModule, Operation
from evo_kernel.fitness.ir.program_sampling import draw, groups_of
from evo_kernel.fitness.ir.types import Type
from evo_kernel.fitness.plan.launch_plan import Launch, Plan, View

FEW, SIDE_BY_SIDE, STRETCHES = 64, 8, 3
"""Programs all over a launch, and next to each other in so many places, of which every address is looked at. With 8 all
over, what a product of 4096^3 was counted to move varied by 28 % (standard deviation) between draws; with 64 by 7 %."""
COUNT_S = 3.0
"""Seconds for counting all programs of a launch; of what takes longer, a random part is counted."""
MOST_COUNTED = 1 << 15
"""Programs of a launch that are counted at most: of more, a random part."""
MOST_RUNS = 1 << 25
"""Runs of bytes up to which lines are kept of all counted programs: about half a second. Beyond, of FEW of them."""
ELEMENTS = 6
"""Random elements of each output that are looked at, beside all that the drawn programs write."""
MOST_TOLD = 1 << 18
"""Elements of an output that are compared with the reference."""
READERS, MOST_HANDED_ON = 4, 4
"""Programs of a launch that are drawn as they read what drawn ones store; in plans of up to so many launches."""
BYTES_PER_S, FLOPS_PER_S, ITERATION_S = 0.7e9, 4e10, 1e-3
"""What one core executes, roughly; an iteration is one of a chunk of programs. Decides only how much is executed."""


@dataclass(frozen=True)
class CountedLaunch:
    """Traffic of one launch, or what ended the count."""

    traffic: LaunchTraffic | None
    finding: ExecutionFinding | None = None


def count(
    module: IRModule, node: Launch, memory: DeviceMemory, deadline: float, complete: bool, seed: int = 0
) -> CountedLaunch:
    """Traffic of a launch. The same arguments and memory give the same answer, unless time runs short.

    `complete`: floating-point data is in memory too, and used where addresses depend on it.
    Raises Unsupported, IRError, OutOfTime.
    """
    traits, total = traits_of(module), math.prod(node.grid)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(max(1, total - SIDE_BY_SIDE + 1), (STRETCHES, 1), generator=generator)
    windows = starts + torch.arange(min(SIDE_BY_SIDE, total))
    few = _some(total, generator)
    sample = torch.unique(torch.cat([torch.tensor([0, total - 1]), few, windows.reshape(-1)]))
    if traits.waits:  # some would wait for ever for those that are left out
        return _count_all(module, node, memory, traits, deadline, complete, sample, few, windows, seed)
    restore = _kept(module, node, memory, traits)
    found, near = _walk(
        module, node, memory, sample, Counter(module, memory, total, True, seed), traits, deadline, complete
    )
    if found.finding is not None:
        return CountedLaunch(None, found.finding)
    everyone, counted = near, sample
    if total > sample.numel():
        ids = torch.arange(total)
        if total > MOST_COUNTED:
            ids = torch.randperm(total, generator=generator)[:MOST_COUNTED].sort().values
        restore()
        try:
            expected = near.footprints.seen * ids.numel() / sample.numel()
            whole = Counter(module, memory, total, expected <= MOST_RUNS, seed, sectors=False, expected=expected)
            until = min(deadline, time.monotonic() + COUNT_S)
            found, whole = _walk(module, node, memory, ids, whole, traits, until, complete)
            if found.finding is not None:
                return CountedLaunch(None, found.finding)
            everyone, counted = whole, ids
        except OutOfTime:
            pass  # the sample stands in
    return CountedLaunch(_summary(node, near, sample, few, windows, everyone, counted))


def _some(total: int, generator: torch.Generator) -> torch.Tensor:
    """FEW different programs that no kernel could know, all over a launch; all of a smaller one."""
    if total <= MOST_COUNTED:
        return torch.randperm(total, generator=generator)[:FEW].sort().values
    drawn = torch.unique(torch.randint(total, (2 * FEW,), generator=generator))
    return drawn[torch.randperm(drawn.numel(), generator=generator)[:FEW]].sort().values


def _count_all(
    module: IRModule, node: Launch, memory: DeviceMemory, traits: Traits, deadline: float, complete: bool,
    sample: torch.Tensor, few: torch.Tensor, windows: torch.Tensor, seed: int,
) -> CountedLaunch:  # fmt: skip
    """All programs in the order of their ids."""
    everyone = torch.arange(math.prod(node.grid))
    counter = Counter(module, memory, everyone.numel(), True, seed)
    found, counter = _walk(module, node, memory, everyone, counter, traits, deadline, complete)
    if found.finding is not None:
        return CountedLaunch(None, found.finding)
    return CountedLaunch(_summary(node, counter, sample, few, windows, counter, everyone))


def _kept(module: IRModule, node: Launch, memory: DeviceMemory, traits: Traits) -> Callable[[], None]:
    """Puts back what programs share through atomic operations: a counter that ran out would end the next walk."""
    shared = buffers_of(module.entry, node.args, traits.loaded) & buffers_of(module.entry, node.args, traits.stored)
    buffers = [memory.buffers[number] for number in shared] if traits.in_order else []
    before = [(b, b.storage.clone(), None if b.defined is None else b.defined.clone()) for b in buffers]

    def restore() -> None:
        for buffer, storage, defined in before:
            buffer.storage.copy_(storage)
            if defined is None or (buffer.defined is not None and defined.shape == buffer.defined.shape):
                buffer.defined = defined

    return restore


def _walk(
    module: IRModule, node: Launch, memory: DeviceMemory, programs: torch.Tensor, counter: Counter, traits: Traits,
    deadline: float, complete: bool,
) -> tuple[Launched, Counter]:  # fmt: skip
    """Run programs without their floating-point data; with it, where addresses depend on it. Returns what counted."""
    for skips in (True, False) if complete else (True,):
        found = launch(
            module, node.grid, node.args, memory, programs=programs, deadline=deadline, observer=counter,
            skips_floats=skips, traits=traits,
        )  # fmt: skip
        if found.finding is None or not skips or found.finding.kind != "undefined" or not complete:
            return found, counter
        counter = counter.again()
    raise AssertionError("unreachable")


def _summary(
    node: Launch, near: Counter, sample: torch.Tensor, few: torch.Tensor, windows: torch.Tensor, everyone: Counter,
    counted: torch.Tensor,
) -> LaunchTraffic:  # fmt: skip
    """`near` saw `sample`, of which `few` are random and `windows` lie side by side; `everyone` saw `counted`."""
    total = math.prod(node.grid)
    wave = min(total, WAVE_PROGRAMS)
    told_by_all = everyone.keeps_lines and (everyone is not near or counted.numel() == total)
    lines, those = (everyone, counted) if told_by_all else (near, few)  # not of neighbours, which share more
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
        wave_load_bytes=sum(near.footprints.expanded("load", one, wave) for one in windows) / len(windows),
        grid_load_bytes=lines.footprints.expanded("load", those, total),
        grid_store_bytes=lines.footprints.expanded("store", those, total),
        rounds=mean_of(everyone, "rounds", counted),
        waiting_rounds=mean_of(everyone, "waiting_rounds", counted),
        iterations=mean_of(everyone, "iterations", counted),
        imbalance=float(work.max() / work.mean()) if float(work.mean()) > 0 else 1.0,
        flops={n[6:]: mean_of(everyone, n, counted) for n in sorted(everyone.by_program) if n.startswith("flops.")},
        elements={kind: everyone.elements[kind] / counted.numel() for kind in ("fp", "mufu", "int", "reduce")},
        loops=loops_in(everyone, counted),
        few_load_bytes=near.footprints.different("load", few),
        few_store_bytes=near.footprints.different("store", few),
        busiest=busiest_of(everyone, counted),
    )


def _work_shares(counter: Counter) -> list[tuple[str, float]]:
    flops = [(name, 0.01) for name in counter.by_program if name.startswith("flops.")]
    return [("load_bytes", 1.0), ("store_bytes", 1.0), *flops]


def _sector_share(counter: Counter, programs: torch.Tensor, kind: str) -> float:
    """Bytes of the sectors that accesses touch ÷ bytes that they ask for."""
    asked = mean_of(counter, f"{kind}_bytes", programs)
    return mean_of(counter, f"{kind}_sectors", programs) * SECTOR_BYTES / asked if asked else 0.0


def touched(counter: Counter, programs: torch.Tensor) -> dict[str, float]:
    """Sectors' share of bytes, and bytes of different lines, of the programs of which they were kept."""
    shares = {f"touched.{kind}_sectors": _sector_share(counter, programs, kind) for kind in ("load", "store")}
    return shares | {
        f"touched.{kind}_lines": counter.footprints.different(kind, programs) for kind in ("load", "store")
    }


def looked_at(programs: torch.Tensor, seed: int) -> torch.Tensor:
    """Of programs that are executed, those of which lines are kept."""
    drawn = torch.randperm(programs.numel(), generator=torch.Generator().manual_seed(seed))[:FEW]
    return programs[drawn].sort().values


# --- which programs -------------------------------------------------------------------------------------------------


class Seeker:
    """Marks what the programs of a launch load or store, or finds those that load or store what is marked."""

    def __init__(
        self, memory: DeviceMemory, programs: int, marked: dict[int, torch.Tensor], *, loads: bool, marks: bool
    ) -> None:
        """`marked`: a boolean for each shadow element of a buffer, by number; only of buffers that launches write."""
        self._memory, self._marked, self._loads, self._marks = memory, marked, loads, marks
        self.found = torch.zeros(programs, dtype=torch.bool)

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None: ...

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None: ...

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        if (operation.name in ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")) != self._loads:
            return
        full = (programs.numel(), *shape)
        access = self._memory.access(pointer.sum, item, len(full), PADDING // 2 if mask is not None else 0)
        if access is not None:
            number = self._memory.buffers.index(access.buffer)
            if number not in self._marked:
                return
            parts = None if self._marks else access.by_program(programs.numel())
            if parts is not None:
                unit = access.buffer.unit(item)
                for first, end, part in parts:
                    hit = part.view(self._marked[number], unit, item // unit)
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
            if number not in self._marked:
                continue
            units = unit_places(places, item, buffer.unit(item))
            if self._marks:
                self._marked[number][units] = True
            else:
                owners = lanes.programs if chosen is None else lanes.programs[chosen]
                self.found[owners[self._marked[number][units].any(-1)]] = True


class DependsOnData(Exception):
    """Where a launch goes depends on its floating-point data: it cannot be surveyed without."""


class PartialExecution:
    """A look at a part of a plan: a survey of all launches without floating-point data, then some programs with it."""

    def __init__(
        self, plan: Plan, modules: Sequence[IRModule], memory: DeviceMemory, deadline: float, generator: torch.Generator
    ) -> None:
        self._plan, self._memory, self._deadline, self._generator = plan, memory, deadline, generator
        self._launches = plan.launches
        self._modules = [modules[node.kernel] for node in self._launches]
        self.chosen: list[torch.Tensor] = []
        self._conflicts: list[tuple[int, int]] = []
        self._stored: dict[int, torch.Tensor] = {}
        self._alone = False  # what the last launch stores is stored by it alone, each element by one program
        self.writers: dict[int, torch.Tensor] = {}  # of the last launch, by buffer
        self._spans: list[tuple[int, ...]] = []  # by output
        self._surveyed: list[Counter] = []
        self._ran: list[Counter] = []
        self._looked_at: list[torch.Tensor] = []  # programs of each launch whose lines are kept
        self.compared: list[torch.Tensor] = []  # by output, numbers of elements that the chosen programs must write
        self.unwritten = [0] * len(plan.outputs)  # elements that no launch writes

    # --- all programs, without data -------------------------------------------------------------------------------

    def survey(self, number: int, module: IRModule, node: Launch) -> Launched:
        """Every launch, for `run_nodes`. Raises DependsOnData."""
        counter = Counter(module, self._memory, math.prod(node.grid), footprints=False, blocks=True)
        self._surveyed.append(counter)
        found = self._skipping(number, counter, None)
        if found.finding is not None and found.finding.kind == "undefined":
            raise DependsOnData
        self._conflicts += found.conflicts
        stored = {place for place, buffer in enumerate(self._memory.buffers) if buffer.writer is not None}
        self._alone = not (self._conflicts or "atomic" in counter.by_program or stored & self._stored.keys())
        for place, buffer in enumerate(self._memory.buffers):
            if buffer.writer is not None:
                marks = buffer.writer != 0
                self._stored[place] = self._stored[place] | marks if place in self._stored else marks
        if found.finding is None and number == len(self._launches) - 1:
            self.unwritten = [self._unwritten(view) for view in self._plan.outputs]
            self.writers = {n: b.writer for n, b in enumerate(self._memory.buffers) if b.writer is not None}
            self._spans = [self._span(view) for view in self._plan.outputs]
        return found

    def seconds(self) -> float:
        """What executing all of the plan would take, roughly."""
        everyone = [torch.arange(math.prod(node.grid)) for node in self._launches]
        return self._seconds_of(everyone)

    def _seconds_of(self, programs: Sequence[torch.Tensor]) -> float:
        """What executing some programs of each launch would take, roughly."""
        return sum(float(self._seconds(number)[some].sum()) for number, some in enumerate(programs))

    def _seconds(self, number: int) -> torch.Tensor:
        """Of one launch, by program."""
        counts, node = self._surveyed[number].by_program, self._launches[number]
        none = torch.zeros(math.prod(node.grid), dtype=torch.float64)
        moved = counts.get("load_bytes", none) + counts.get("store_bytes", none)
        flops = sum((counts[name] for name in counts if name.startswith("flops.")), none)
        each = ITERATION_S / min(none.numel(), chunk_size(traits_of(self._modules[number])))
        return moved / BYTES_PER_S + flops / FLOPS_PER_S + (1 + counts.get("iterations", none)) * each

    def _unwritten(self, view: View) -> int:
        buffer, stored = self._memory.buffers[view.buffer], self._stored.get(view.buffer)
        if buffer.defined is None:
            return 0
        buffer.unit(view.item_bytes)
        marks = buffer.defined if stored is None else stored | buffer.defined
        return view.elements - int(elements_of(marks, buffer, view).sum())

    def _skipping(self, number: int, observer: ExecutionObserver, programs: torch.Tensor | None) -> Launched:
        node = self._launches[number]
        return launch(
            self._modules[number], node.grid, node.args, self._memory, programs=programs, deadline=self._deadline,
            observer=observer, skips_floats=True, surveys=True,
        )  # fmt: skip

    def _seek(
        self, number: int, marked: dict[int, torch.Tensor], programs: torch.Tensor | None, *, loads: bool, marks: bool
    ) -> torch.Tensor:
        """Programs of a launch that a Seeker finds among some, or all."""
        if programs is not None and not programs.numel():
            return programs
        seeker = Seeker(self._memory, math.prod(self._launches[number].grid), marked, loads=loads, marks=marks)
        self._skipping(number, seeker, programs)
        return seeker.found.nonzero().squeeze(1)

    # --- which programs -------------------------------------------------------------------------------------------

    def choose(self, limit_s: float) -> None:
        """Programs of each launch: those that are drawn, and those that they need. They take about `limit_s`."""
        drawn = self._drawn(limit_s)
        self._resolve(drawn)
        taken = self._seconds_of(self.chosen)
        if taken > 2 * limit_s > 2 * self._seconds_of(drawn):  # they need more of earlier launches than their share
            self._resolve(self._drawn(limit_s * limit_s / taken))

    def _drawn(self, limit_s: float) -> list[torch.Tensor]:
        """Of each launch programs that are looked at, and readers of what those of earlier launches store."""
        share = limit_s / len(self._launches)
        drawn = [
            draw(node.grid, self._surveyed[number], self._seconds(number), share, self._generator)
            for number, node in enumerate(self._launches)
        ]
        if len(self._launches) > MOST_HANDED_ON:
            return drawn
        for number in range(len(self._launches) - 1):
            if not groups_of(self._surveyed[number], math.prod(self._launches[number].grid)):
                continue  # any programs of it will do: those that others need
            stored = self._marks()
            self._seek(number, stored, drawn[number], loads=False, marks=True)
            for later in range(number + 1, len(self._launches)):
                readers = self._seek(later, stored, None, loads=True, marks=False)
                some = torch.randperm(readers.numel(), generator=self._generator)[:READERS]
                drawn[later] = torch.unique(torch.cat([drawn[later], readers[some]]))
        return drawn

    def _marks(self) -> dict[int, torch.Tensor]:
        """Nothing marked, in all buffers that launches may write."""
        kinds = enumerate(self._plan.buffers)
        return {number: self._memory.buffers[number].marks() for number, one in kinds if one.kind == "scratch"}

    def _resolve(self, drawn: Sequence[torch.Tensor]) -> None:
        """What drawn programs store to outputs is compared: chosen are all that store it, or what those read."""
        wanted = self._marks()
        outputs = {view.buffer: wanted[view.buffer] for view in self._plan.outputs if view.buffer in wanted}
        for view in self._plan.outputs:
            self._draw_elements(view, outputs)
        for buffer, place in self._conflicts:
            if buffer in wanted:
                wanted[buffer][(PADDING + place) // self._memory.buffers[buffer].unit(1 << 30)] = True
        owners = [writer[outputs[n]] for n, writer in self.writers.items() if n in outputs]
        for number, programs in enumerate(drawn):
            self._seek(number, outputs, programs, loads=False, marks=True)
        self.compared = [self._elements(view, outputs) for view in self._plan.outputs]
        chosen: list[torch.Tensor] = []
        for number in reversed(range(len(self._launches))):
            if self._alone and number == len(self._launches) - 1:
                programs = torch.unique(torch.cat([drawn[-1], *(owner[owner > 0].long() - 1 for owner in owners)]))
            else:
                programs = self._seek(number, wanted, None, loads=False, marks=False)
            if number:
                self._seek(number, wanted, programs, loads=True, marks=True)
            chosen.append(programs)
        self.chosen = chosen[::-1]

    def _draw_elements(self, view: View, wanted: dict[int, torch.Tensor]) -> None:
        """The last element of an output and random ones."""
        if view.buffer not in wanted or not view.elements:
            return
        numbers = torch.randint(view.elements, (ELEMENTS,), generator=self._generator).tolist()
        unit = self._memory.buffers[view.buffer].unit(1 << 30)
        for number in (*numbers, view.elements - 1):
            offset, rest = view.offset, number
            for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
                offset, rest = offset + rest % size * stride, rest // size
            first = PADDING + offset * view.item_bytes
            wanted[view.buffer][first // unit : -(-(first + view.item_bytes) // unit)] = True

    def _elements(self, view: View, wanted: dict[int, torch.Tensor]) -> torch.Tensor:
        """Numbers, in row-major order, of those elements of an output that are marked."""
        if view.buffer not in wanted or not view.elements:
            return torch.zeros(0, dtype=torch.int64)
        marks = elements_of(wanted[view.buffer], self._memory.buffers[view.buffer], view)
        return marks.reshape(-1).nonzero().squeeze(1)

    def told(self, output: int) -> torch.Tensor:
        """Of those the ones that the reference is asked for: of very many, a share of each axis of every program's."""
        numbers, view, spans = self.compared[output], self._plan.outputs[output], self._spans[output]
        long = [axis for axis, span in enumerate(spans) if span > 1]
        share = (MOST_TOLD / max(1, numbers.numel())) ** (1 / max(1, len(long)))
        if share >= 1:
            return numbers
        where = torch.unravel_index(numbers, view.shape)
        kept = torch.ones(numbers.numel(), dtype=torch.bool)
        for axis in long:
            kept &= (torch.rand(view.shape[axis], generator=self._generator) < max(share, 1 / spans[axis]))[where[axis]]
        return numbers[kept]

    def _span(self, view: View) -> tuple[int, ...]:
        """How many elements of an output one program writes along each axis; all, where it is not known."""
        buffer = self._memory.buffers[view.buffer]
        if buffer.writer is None or not view.elements:
            return view.shape
        times, start = view.item_bytes // buffer.unit(1 << 30), PADDING + view.offset * view.item_bytes
        strides = [stride * max(1, times) for stride in view.strides]
        writer = buffer.writer.as_strided(view.shape, strides, start // buffer.unit(1 << 30))
        middle = writer[tuple(size // 2 for size in view.shape)]
        return tuple(axis.unique().numel() for axis in (writer == middle).nonzero(as_tuple=True))

    # --- those, with data -----------------------------------------------------------------------------------------

    def run(self, memory: DeviceMemory, reverse: bool = False) -> Callable[[int, IRModule, Launch], Launched]:
        """The chosen programs of each launch, for `run_nodes`."""
        self._ran, self._looked_at = [], []

        def launched(number: int, module: IRModule, node: Launch) -> Launched:
            programs = self.chosen[number]
            seed = self._generator.initial_seed()
            few = looked_at(programs, seed)
            self._ran.append(Counter(module, memory, math.prod(node.grid), footprints=few, seed=seed))
            self._looked_at.append(few)
            if not programs.numel():
                return Launched(math.prod(node.grid), 0)
            return launch(
                module, node.grid, node.args, memory, programs=programs, deadline=self._deadline, seed=number,
                observer=self._ran[-1], reverse=reverse,
            )  # fmt: skip

        return launched

    def executed(self) -> list[dict[str, float]]:
        """What programs did in the mean: as surveyed, times what those that ran did beyond their survey."""
        made = []
        for surveyed, ran, programs, few in zip(self._surveyed, self._ran, self.chosen, self._looked_at, strict=True):
            means = means_of(surveyed)
            for name, amounts in ran.by_program.items():
                did, told = (float(counts[programs].sum()) for counts in (amounts, surveyed.by_program[name]))
                mean = did / programs.numel() if told == 0 else means.get(name, 0.0) * did / told
                means[name] = max(mean, means.get(name, 0.0))
            for name, amount in most_of(ran).items():
                means[name] = max(amount, means.get(name, 0.0))
            made.append(means | touched(ran, few))
        return made
