"""Counts a launch's memory accesses and operations by program during execution.

Totals are exact for the executed programs. Distinct lines require the addresses themselves: see footprints.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from evo_kernel.fitness.ir.coalescing import Runs, distinct_bytes, runs_of, scattering, sectors_of, together
from evo_kernel.fitness.ir.footprints import Footprints, Reuse, reuse_of
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES, SECTOR_BYTES, ProgramWork, work_of
from evo_kernel.fitness.ir.layouts import expanded
from evo_kernel.fitness.ir.memory import BASE_BITS, DeviceMemory
from evo_kernel.fitness.ir.module import LOADS, IRModule, Operation, loops_of
from evo_kernel.fitness.ir.own_lines import long_runs, own_lines
from evo_kernel.fitness.ir.rounds import ProgramCounts, RoundCounter, WaitCounter
from evo_kernel.fitness.ir.types import Type

_MUFU = {"math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.sin", "math.cos",
         "tt.precise_sqrt"}  # fmt: skip
FREE = {"arith.constant", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.make_range", "tt.get_program_id",
         "tt.get_num_programs", "tt.load", "tt.reshape", "tt.trans", "scf.for", "scf.while", "scf.if", "tt.bitcast",
         "arith.bitcast", "tt.call", "tt.descriptor_load"}  # fmt: skip
DOTS = frozenset({"tt.dot", "tt.dot_scaled", "ttng.warp_group_dot"})
_KINDS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64", "f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5",
          "i8": "int8"}  # fmt: skip
PARTED = frozenset(["tf32", "tf32x3", "bf16x3", "bf16x6"])
"""Ways to give tensor cores operands of float32, in as many products as the name says."""
_SMALL, _MOST_WAITING = 1 << 12, 1 << 16
"""Runs of an access that waits for others; runs that wait."""
_WARP, _VECTOR_BYTES = 32, 16
_PLACES = 1_000_003
"""Lines, or addresses, that are told apart: a prime, so that no columns of a matrix share one."""
_BUFFER_LINES = (1 << BASE_BITS) // LINE_BYTES
_SHARED = 16
"""Counted programs that update a line, of which more are taken for a share of all."""
_Note = Callable[[Operation, Type | None, torch.Tensor, int], None]


class Counter:
    """Observes one launch of `programs` programs.

    With `sectors`, those that the same programs ask for are counted. With `blocks`, it is kept how often each program
    reaches each block. `by_program` holds the iterations of each loop under "loop.", its name, and "iterations".
    """

    def __init__(
        self,
        module: IRModule,
        memory: DeviceMemory,
        programs: int,
        footprints: bool | torch.Tensor,
        seed: int = 0,
        sectors: bool = True,
        blocks: bool = False,
        expected: float = 0.0,
        followed: torch.Tensor | None = None,
    ) -> None:
        """`seed` and `expected`: see `Footprints`. `followed`: programs of which `reuse` tells."""
        self.again = partial(Counter, module, memory, programs, footprints, seed, sectors, blocks, expected, followed)
        self._followed = followed
        self._reached: list[torch.Tensor] = []  # by recorded access: the rounds of those programs
        self._stored: list[tuple[int, Runs]] = []  # what was overwritten, by number of the recorded access
        self._footprints = Footprints(memory, seed, expected)
        self._waiting: list[tuple[str, Runs]] = []  # small accesses, flat: many are looked at together
        self._runs_waiting = 0
        self._memory, self._sectors, self.keeps_lines, self._sample = memory, sectors, footprints is not False, None
        if isinstance(footprints, torch.Tensor):
            self._sample = torch.zeros(programs, dtype=torch.bool)
            self._sample[footprints] = True
        self._blocks = blocks_of(module) if blocks else frozenset()
        self._loops, self._layouts = loops_of(module), module.layouts
        self._again: dict[int, tuple[Any, ...]] = {}  # programs, how often they did it, and how that is noted
        self._latencies: dict[int, int] = {}
        self._chosen: tuple[torch.Tensor, torch.Tensor] | None = None  # programs, and which of them are in the sample
        self._reached_blocks: defaultdict[int, torch.Tensor] = defaultdict(
            lambda: torch.zeros(programs, dtype=torch.int64)
        )
        self._by_program: defaultdict[str, torch.Tensor] = defaultdict(
            lambda: torch.zeros(programs, dtype=torch.float64)
        )
        self._elements: defaultdict[str, float] = defaultdict(float)  # of all programs together
        self._rounds = RoundCounter(module, programs)
        self._by_program["rounds"], self._by_program["waiting_rounds"] = self._rounds.rounds, self._rounds.waiting
        self.waits = WaitCounter(module, self._of_one)

    @property
    def by_program(self) -> dict[str, torch.Tensor]:
        self._settle()
        self._note()
        return self._by_program

    @property
    def reached(self) -> dict[int, torch.Tensor]:
        self._note()
        return self._reached_blocks

    @property
    def elements(self) -> Mapping[str, float]:
        """Operations on elements, of all programs together."""
        self._note()
        return self._elements

    @property
    def footprints(self) -> Footprints:
        self._settle()
        return self._footprints

    # --- Observer -------------------------------------------------------------------------------------------------

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None:
        self._count(operation.ordinal, self._did, operation, result, programs)

    def _count(self, key: int, note: _Note, what: Operation, result: Type | None, now: torch.Tensor) -> None:
        """Count once more for the same programs; what others did before is noted."""
        programs, times, *before = self._again.get(key, (now, 0))
        if programs is not now:
            before[0](*before[1:], programs, times)
            times = 0
        self._again[key] = (now, times + 1, note, what, result)

    def _note(self) -> None:
        again, self._again = self._again, {}
        for programs, times, note, operation, result in again.values():
            note(operation, result, programs, times)
        for program, latencies in self._latencies.items():
            self._by_program["latencies"][program] = latencies

    def _of_one(self, program: int) -> ProgramCounts:
        """What makes a program last, of all that it has done."""
        self._note()
        return {name: float(self._by_program[name][program]) for name in _lasting(self._by_program)}

    def _did(self, operation: Operation, result: Type | None, programs: torch.Tensor, times: int) -> None:
        """Count an operation that programs have executed so often."""
        if operation.ordinal in self._blocks:
            self._reached_blocks[operation.ordinal][programs] += times
        if operation.name == "tt.call":
            self._begin(operation, programs, times)
        if operation.name in DOTS:
            kind, flops = product_of(operation)
            self._by_program[f"flops.{kind}"][programs] += flops * times
            return
        if result is None or operation.name in FREE:
            return
        count = float(result.elements * programs.numel() * times)
        if operation.name in ("tt.reduce", "tt.scan"):
            elements = operation.types[0].elements if operation.types else result.elements
            self._elements["reduce"] += float(elements * programs.numel() * times)
            return
        fp, mufu = _arithmetic(operation.name, result)
        self._elements["int"] += count if fp + mufu == 0 else 0.0
        self._elements["fp"] += fp * count
        self._elements["mufu"] += mufu * count

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None:
        self._count(~operation.ordinal, self._iterated, operation, None, programs)
        self._rounds.end(programs)

    def _iterated(self, operation: Operation, result: Type | None, programs: torch.Tensor, times: int) -> None:
        self._by_program["iterations"][programs] += times
        self._begin(operation, programs, times)

    def _begin(self, operation: Operation, programs: torch.Tensor, times: int) -> None:
        self._by_program[f"loop.{self._loops.begins[operation.ordinal]}.iterations"][programs] += times

    def waited(self, program: int, latencies: int) -> None:
        self._latencies[program] = max(latencies, self._latencies.get(program, 0))

    def library(self, programs: torch.Tensor, elements: int, instructions: torch.Tensor) -> None:
        self._by_program[f"library.{elements}"][programs] += instructions

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        kind = "load" if operation.name in LOADS else "store"
        self.waits.access(operation, pointer, programs)
        self._rounds.access(operation, pointer, programs)
        lanes = _active(mask, programs.numel(), shape)
        amounts = self._by_program[f"{kind}_bytes"].numpy()  # quicker than torch for few programs
        amounts[programs.numpy()] += (lanes.numpy() if isinstance(lanes, torch.Tensor) else lanes) * item
        atomic = "atomic" in operation.name or operation.name == "tt.descriptor_reduce"
        if atomic:
            self._by_program["atomic"][programs] += lanes
            self._crowd(pointer, mask, programs, shape)
        if self.keeps_lines:
            layout = expanded(operation.types[0], self._layouts) if operation.types else ""
            self._keep(kind, pointer, mask, programs, item, shape, kind == "store" and not atomic, layout)

    @cached_property
    def _crowds(self) -> torch.Tensor:
        """Requests of lines, and updates of addresses: much memory, of which few kernels have need."""
        return torch.zeros(2, _PLACES, dtype=torch.int64)

    def _crowd(self, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Count what atomic operations ask of lines and of addresses, which L2 does one after the other: sectors of
        each warp, and updates, of integers by all lanes of a warp together one."""
        full, width = (programs.numel(), *shape), min(_WARP, math.prod(shape))
        warps = pointer.data.expand(full).reshape(-1, width)
        active = (torch.ones(1, dtype=torch.bool) if mask is None else mask.data).expand(full).reshape(-1, width)
        sectors = torch.where(active, warps // SECTOR_BYTES, -1).sort(1).values
        asked = sectors >= 0
        asked[:, 1:] &= sectors.diff(dim=1) != 0
        lines = sectors[asked] * SECTOR_BYTES // LINE_BYTES % _PLACES
        if pointer.type.pointee and pointer.type.pointee.is_integer:
            least, most = torch.where(active, warps, 1 << 62).amin(1), torch.where(active, warps, -1).amax(1)
            one = least == most
            updated = torch.cat([warps[~one][active[~one]], least[one]])
        else:
            updated = warps[active]
        for counts, places in zip(self._crowds, (lines, updated % _PLACES), strict=True):
            counts.index_add_(0, places, torch.ones_like(places))

    def crowd(self, programs: int, total: int) -> float:
        """Requests of the line, or updates of the address, that most are of, by `total` programs, of which so many were
        counted: what few of these share may be shared by no others."""
        if "atomic" not in self._by_program:
            return 0.0
        most = float(self._crowds.max())
        few = _SHARED * float(self._by_program["atomic"].sum()) / programs
        return most + max(0.0, most - few) * (total / programs - 1.0)

    # --- footprints -----------------------------------------------------------------------------------------------

    def _keep(
        self, kind: str, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple[int, ...],
        overwrites: bool, layout: str,
    ) -> None:  # fmt: skip
        if self._sample is not None:
            if self._chosen is None or self._chosen[0] is not programs:
                self._chosen = programs, self._sample[programs].nonzero().squeeze(1)
            rows = self._chosen[1]
            if not rows.numel():
                return
            if rows.numel() < programs.numel():
                pointer, mask, programs = pointer.rows(rows), mask and mask.rows(rows), programs[rows]
        runs = runs_of(self._memory, pointer, mask, programs, item, shape, layout)
        count = runs.starts.numel()
        if count and self._followed is not None:
            if overwrites:
                self._stored.append((len(self._reached), long_runs(runs, self._followed)))
            self._reached.append(self._rounds.rounds[self._followed])
        if count and kind == "load" and self._sectors:
            self._count_distinct(runs, programs, mask is None)
        times = scattering(self._memory, pointer, mask, item, shape, layout) if layout and self._sectors else 1.0
        if count and kind == "store" and self._sectors:
            each = (runs.lengths.clamp(max=_VECTOR_BYTES) // item).clamp(min=1)  # elements that a lane stores at once
            owners, lines = sectors_of(runs._replace(lanes=runs.lanes // each), LINE_BYTES)
            self._by_program["store_lines"].index_add_(0, owners, lines.double() * times)
        if count > _SMALL or (count and times > 1.0):
            self._settle()
            self._count_sectors(kind, runs, times)
            self._footprints.add(kind, runs)
        elif count:
            self._waiting.append((kind, Runs(*(column.reshape(-1) for column in runs))))
            self._runs_waiting += count
            if self._runs_waiting > _MOST_WAITING:
                self._settle()

    def _settle(self) -> None:
        """Look at what waits."""
        if not self._waiting:
            return
        waiting, self._waiting, self._runs_waiting = self._waiting, [], 0
        for kind in ("load", "store"):
            if some := [runs for one, runs in waiting if one == kind]:
                self._count_sectors(kind, together(some)[1])
        self._footprints.add_all(waiting)

    def reuse(self, kind: str, seed: int, distances: bool) -> Reuse:
        """Of the lines that the followed programs load or store; see `reuse_of`."""
        assert self._followed is not None
        (owners, first, last), accesses = self.footprints.in_order(kind, self._followed)
        if not owners.numel():
            return Reuse()
        rounds = torch.stack(self._reached)[accesses, torch.searchsorted(self._followed, owners)]
        return reuse_of(owners, first, last, rounds.long(), seed, distances)

    def own_load_bytes(self, everyone: Footprints) -> dict[int, float]:
        """Bytes of lines, by buffer, that a followed program loads after it stored them whole, in the mean; see
        own_lines.py. What other programs of `everyone`, or that were observed here, store too is no program's own."""
        assert self._followed is not None
        if not self._stored:
            return {}
        (owners, first, last), accesses = self.footprints.in_order("load", self._followed)
        owners, lines = own_lines(self._stored, (owners, first, last, accesses), self._followed)
        buffers, found = lines // _BUFFER_LINES, {}
        for buffer in torch.unique(buffers).tolist():
            own = owners[buffers == buffer], lines[buffers == buffer] % _BUFFER_LINES
            share = min(seen.unshared("store", buffer, *own) for seen in {self.footprints, everyone})
            found[buffer] = share * own[0].numel() * LINE_BYTES * self.footprints.scale / self._followed.numel()
        return found

    def _count_distinct(self, runs: Runs, programs: torch.Tensor, all_on: bool) -> None:
        """Count bytes that a program loads at once, each once however many lanes ask for it."""
        if all_on and runs.starts.numel() == programs.numel():  # one run of each
            owners, loaded = programs, runs.lengths.reshape(-1)
        else:
            owners, loaded = distinct_bytes(runs)
        self._by_program["distinct_load"].index_add_(0, owners, loaded.double())

    def _count_sectors(self, kind: str, runs: Runs, times: float = 1.0) -> None:
        if self._sectors:
            owners, sectors = sectors_of(runs)
            self._by_program[f"{kind}_sectors"].index_add_(0, owners, sectors.double() * times)


def blocks_of(module: IRModule) -> frozenset[int]:
    """The first operation of every block that a program may skip."""
    regions = [r for o in module.operations() if o.name not in ("tt.reduce", "tt.scan") for r in o.regions]
    blocks = [block for region in regions for block in region.blocks]
    blocks += [block for function in module.functions.values() for block in function.body.blocks]
    return frozenset(block.operations[0].ordinal for block in blocks if block.operations)


def product_of(operation: Operation) -> tuple[str, float]:
    a = operation.types[0]
    a = a.pointee if a.element == "memdesc" and a.pointee else a
    shape = operation.results[0].type.shape or (1, 1)
    depth = (a.shape or (1,))[-1]
    # No target multiplies scaled operands directly: they are converted first.
    kind = "bf16" if operation.name == "tt.dot_scaled" else _KINDS.get(a.element, "fp32")
    if kind == "fp32":
        in_groups = operation.name == "ttng.warp_group_dot"  # which writes its precision as a number
        precision = "tf32" if in_groups else operation.attributes.get("inputPrecision", "ieee")
        kind = precision if precision in PARTED else "fp32"
    if operation.name == "tt.dot_scaled" and operation.attributes.get("lhs") == "e2m1":
        depth *= 2
    return kind, 2.0 * math.prod(shape) * depth


def _arithmetic(name: str, result: Type) -> tuple[int, int]:
    """Floating-point operations per element of a result: (plain, transcendental)."""
    if name in ("arith.divf", "tt.precise_divf"):
        return 7, 1  # a division, in addition to its reciprocal
    if name in ("math.erf", "tt.extern_elementwise"):
        return 20, 1
    return (0, 1) if name in _MUFU else (int(result.is_float), 0)


def _active(mask: Lanes | None, programs: int, shape: tuple[int, ...]) -> torch.Tensor | float:
    """Active lanes of each program by its mask; one number if all programs have the same."""
    whole = float(math.prod(shape))
    if mask is None:
        return whole
    by_axis: dict[int, torch.Tensor] = {}
    for factor in mask.factors:
        varying = [axis for axis, size in enumerate(factor.shape) if size > 1]
        if len(varying) != 1:
            data = mask.data
            spread = whole * data.shape[0] / data.numel()
            counts = data.reshape(data.shape[0], -1).sum(1).double() * spread
            return counts if counts.numel() > 1 else float(counts)
        flat = factor.reshape(-1)
        by_axis[varying[0]] = by_axis[varying[0]] & flat if varying[0] in by_axis else flat
    share = torch.ones(1, dtype=torch.float64)
    for axis, on in by_axis.items():
        share = share * (on.double() if axis == 0 else on.double().mean())
    return share * whole if share.numel() > 1 else float(share) * whole


def mean_of(counter: Counter, name: str, programs: Sequence[int] | torch.Tensor) -> float:
    """Mean of a count over some programs."""
    return float(counter.by_program[name][torch.as_tensor(programs)].mean()) if name in counter.by_program else 0.0


def means_of(counter: Counter) -> dict[str, float]:
    """Mean of every count over all programs of a launch; under "most.", the busiest program's."""
    return {name: float(amounts.mean()) for name, amounts in counter.by_program.items()} | most_of(counter)


def most_of(counter: Counter) -> dict[str, float]:
    most = {f"most.{name}": float(_whole(counter, name).max()) for name in _lasting(counter.by_program)}
    if "latencies" in counter.by_program:
        most["latencies"] = float(counter.by_program["latencies"].max())
    return most


def _whole(counter: Counter, name: str) -> torch.Tensor:
    """By program, with what it waited for in others."""
    amounts = counter.by_program[name].clone()
    for program, behind in counter.waits.behind.items():
        amounts[program] += behind.get(name, 0.0)
    return amounts


def _lasting(counts: Mapping[str, torch.Tensor]) -> list[str]:
    """Counts that determine how long a single program takes."""
    ends = ("rounds", ".iterations", "_bytes")
    return sorted(n for n in counts if n.startswith(("flops.", "library.")) or n.endswith(ends))


def busiest_of(counter: Counter, programs: torch.Tensor) -> tuple[ProgramWork, ...]:
    """Of `programs`, those that do most of something that makes a program last."""
    whole = {name: _whole(counter, name) for name in _lasting(counter.by_program)}
    busiest = {int(programs[amounts[programs].argmax()]) for amounts in whole.values()}
    return tuple(work_of({name: float(amounts[one]) for name, amounts in whole.items()}) for one in sorted(busiest))


def loops_in(counter: Counter, programs: torch.Tensor) -> dict[str, float]:
    """Iterations of each loop by `programs`, all that were counted, in the mean."""
    names = sorted(name for name in counter.by_program if name.startswith("loop."))
    return {name.split(".")[1]: mean_of(counter, name, programs) for name in names}
